package redisdelay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// delivery is a claimed message on its way to the consumer, or with it. It is the parent of the message's
// context, which has the values of Subscribe's context and the delivery.
type delivery struct {
	context.Context // Subscribe's, without its end

	queue.Leased
	of       *subscription
	sequence uint64    // by which deliveries are in order
	claimed  time.Time // when the claim was answered
	deadline time.Time // until when the lease holds at least
	taken    time.Time // by handOut
	handed   time.Time // to the consumer; zero: not yet
	limit    int       // deliveries at most; negative: no limit
	place    int       // in hand
	tooLate  time.Time // by the server's clock: from when on it is not to be handed over; zero: never
	onExpiry OnExpiry  // what happens then
	delayID  string    // that it had while it waited

	msg    *message.Message
	uuid   string                 // of msg, which is the consumer's to change
	said   atomic.Pointer[string] // the error of the handler, if KeepError kept it
	ctx    context.Context        // nil until begin, as is cancel
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

// newDelivery is made from what a claim brought. s.mu is held.
func (s *subscription) newDelivery(m queue.Leased, sent, now time.Time) *delivery {
	return &delivery{
		Context:  s.values,
		Leased:   m,
		of:       s,
		sequence: s.sequence,
		claimed:  now,
		deadline: sent.Add(s.config.LeaseDuration),
		limit:    s.config.MaxDeliveries,
	}
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

// begin puts a delivery in hand, with the context that the consumer gets. s.mu is held.
func (s *subscription) begin(d *delivery) {
	d.ctx, d.cancel = context.WithCancelCause(d)
	d.taken = time.Now()
	s.inHand.add(d)
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
