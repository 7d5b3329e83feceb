package redisdelay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// Delivery describes one delivery of a message to a consumer.
type Delivery struct {
	// ID is the message's own ID in Redis, a unique ULID. It is the same at each delivery to each
	// group.
	ID string

	// DelayID is the name that the publisher gave the message while it waited, or "": see
	// DelayIDKey. The name is free by now, unless it has a window (DelayIDWindowKey).
	DelayID string

	// Topic and Group are those of the subscription.
	Topic, Group string

	// Number counts the deliveries to this group that may use up MaxDeliveries, from 1. It stays
	// the same after Postpone, and after a lease ran out, unless the message had to be held alone:
	// see SubscriberConfig.LeaseDuration.
	Number int

	// Redelivered tells that the message was, or may have been, delivered to the group before.
	Redelivered bool

	// DueAt is when the message was due, by the clock of the Redis server. It is the end of its
	// delay, or of the delay of the last Nack that had one.
	DueAt time.Time

	// Epoch is a fencing token with SubscriberConfig.SingleActive, else 0. Each takeover gives a
	// higher one. What a handler writes elsewhere can refuse a lower epoch than the highest it has
	// seen. That is how a frozen process that wakes is kept from writing. Epochs are not
	// consecutive. A failover may lose the last takeover, so that the subscription before is active
	// again. It gets a higher epoch when the other's process next asks for messages. If that is
	// gone too, end the Subscribe whose writes are refused: the next one gets a higher epoch.
	Epoch int64
}

// DeliveryFromContext returns the Delivery of the message whose context is ctx, or a parent of ctx.
// ok is false if there is none.
func DeliveryFromContext(ctx context.Context) (d Delivery, ok bool) {
	found := consume.FromContext(ctx)
	if found == nil {
		return Delivery{}, false
	}
	return Delivery(found.Info()), true
}

// DeadOnNack has the next Nack of msg dead-letter it, however many deliveries it has left. About a
// kilobyte of reason is kept with it; reason may be nil. An Ack settles msg as ever. It is for
// handlers that find that no further delivery can help. A router nacks when they return an error.
//
// It returns false, and does nothing, if msg does not come from a Subscriber, whatever its context
// is derived from. It is safe for concurrent use. The last call of DeadOnNack or Postpone before
// the Nack counts.
func DeadOnNack(msg *message.Message, reason error) bool {
	d := consume.Of(msg)
	if d == nil {
		return false
	}
	text := "no reason given"
	if reason != nil {
		text = guard.Sound(reason).Error()
	}
	d.DieWith(text)
	return true
}
