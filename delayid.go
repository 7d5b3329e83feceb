package redisdelay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// DelayIDKey is the metadata key that names the message within its topic while it waits for its due
	// time: a text of 1 to MaxDelayIDLength bytes. DelayIDModeKey says what happens when
	// another message has the name. The name is free again as soon as the message is due, by the clock of the Redis server,
	// so a handler may publish the next message under the name of the one that it handles. Consumers find it
	// in Delivery.DelayID. See SetDelayID, and admin.ByDelayID to cancel or reschedule.
	DelayIDKey = "delay_id"

	// DelayIDModeKey is the metadata key for a DelayIDMode. Without it, it is DelayIDReplace.
	DelayIDModeKey = "delay_id_mode"

	// DelayIDWindowKey is the metadata key for how long the delay ID stays taken after the message is due:
	// a duration such as "10m", up to MaxDelay. What is published under it in that time is kept out or
	// refused, as its mode says; with DelayIDReplace it is published, and takes the name over. See
	// SetDelayIDWindow.
	DelayIDWindowKey = "delay_id_window"

	// MaxDelayIDLength is the longest delay ID, in bytes.
	MaxDelayIDLength = 512
)

// DelayIDMode says what Publish does with a message whose delay ID another message of the topic has.
type DelayIDMode string

const (
	// DelayIDReplace has the new message take the place of the one that waits, with its own body, due time
	// and ID: to reschedule, or to debounce.
	DelayIDReplace DelayIDMode = "replace"
	// DelayIDKeep leaves the new message out. Publish returns nil: to publish something once, however often
	// it is published.
	DelayIDKeep DelayIDMode = "keep"
	// DelayIDReject has Publish return ErrExists, and nothing of the call is published.
	DelayIDReject DelayIDMode = "reject"
)

const (
	wantDelayID     = `want a text of 1 to 512 bytes`
	wantDelayIDMode = `want "replace", "keep" or "reject", and a delay_id`
	wantWindow      = `want a duration from "0s" to "876000h" (100 years), and a delay_id`
)

// SetDelayID names msg while it waits. Publish refuses an empty id and one that is longer than
// MaxDelayIDLength.
func SetDelayID(msg *message.Message, id string, mode DelayIDMode) {
	setKey(msg, DelayIDKey, id)
	setKey(msg, DelayIDModeKey, string(mode))
}

// SetDelayIDWindow has msg's delay ID stay taken for d after msg is due. With no delay at all, that is from
// now on: a message that is published once only.
func SetDelayIDWindow(msg *message.Message, d time.Duration) {
	setKey(msg, DelayIDWindowKey, d.String())
}

// readDelayID reads the three keys into options.
func readDelayID(metadata message.Metadata, o *queue.Options) error {
	id, named := metadata[DelayIDKey]
	if named && (id == "" || len(id) > MaxDelayIDLength) {
		return invalidValue(ErrInvalidMetadata, DelayIDKey, id, wantDelayID)
	}
	o.DelayID = id
	if mode, set := metadata[DelayIDModeKey]; set {
		switch DelayIDMode(mode) {
		case DelayIDReplace:
		case DelayIDKeep:
			o.Mode = queue.Keep
		case DelayIDReject:
			o.Mode = queue.Reject
		default:
			named = false
		}
		if !named {
			return invalidValue(ErrInvalidMetadata, DelayIDModeKey, mode, wantDelayIDMode)
		}
	}
	if window, set := metadata[DelayIDWindowKey]; set {
		d, ok := parseDuration(window)
		if !ok || d < 0 || d > MaxDelay || !named {
			return invalidValue(ErrInvalidMetadata, DelayIDWindowKey, window, wantWindow)
		}
		o.Window = d
	}
	return nil
}
