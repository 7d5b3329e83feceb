package redisdelay

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// delivery is a claimed message on its way to the consumer, or with it, and the message's context.
type delivery struct {
	leased
	of      *subscription
	taken   time.Time // by handOut
	handed  time.Time // to the consumer; zero: not yet
	limit   int       // deliveries at most; negative: no limit
	place   int       // in hand
	watched bool      // handOut is to be woken when the consumer settles it, even while it offers another
	toDead  bool      // it is dead-lettered when it is too late, and else dropped
	tooLate time.Time // by the server's clock: from when on it is not to be handed over; zero: never
	delayID string    // that it had while it waited

	msg    *message.Message
	uuid   string                 // of msg, which is the consumer's to change
	said   atomic.Pointer[string] // the error of the handler, if KeepError kept it
	ending ending                 // as those see it who have the context

	// What its own metadata said of a Backoff as it came, or the Subscriber's: for when its handler may still write there.
	backoff func(delivery int) time.Duration

	hopeless atomic.Pointer[string] // why a Nack is the last, if it is
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

// begin takes a message in hand. s.mu is held.
func (s *subscription) begin(m leased, now time.Time) *delivery {
	d := &delivery{
		leased: m,
		of:     s,
		taken:  now,
		limit:  s.config.MaxDeliveries,

		watched: s.pace.mean > soon.Seconds(),
		backoff: s.config.Backoff,
	}
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
