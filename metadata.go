package redisdelay

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Metadata keys for a delay.
const (
	// DelayKey, "delay", is the metadata key for a delay that starts when the message is published,
	// by the clock of the Redis server. The value is a time.ParseDuration text such as "15m" or
	// "250ms", from "0s" to MaxDelay. It is rounded up to the millisecond. See DelayFor.
	DelayKey = meta.DelayKey

	// DelayUntilKey, "delay_until", is the metadata key for the instant, by the clock of the Redis
	// server, before which the message is not delivered. The value is RFC 3339, with a fraction of
	// a second if wanted, at most MaxDelay ahead. It is rounded up to the millisecond. A past
	// instant means now. One before the year 2000, such as Go's zero time, is refused as one that
	// was never set. A message with DelayKey too is refused. See DelayUntil.
	DelayUntilKey = meta.DelayUntilKey

	// MaxDelay is the longest delay: 100 years of 365 days. Longer ones are refused as mistakes,
	// such as nanoseconds taken for milliseconds.
	MaxDelay = meta.MaxDelay
)

// Metadata keys for the name of a message.
const (
	// DelayIDKey, "delay_id", is the metadata key that names the message within its topic while it
	// waits for its due time. The value is a text of 1 to MaxDelayIDLength bytes. DelayIDModeKey
	// says what happens when another message has the name. The name is free again as soon as the
	// message is due, by the clock of the Redis server. So a handler may publish the next message
	// under the name of the one that it handles. Consumers find the name in Delivery.DelayID. See
	// SetDelayID, and admin.ByDelayID to cancel or reschedule.
	DelayIDKey = meta.DelayIDKey

	// DelayIDModeKey, "delay_id_mode", is the metadata key for a DelayIDMode. The default is
	// DelayIDReplace.
	DelayIDModeKey = meta.DelayIDModeKey

	// DelayIDWindowKey, "delay_id_window", is the metadata key for how long the delay ID stays
	// taken after the message is due. The value is a duration such as "10m", up to MaxDelay. A
	// message with the same delay ID that is published in that time is kept out or refused, as its
	// mode says. With DelayIDReplace it is published, and takes the name over. See
	// SetDelayIDWindow.
	DelayIDWindowKey = meta.DelayIDWindowKey

	// MaxDelayIDLength is the longest delay ID, in bytes: 512.
	MaxDelayIDLength = meta.MaxDelayIDLength
)

// DelayIDMode says what Publish does with a message whose delay ID another message of the topic
// has.
type DelayIDMode string

const (
	// DelayIDReplace puts the new message in the place of the one that waits, with its own body,
	// due time and ID. It is for rescheduling and debouncing.
	DelayIDReplace DelayIDMode = meta.Replace
	// DelayIDKeep leaves the new message out. Publish returns nil: to publish something once,
	// however often it is published.
	DelayIDKeep DelayIDMode = meta.Keep
	// DelayIDReject has Publish return ErrExists, and nothing of the call is published.
	DelayIDReject DelayIDMode = meta.Reject
)

// Metadata keys for the deliveries of a message.
const (
	// MaxDeliveriesKey, "max_deliveries", is the metadata key that sets, for one message, how often
	// it is delivered before it is dead-lettered, instead of the subscriber's MaxDeliveries. The
	// value is a decimal integer from 1 to 2147483647; a negative one means no limit. See
	// SetMaxDeliveries.
	MaxDeliveriesKey = meta.MaxDeliveriesKey

	// BackoffKey, "backoff", is the metadata key that replaces the subscriber's Backoff for one
	// message. The message waits so long after a Nack, or after a handler that ran for too long.
	// With "30s" the wait is the same each time. With "1s..10m" it waits like ExponentialBackoff:
	// about one second, twice as long after each further delivery, and about ten minutes at most.
	// Durations are from "0s" to MaxDelay. See SetBackoff.
	BackoffKey = meta.BackoffKey
)

