package redisdelay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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

type deliveryKey struct{}

// DeliveryFromContext returns the Delivery of the message that ctx is the context of, or that the
// context is derived from. ok is false if there is none.
func DeliveryFromContext(ctx context.Context) (d Delivery, ok bool) {
	found, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return Delivery{}, false
	}
	return found.describe(), true
}

// deliveryOf is the delivery of msg, or nil: what was made while another was handled, with its context, has none.
func deliveryOf(msg *message.Message) *delivery {
	d, ok := msg.Context().Value(deliveryKey{}).(*delivery)
	if ok && d.isOf(msg) {
		return d
	}
	return nil
}

// isOf tells whether msg is the message of the delivery, whose UUID is the consumer's to change; or a copy that may stand for
// it. Messages without UUID cannot be told from copies.
func (d *delivery) isOf(msg *message.Message) bool {
	return d.msg == msg || d.uuid != "" && d.uuid == msg.UUID
}

// DeadOnNack makes the Nack of msg, which is being delivered, its last: the message is dead-lettered then, however
// many deliveries it has left, and reason is kept with it, about a kilobyte of it; it may be nil. An Ack settles it as
// ever. For handlers that find out that no further delivery can help; a router nacks when they return an error.
//
// It returns false, and does nothing, if msg does not come from a Subscriber, whatever its context is derived from. It
// is safe for concurrent use; the last call before the Nack counts.
func DeadOnNack(msg *message.Message, reason error) bool {
	d := deliveryOf(msg)
	if d == nil {
		return false
	}
	said := "no reason given"
	if reason != nil {
		said = reason.Error()
	}
	d.hopeless.Store(&said)
	return true
}
