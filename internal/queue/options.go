package queue

import (
	"strconv"
	"strings"
	"time"
)

// Mode says what a message does whose delay ID is another's.
type Mode string

const (
	Replace Mode = ""       // it takes the place of the one that waits
	Keep    Mode = "keep"   // it is not taken in
	Reject  Mode = "reject" // the whole call is refused
)

// Late says what becomes of a message that could not be delivered in time.
type Late string

const (
	Deliver Late = ""     // it is delivered all the same
	Drop    Late = "drop" // it is forgotten, and counted
	Bury    Late = "dead" // it becomes a dead letter
)

// Options are a message's own settings, stored apart from its body where scripts can read them.
type Options struct {
	MaxDeliveries int // 0: the group's; negative: no limit

	DelayID string        // names the message while it waits; "": nothing does
	Window  time.Duration // how long the delay ID stays taken after the message is due
	Mode    Mode

	Expires  time.Time     // when it is too late for the message; zero: never
	Lateness time.Duration // how long after it is due it is too late; 0: never
	Late     Late          // what happens then
}

// encode writes them as scripts read them: names and values without spaces or further colons.
func (o Options) encode() string {
	var parts []string
	add := func(name, value string) { parts = append(parts, name+":"+value) }
	if o.MaxDeliveries != 0 {
		add("max_deliveries", strconv.Itoa(max(o.MaxDeliveries, -1)))
	}
	if o.DelayID != "" {
		add("delay_id", encodeName(o.DelayID))
		if o.Window > 0 {
			add("window", millis(o.Window))
		}
		if o.Mode != Replace {
			add("mode", string(o.Mode))
		}
	}
	if o.Late != Deliver {
		if !o.Expires.IsZero() {
			add("expires", strconv.FormatInt(max(o.Expires.UnixMilli(), 0), 10))
		}
		if o.Lateness > 0 {
			add("lateness", millis(o.Lateness))
		}
		add("late", string(o.Late))
	}
	return strings.Join(parts, " ")
}

// parseOptions reads what encode has written.
func parseOptions(text string) (o Options) {
	for _, part := range strings.Fields(text) {
		name, value, _ := strings.Cut(part, ":")
		n, _ := strconv.ParseInt(value, 10, 64)
		duration := time.Duration(n) * time.Millisecond
		switch name {
		case "max_deliveries":
			o.MaxDeliveries = int(n)
		case "delay_id":
			o.DelayID = decodeName(value)
		case "window":
			o.Window = duration
		case "mode":
			o.Mode = Mode(value)
		case "expires":
			o.Expires = time.UnixMilli(n)
		case "lateness":
			o.Lateness = duration
		case "late":
			o.Late = Late(value)
		}
	}
	return o
}