// Metadata keys for the expiry of a message.
const (
	// ExpiresAtKey, "expires_at", is the metadata key for the instant from which it is too late to
	// deliver the message, by the clock of the Redis server. The value is RFC 3339; Go's zero time,
	// in the year 1, is none. OnExpiryKey says what happens then. A delay that ends at or after it
	// is refused with ErrPastExpiry, unless OnExpiryKey is ExpiryDeliver. A delay of some duration
	// counts from the publisher's clock for that. See ExpireAt.
	ExpiresAtKey = meta.ExpiresAtKey

	// MaxLatenessKey, "max_lateness", is the metadata key for how long after it is due it is too
	// late to deliver the message. The value is a duration such as "5m", from "1ms" to MaxDelay. A
	// retry is due anew. If ExpiresAtKey is set too, the earlier of the two counts. See
	// ExpireAfter.
	MaxLatenessKey = meta.MaxLatenessKey

	// OnExpiryKey, "on_expiry", is the metadata key for an OnExpiry. The default is ExpiryDeliver.
	OnExpiryKey = meta.OnExpiryKey
)

// OnExpiry says what becomes of a message that could not be delivered in time. It is decided while
// a subscriber offers it to its consumer, for each group by itself. A message that no subscriber
// asks for stays where it is. So does a message of a paused group: its time goes on, and it is
// decided when the group is resumed. The decision is not a delivery, and counts as none. A dead
// letter that an operator requeued is delivered, however late.
type OnExpiry string

const (
	// ExpiryDeliver delivers the message all the same; Delivery.DueAt tells the handler how late it
	// is.
	ExpiryDeliver OnExpiry = meta.Deliver
	// ExpiryDrop forgets the message, and counts it: see admin.GroupStats.
	ExpiryDrop OnExpiry = meta.Drop
	// ExpiryDead makes the message a dead letter.
	ExpiryDead OnExpiry = meta.Dead
)

var (
	// ErrInvalidDelay is wrapped by the error for a message whose delay is malformed, negative,
	// longer than MaxDelay or given twice. The error names key and value.
	ErrInvalidDelay = meta.ErrInvalidDelay

	// ErrInvalidMetadata is wrapped by the error for metadata that this package reads, other than a
	// delay, and that is malformed. The error names key and value.
	ErrInvalidMetadata = meta.ErrInvalidMetadata
)

// CheckMetadata returns the error that Publish would return about the metadata of msg, and about a
// delay in its context, or nil. It needs no Redis. Call it after the setters, such as DelayFor,
// SetDelayID and ExpireAt, to find a wrong value where it was set, or before a message is stored to
// be published later. The error joins one for each fault, and each names key and value. They wrap
// ErrInvalidDelay, ErrInvalidMetadata or ErrPastExpiry; that for a nil message is ErrNilMessage.
func CheckMetadata(msg *message.Message) error {
	if msg == nil {
		return ErrNilMessage
	}
	_, err := meta.Read(msg, time.Now())
	return err
}

// StripMetadata removes the metadata that controls this package from msg: the keys for delays,
// names, deliveries, retries and expiry, and the two of Watermill's components/delay. All other
// metadata stays. Call it for a message whose metadata comes from outside, such as HTTP headers,
// before the program sets keys of its own. Else its sender could delay the message, replace that of
// another, or have it dropped. It does not change the message's context.
func StripMetadata(msg *message.Message) {
	for key := range msg.Metadata {
		if meta.Known(key) {
			delete(msg.Metadata, key)
		}
	}
}

// Delayed tells whether Publish would keep msg in Redis for some time. That is so if it has a delay
// other than "0s", in one of the forms that Publish knows. An instant counts as a delay even if it
// is past, because only the Redis server can tell. Errors wrap ErrInvalidDelay, and are those of
// Publish.
func Delayed(msg *message.Message) (bool, error) {
	due, err := meta.Due(msg, time.Now())
	return due != queue.Due{}, err
}

