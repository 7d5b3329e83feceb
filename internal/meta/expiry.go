package meta

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Expiry says when it is too late to deliver a message. The zero value is never, also for a message
// that is to be delivered however late it is.
type Expiry queue.Expiry

// readExpiry reads the three keys of an expiry.
func readExpiry(metadata message.Metadata) (e Expiry, err error) {
	at, hasAt := metadata[ExpiresAtKey]
	if hasAt {
		t, ok := parseTime(at)
		if !ok {
			err = invalid(ErrInvalidMetadata, ExpiresAtKey, at, wantExpiresAt)
		}
		e.At = t
	}
	lateness, hasLateness := metadata[MaxLatenessKey]
	if hasLateness {
		d, ok := parseDuration(lateness)
		if !ok || d < time.Millisecond || d > MaxDelay {
			err = errors.Join(err, invalid(ErrInvalidMetadata, MaxLatenessKey, lateness, wantMaxLateness))
		}
		e.Lateness = d
	}
	then, set := metadata[OnExpiryKey]
	e.Dead = then == Dead
	late := e.Dead || then == Drop
	if set && (!late && then != Deliver || !hasAt && !hasLateness) {
		err = errors.Join(err, invalid(ErrInvalidMetadata, OnExpiryKey, then, wantOnExpiry))
	}
	if err != nil || !late {
		return Expiry{}, err
	}
	return e, nil
}

// From returns the instant from which it is too late to deliver a message that was due then, by the
// same clock. The zero time is never.
func (e Expiry) From(due time.Time) time.Time {
	from := e.At
	if e.Lateness > 0 {
		if late := due.Add(e.Lateness); from.IsZero() || late.Before(from) {
			from = late
		}
	}
	return from
}
