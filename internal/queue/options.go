package queue

import (
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Mode says what publish does with a message whose delay ID another message has.
type Mode string

const (
	Replace Mode = ""       // the message replaces the other if that waits
	Keep    Mode = "keep"   // the message is left out
	Reject  Mode = "reject" // the whole call is refused
)

// Options are a message's own settings, stored apart from its body where scripts can read them.
type Options struct {
	MaxDeliveries int // 0: the limit of the group; negative: no limit

	DelayID string        // names the message while it waits; "": it has no name
	Window  time.Duration // how long the delay ID stays taken after the message is due
	Mode    Mode

	Expiry Expiry // only for a topic with a stream, where a script decides

	Guard *Guard // of an occurrence of a recurring schedule; nil: none; not stored
}

// Expiry says when it is too late for a message to go into a stream. The zero value means never.
type Expiry struct {
	At       time.Time     // zero: never
	Lateness time.Duration // after the due time; 0: never
	Dead     bool          // true: the message becomes a dead letter; false: it is dropped
}

// encode returns the options as scripts read them: "name:value" with spaces between.
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
	if o.Guard != nil {
		add("guard", o.Guard.text)
	}
	e := o.Expiry
	if !e.At.IsZero() {
		add("expires_at", At(e.At).encode()[1:])
	}
	if e.Lateness > 0 {
		add("max_lateness", millis(e.Lateness))
	}
	switch {
	case e.At.IsZero() && e.Lateness == 0:
	case e.Dead:
		add("on_expiry", "dead")
	default:
		add("on_expiry", "drop")
	}
	return strings.Join(parts, " ")
}

// ParseOptions reads the result of encode.
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

// DecodeName reads the result of EncodeName. It returns any other text unchanged.
func DecodeName(stored string) string {
	name, err := url.QueryUnescape(stored)
	if err != nil {
		return stored
	}
	return name
}
