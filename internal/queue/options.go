package queue

import (
	"net/url"
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

// Options are a message's own settings, stored apart from its body where scripts can read them.
type Options struct {
	MaxDeliveries int // 0: the group's; negative: no limit

	DelayID string        // names the message while it waits; "": nothing does
	Window  time.Duration // how long the delay ID stays taken after the message is due
	Mode    Mode

	Expiry Expiry // only where a script judges by it
}

// Expiry says from when on it is too late for a message to go into a stream. The zero value is never.
type Expiry struct {
	At       time.Time     // zero: never
	Lateness time.Duration // after it is due; 0: never
	Dead     bool          // it is dead then; else it is dropped
}

func (e Expiry) encode(add func(name, value string)) {
	if e.At.IsZero() && e.Lateness == 0 {
		return
	}
	if !e.At.IsZero() {
		add("expires_at", At(e.At).encode()[1:])
	}
	if e.Lateness > 0 {
		add("max_lateness", millis(e.Lateness))
	}
	if e.Dead {
		add("on_expiry", "dead")
	} else {
		add("on_expiry", "drop")
	}
}

// encode writes them as scripts read them: names and values without spaces or further colons.
func (o Options) encode() string {
	var parts []string
	add := func(name, value string) { parts = append(parts, name+":"+value) }
	if o.MaxDeliveries != 0 {
		add("max_deliveries", strconv.Itoa(max(o.MaxDeliveries, -1)))
	}
	if o.DelayID != "" {
		add("delay_id", EncodeName(o.DelayID))
		if o.Window > 0 {
			add("window", millis(o.Window))
		}
		if o.Mode != Replace {
			add("mode", string(o.Mode))
		}
	}
	o.Expiry.encode(add)
	return strings.Join(parts, " ")
}

// ParseOptions reads what encode has written.
func ParseOptions(text string) (o Options) {
	for _, part := range strings.Fields(text) {
		name, value, _ := strings.Cut(part, ":")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "max_deliveries":
			o.MaxDeliveries = int(n)
		case "delay_id":
			o.DelayID = DecodeName(value)
		case "window":
			o.Window = time.Duration(n) * time.Millisecond
		case "mode":
			o.Mode = Mode(value)
		case "expires_at":
			o.Expiry.At = time.UnixMilli(n)
		case "max_lateness":
			o.Expiry.Lateness = time.Duration(n) * time.Millisecond
		case "on_expiry":
			o.Expiry.Dead = value == "dead"
		}
	}
	return o
}

// EncodeName returns a delay ID as it is stored: without spaces and colons, which separate options.
func EncodeName(name string) string { return url.QueryEscape(name) }

// DecodeName reads what EncodeName has written. It returns any other text as it is.
func DecodeName(stored string) string {
	name, err := url.QueryUnescape(stored)
	if err != nil {
		return stored // not written by this program
	}
	return name
}
