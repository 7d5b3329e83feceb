package redisdelay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
)

// Delivery describes one hand-over of a message to a consumer.
type Delivery struct {
	// ID is the message's own ID in Redis, a ULID: unique, the same at each delivery to each group.
	ID string

	// DelayID is what its publisher named it while it waited, or "": see DelayIDKey. Unless it has a window
	// (DelayIDWindowKey), it is free by now.
	DelayID string

	// Topic and Group are where the message was subscribed to.
	Topic, Group string

	// Number counts the deliveries to this group that may use up MaxDeliveries, from 1. It stays the
	// same after a lease ran out the first time, for then the delivery does not count against it.
	Number int

	// Redelivered tells that the message was, or may have been, delivered to the group before.
	Redelivered bool

	// DueAt is when the message was due, by the clock of the Redis server: its delay's end or, after a
	// Nack with a delay, that of the last such delay.
	DueAt time.Time
}

// DeliveryFromContext returns the Delivery of the message that ctx is the context of, or that the
// context is derived from. ok is false if there is none.
func DeliveryFromContext(ctx context.Context) (d Delivery, ok bool) {
	found := consume.FromContext(ctx)
	if found == nil {
		return Delivery{}, false
	}
	return Delivery(found.Info()), true
}

// DeadOnNack makes the Nack of msg, which is being delivered, its last: the message is dead-lettered then, however
// many deliveries it has left, and reason is kept with it, about a kilobyte of it; it may be nil. An Ack settles it as
// ever. For handlers that find out that no further delivery can help; a router nacks when they return an error.
//
// It returns false, and does nothing, if msg does not come from a Subscriber, whatever its context is derived from. It
// is safe for concurrent use; the last call before the Nack counts.
func DeadOnNack(msg *message.Message, reason error) bool {
	d := consume.Of(msg)
	if d == nil {
		return false
	}
	text := "no reason given"
	if reason != nil {
		text = reason.Error()
	}
	d.DieWith(text)
	return true
}
