// Package meta reads from a message's metadata when and how the message is to be delivered. It is
// pure: it has no clock and does no I/O. Publishers read all of it and refuse a wrong value.
// Subscribers read what concerns a delivery and ignore a wrong value, because the message is stored
// already.
//
// spec.go reads everything into one Spec. due.go and context.go read delays, expiry.go and
// backoff.go the settings of these names. values.go reads durations and instants. keys.go lists the
// keys, and says which are not stored.
package meta

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// The root package exports these errors and documents them.
var (
	ErrInvalidDelay    = errors.New("invalid delay")
	ErrInvalidMetadata = errors.New("invalid metadata")
)

// Spec is what a message says about its delivery. The zero value says nothing.
type Spec struct {
	Due     queue.Due // zero: at once
	Name    Name
	Expiry  Expiry
	Backoff Backoff
	Limit   int // deliveries at most; 0: the subscriber's limit, -1: no limit
}

// Name is the delay ID of a message, which names it while it waits.
type Name struct {
	ID     string // "": the message has no name
	Mode   queue.Mode
	Window time.Duration // how long the name stays taken after the message is due
}

// Glance tells whether msg says nothing about its delivery, as most messages do, and whether one of
// its keys differs from a known one only in case: see Meant. One pass over the few keys that a
// message has is quicker than a lookup of each key that it might have.
func Glance(msg *message.Message) (plain, miscased bool) {
	_, delayed := contextDelay(msg.Context())
	plain = !delayed
	for key := range msg.Metadata {
		switch {
		case Known(key):
			plain = false
		case Meant(key) != "":
			miscased = true
		}
	}
	return plain, miscased
}

// Read reads all that msg says about its delivery, for a publisher whose clock shows now. The error
// joins those of all wrong values. Each wraps ErrInvalidDelay or ErrInvalidMetadata.
func Read(msg *message.Message, now time.Time) (Spec, error) {
	var s Spec
	var delay, limit, backoff, name, expiry error
	s.Due, delay = Due(msg, now)
	s.Limit, limit = readLimit(msg.Metadata)
	s.Backoff, backoff = ReadBackoff(msg.Metadata)
	s.Name, name = readName(msg.Metadata)
	s.Expiry, expiry = readExpiry(msg.Metadata)
	if delay == nil && expiry == nil {
		expiry = s.pastExpiry(msg.Metadata, now)
	}
	if err := errors.Join(delay, limit, backoff, name, expiry); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// pastExpiry returns the error for a message that is due when it is too late to deliver it.
func (s *Spec) pastExpiry(metadata message.Metadata, now time.Time) error {
	due, expires := s.Due.By(now), s.Expiry.At
	if due.IsZero() || expires.IsZero() || due.Before(expires) {
		return nil
	}
	return fmt.Errorf("%w: metadata %s is %s: %w: the message is due at %s", ErrInvalidMetadata, ExpiresAtKey,
		quoteClipped(metadata[ExpiresAtKey]), queue.ErrPastExpiry, due.UTC().Format(time.RFC3339Nano))
}

// Options returns what scripts have to know of the message. They judge its expiry only where it
// goes into a stream; elsewhere the subscriber does.
func (s *Spec) Options(stream bool) queue.Options {
	o := queue.Options{MaxDeliveries: s.Limit, DelayID: s.Name.ID, Mode: s.Name.Mode, Window: s.Name.Window}
	if stream {
		o.Expiry = queue.Expiry(s.Expiry)
	}
	return o
}

// Take reads what concerns a delivery from the metadata of a stored message: the delay ID, the
// limit, the backoff and the expiry. A wrong value counts as none. Take removes the keys that
// handlers do not see, so that a message which is published again does not have the name and the
// expiry of the first one.
func Take(metadata message.Metadata) (s Spec) {
	if plain(metadata) {
		return s
	}
	s.Name.ID = metadata[DelayIDKey]
	s.Limit, _ = readLimit(metadata)
	s.Backoff, _ = ReadBackoff(metadata)
	s.Expiry, _ = readExpiry(metadata)
	delete(metadata, DelayIDKey)
	for _, key := range expiryKeys {
		delete(metadata, key)
	}
	return s
}

// readLimit reads MaxDeliveriesKey.
func readLimit(metadata message.Metadata) (int, error) {
	value, set := metadata[MaxDeliveriesKey]
	if !set {
		return 0, nil
	}
	// 32 bits, so that the number is the same on every machine and exact in Lua.
	limit, err := strconv.ParseInt(value, 10, 32)
	if err != nil || limit == 0 || len(value) > maxValueLen {
		return 0, invalid(ErrInvalidMetadata, MaxDeliveriesKey, value, wantMaxDeliveries)
	}
	return int(max(limit, -1)), nil
}

// readName reads the three keys of a delay ID.
func readName(metadata message.Metadata) (n Name, err error) {
	id, named := metadata[DelayIDKey]
	if named && (id == "" || len(id) > MaxDelayIDLength) {
		err = invalid(ErrInvalidMetadata, DelayIDKey, id, wantDelayID)
	}
	n.ID = id
	if mode, set := metadata[DelayIDModeKey]; set {
		known := true
		switch mode {
		case Replace:
		case Keep:
			n.Mode = queue.Keep
		case Reject:
			n.Mode = queue.Reject
		default:
			known = false
		}
		if !known || !named {
			err = errors.Join(err, invalid(ErrInvalidMetadata, DelayIDModeKey, mode, wantDelayIDMode))
		}
	}
	if window, set := metadata[DelayIDWindowKey]; set {
		d, ok := parseDuration(window)
		if !ok || d < 0 || d > MaxDelay || !named {
			err = errors.Join(err, invalid(ErrInvalidMetadata, DelayIDWindowKey, window, wantWindow))
		}
		n.Window = d
	}
	if err != nil {
		return Name{}, err
	}
	return n, nil
}
