package redisdelay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// ExpiresAtKey is the metadata key for the instant, by the clock of the Redis server, from which it is too
	// late to deliver the message. The value is RFC 3339. What happens then says OnExpiryKey. See ExpireAt.
	ExpiresAtKey = "expires_at"

	// MaxLatenessKey is the metadata key for how long after it is due it is too late to deliver the message: a
	// duration such as "5m", from "1ms" to MaxDelay. A retry is due anew. With ExpiresAtKey too, what comes
	// first counts. See ExpireAfter.
	MaxLatenessKey = "max_lateness"

	// OnExpiryKey is the metadata key for an OnExpiry. Without it, it is ExpiryDeliver.
	OnExpiryKey = "on_expiry"
)

// OnExpiry says what becomes of a message that could not be delivered in time. It is decided when a subscriber
// would get it, for each group by itself; a message that nobody asks for stays where it is.
type OnExpiry string

const (
	// ExpiryDeliver delivers it all the same; Delivery.DueAt tells the handler how late it is.
	ExpiryDeliver OnExpiry = "deliver"
	// ExpiryDrop forgets it, and counts it: see admin.GroupStats.
	ExpiryDrop OnExpiry = "drop"
	// ExpiryDead makes it a dead letter.
	ExpiryDead OnExpiry = "dead"
)

const (
	wantExpiresAt   = `want an RFC 3339 time, such as "2006-01-02T15:04:05Z"`
	wantMaxLateness = `want a duration from "1ms" to "876000h" (100 years)`
	wantOnExpiry    = `want "deliver", "drop" or "dead", and expires_at or max_lateness`
)

// ExpireAt says from when on it is too late to deliver msg, and what happens then.
func ExpireAt(msg *message.Message, t time.Time, then OnExpiry) {
	setKey(msg, ExpiresAtKey, t.UTC().Format(time.RFC3339Nano))
	setKey(msg, OnExpiryKey, string(then))
}

// ExpireAfter says how long after msg is due it is too late to deliver it, and what happens then.
func ExpireAfter(msg *message.Message, lateness time.Duration, then OnExpiry) {
	setKey(msg, MaxLatenessKey, lateness.String())
	setKey(msg, OnExpiryKey, string(then))
}

// readExpiry reads the three keys into options.
func readExpiry(metadata message.Metadata, o *queue.Options) error {
	at, hasAt := metadata[ExpiresAtKey]
	if hasAt {
		t, ok := parseTime(at)
		if !ok {
			return invalidValue(ErrInvalidMetadata, ExpiresAtKey, at, wantExpiresAt)
		}
		o.Expires = t
	}
	lateness, hasLateness := metadata[MaxLatenessKey]
	if hasLateness {
		d, ok := parseDuration(lateness)
		if !ok || d < time.Millisecond || d > MaxDelay {
			return invalidValue(ErrInvalidMetadata, MaxLatenessKey, lateness, wantMaxLateness)
		}
		o.Lateness = d
	}
	then, set := metadata[OnExpiryKey]
	if !set {
		return nil
	}
	known := hasAt || hasLateness
	switch OnExpiry(then) {
	case ExpiryDeliver:
	case ExpiryDrop:
		o.Late = queue.Drop
	case ExpiryDead:
		o.Late = queue.Bury
	default:
		known = false
	}
	if !known {
		return invalidValue(ErrInvalidMetadata, OnExpiryKey, then, wantOnExpiry)
	}
	return nil
}
