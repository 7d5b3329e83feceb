package redisdelay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// ExpiresAtKey is the metadata key for the instant, by the clock of the Redis server, from which it is too
	// late to deliver the message. The value is RFC 3339; Go's zero time, in the year 1, is none. OnExpiryKey says what
	// happens then. See ExpireAt.
	ExpiresAtKey = "expires_at"

	// MaxLatenessKey is the metadata key for how long after it is due it is too late to deliver the message: a
	// duration such as "5m", from "1ms" to MaxDelay. A retry is due anew. With ExpiresAtKey too, what comes
	// first counts. See ExpireAfter.
	MaxLatenessKey = "max_lateness"

	// OnExpiryKey is the metadata key for an OnExpiry. Without it, it is ExpiryDeliver.
	OnExpiryKey = "on_expiry"
)

// OnExpiry says what becomes of a message that could not be delivered in time. It is decided while a subscriber
// offers it to its consumer, for each group by itself; a message that nobody asks for stays where it is, as does one
// of a group that is paused: for that the time goes on, and it is decided when the group is resumed. It is not
// a delivery, and counts as none. A dead letter that an operator requeued is delivered, however late.
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

// ExpireAt says from when on it is too late to deliver msg, and what happens then. With the zero time it never is.
func ExpireAt(msg *message.Message, t time.Time, then OnExpiry) {
	setKey(msg, ExpiresAtKey, t.UTC().Format(time.RFC3339Nano))
	setKey(msg, OnExpiryKey, string(then))
}

// ExpireAfter says how long after msg is due it is too late to deliver it, and what happens then.
func ExpireAfter(msg *message.Message, lateness time.Duration, then OnExpiry) {
	setKey(msg, MaxLatenessKey, lateness.String())
	setKey(msg, OnExpiryKey, string(then))
}

// expiryKeys are taken from what consumers see, so that what is published again out of a delivery, by a poison
// queue or a requeuer, does not expire for the sake of the message that it was.
var expiryKeys = []string{ExpiresAtKey, MaxLatenessKey, OnExpiryKey}

// expiry is when it is too late for a message, and what happens then. That of one which is delivered however late it is
// has the zero value.
type expiry struct {
	at       time.Time     // zero: never
	lateness time.Duration // after it is due; 0: never
	then     OnExpiry      // ExpiryDrop or ExpiryDead
}

// readExpiry reads the three keys.
func readExpiry(metadata message.Metadata) (e expiry, err error) {
	at, hasAt := metadata[ExpiresAtKey]
	if hasAt {
		t, ok := parseTime(at)
		if !ok {
			return e, invalidValue(ErrInvalidMetadata, ExpiresAtKey, at, wantExpiresAt)
		}
		e.at = t
	}
	lateness, hasLateness := metadata[MaxLatenessKey]
	if hasLateness {
		d, ok := parseDuration(lateness)
		if !ok || d < time.Millisecond || d > MaxDelay {
			return e, invalidValue(ErrInvalidMetadata, MaxLatenessKey, lateness, wantMaxLateness)
		}
		e.lateness = d
	}
	then, set := metadata[OnExpiryKey]
	e.then = OnExpiry(then)
	late := e.then == ExpiryDrop || e.then == ExpiryDead
	switch {
	case set && (!late && e.then != ExpiryDeliver || !hasAt && !hasLateness):
		return e, invalidValue(ErrInvalidMetadata, OnExpiryKey, then, wantOnExpiry)
	case !late:
		return expiry{}, nil
	}
	return e, nil
}

// from is the instant from which it is too late to deliver a message that was due, by the same clock. Zero: it
// is delivered however late it is.
func (e expiry) from(due time.Time) time.Time {
	from := e.at
	if e.lateness > 0 {
		if late := due.Add(e.lateness); from.IsZero() || late.Before(from) {
			from = late
		}
	}
	return from
}
