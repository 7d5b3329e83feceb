package redisdelay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// delivery is a claimed message on its way to the consumer, or with it. It is the parent of the message's
// context, which has the values of Subscribe's context and the delivery.
type delivery struct {
	context.Context // Subscribe's, without its end

	leased
	of       *subscription
	taken    time.Time // by handOut
	handed   time.Time // to the consumer; zero: not yet
	limit    int       // deliveries at most; negative: no limit
	place    int       // in hand
	watched  bool      // handOut is woken when the consumer settles it
	tooLate  time.Time // by the server's clock: from when on it is not to be handed over; zero: never
	onExpiry OnExpiry  // what happens then
	delayID  string    // that it had while it waited

	msg    *message.Message
	uuid   string                 // of msg, which is the consumer's to change
	said   atomic.Pointer[string] // the error of the handler, if KeepError kept it
	ctx    context.Context        // the message's
	cancel context.CancelCauseFunc

	// What its own metadata said of a Backoff as it came, or the Subscriber's: for when its handler may still write there.
	backoff func(delivery int) time.Duration

	hopeless atomic.Pointer[string] // why a Nack is the last, if it is
}

// Value is context.Context's.
func (d *delivery) Value(key any) any {
	if key == (deliveryKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// number counts the deliveries, as Delivery does.
func (d *delivery) number() int { return d.Deliveries + 1 }

// describe is what the consumer is told of the delivery.
func (d *delivery) describe() Delivery {
	return Delivery{
		ID:          d.ID,
		DelayID:     d.delayID,
		Topic:       d.of.topic.Name,
		Group:       d.of.group.Name,
		Number:      d.number(),
		Redelivered: d.Delivered,
		DueAt:       d.Due,
	}
}

// begin takes a message in hand, with the context that the consumer gets. s.mu is held.
func (s *subscription) begin(m leased) *delivery {
	d := &delivery{
		Context: s.values,
		leased:  m,
		of:      s,
		taken:   time.Now(),
		limit:   s.config.MaxDeliveries,
	}
	d.ctx, d.cancel = context.WithCancelCause(d)
	s.inHand.add(d)
	return d
}

// hand is the deliveries that the consumer has, or is offered, in no order.
type hand []*delivery

func (h *hand) add(d *delivery) {
	d.place = len(*h)
	*h = append(*h, d)
}

func (h hand) has(d *delivery) bool {
	return d.place < len(h) && h[d.place] == d
}

// remove returns false if the delivery is not in hand.
func (h *hand) remove(d *delivery) bool {
	if !h.has(d) {
		return false
	}
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[d.place], moved.place = moved, d.place
	(*h)[last] = nil
	*h = (*h)[:last]
	return true
}