// DelayFor delays msg by d after it is published. It replaces an earlier DelayFor or DelayUntil.
// Publish refuses a negative d and one above MaxDelay; CheckMetadata tells before.
func DelayFor(msg *message.Message, d time.Duration) {
	delete(msg.Metadata, DelayUntilKey)
	setKey(msg, DelayKey, d.String())
}

// DelayUntil delays msg until t by the clock of the Redis server. It replaces an earlier DelayFor
// or DelayUntil. Publish refuses a t more than MaxDelay ahead, the zero time, and any other time
// before the year 2000; CheckMetadata tells before.
func DelayUntil(msg *message.Message, t time.Time) {
	delete(msg.Metadata, DelayKey)
	setKey(msg, DelayUntilKey, t.UTC().Format(time.RFC3339Nano))
}

// SetDelayID names msg while it waits. The mode "" is the default, DelayIDReplace. Publish refuses
// an empty id, one that is longer than MaxDelayIDLength, and an unknown mode; CheckMetadata tells
// before.
func SetDelayID(msg *message.Message, id string, mode DelayIDMode) {
	setKey(msg, DelayIDKey, id)
	setOrDelete(msg, DelayIDModeKey, string(mode))
}

// SetDelayIDWindow keeps msg's delay ID taken for d after msg is due. If msg has no delay, that is
// from now on: so a message is published only once. Publish refuses a negative d, one above
// MaxDelay, and a message without a delay ID; CheckMetadata tells before.
func SetDelayIDWindow(msg *message.Message, d time.Duration) {
	setKey(msg, DelayIDWindowKey, d.String())
}

// SetMaxDeliveries says after how many failed deliveries msg is dead-lettered, instead of the
// subscriber's MaxDeliveries; a negative n is no limit. A lease that runs out for the first time is
// no failed delivery, so 1 is not at most once. Publish refuses 0, an n above 2147483647 and one
// below -2147483648; CheckMetadata tells before.
func SetMaxDeliveries(msg *message.Message, n int) {
	setKey(msg, MaxDeliveriesKey, strconv.Itoa(n))
}

// SetBackoff says how long msg waits after a Nack. It waits about initial after the first delivery,
// twice as long after each further one, and about max at most. If the two are the same, it waits
// exactly that long each time. Publish refuses a negative duration, one above MaxDelay, and a max
// below initial; CheckMetadata tells before.
func SetBackoff(msg *message.Message, initial, max time.Duration) {
	value := initial.String()
	if max != initial {
		value += ".." + max.String()
	}
	setKey(msg, BackoffKey, value)
}

// ExpireAt says from when on it is too late to deliver msg, and what happens then. With the zero
// time it is never too late. The value "" for then is the default, ExpiryDeliver. Publish refuses
// an unknown value, a year above 9999, and a delay that does not end before t unless then is
// ExpiryDeliver; CheckMetadata tells before.
func ExpireAt(msg *message.Message, t time.Time, then OnExpiry) {
	setKey(msg, ExpiresAtKey, t.UTC().Format(time.RFC3339Nano))
	setOrDelete(msg, OnExpiryKey, string(then))
}

// ExpireAfter says how long after msg is due it is too late to deliver it, and what happens then.
// The value "" for then is the default, ExpiryDeliver. Publish refuses an unknown value, a lateness
// below a millisecond, and one above MaxDelay; CheckMetadata tells before.
func ExpireAfter(msg *message.Message, lateness time.Duration, then OnExpiry) {
	setKey(msg, MaxLatenessKey, lateness.String())
	setOrDelete(msg, OnExpiryKey, string(then))
}

// setOrDelete sets a key. The value "" deletes the key, so that its default counts.
func setOrDelete(msg *message.Message, key, value string) {
	if value == "" {
		delete(msg.Metadata, key)
		return
	}
	setKey(msg, key, value)
}

func setKey(msg *message.Message, key, value string) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	msg.Metadata[key] = value
}
