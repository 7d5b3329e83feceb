package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

type status string

const (
	unpaid    status = "unpaid"
	paid      status = "paid"
	cancelled status = "cancelled"
)

// shop has the orders. A real shop has them in a database, where each change below is one
// transaction. Two handlers may use the same order at the same time.
type shop struct {
	publisher message.Publisher
	timeline  example.Timeline
	done      func()

	mu       sync.Mutex
	orders   map[string]status
	refunded map[string]bool
	toCome   map[string]bool // messages not handled yet
}

func newShop(publisher message.Publisher, done func()) *shop {
	return &shop{
		publisher: publisher,
		timeline:  example.NewTimeline(),
		done:      done,
		orders:    map[string]status{},
		refunded:  map[string]bool{},
		toCome:    map[string]bool{},
	}
}

// open places orders and acts for their customers: two pay in time, one does not pay, one pays too
// late.
func (s *shop) open() error {
	for _, id := range []string{"A-1", "A-2", "A-3", "A-4"} {
		if err := s.place(id); err != nil {
			return err
		}
	}
	for id, after := range map[string]time.Duration{
		"A-1": timeToPay / 4, "A-3": timeToPay / 2, "A-4": timeToPay * 3 / 2,
	} {
		if err := s.publish(paymentsTopic, id, after); err != nil {
			return err
		}
	}
	return nil
}

// place stores an order, then publishes the message about it. In this order, the handler always
// finds the order.
func (s *shop) place(id string) error {
	s.mu.Lock()
	s.orders[id] = unpaid
	s.mu.Unlock()
	s.timeline.Printf("%s placed, to be paid within %v", id, timeToPay)
	return s.publish(timeoutsTopic, id, timeToPay)
}

// publish publishes a message about an order that is due after a delay.
func (s *shop) publish(topic, id string, after time.Duration) error {
	s.mu.Lock()
	s.toCome[topic+" "+id] = true
	s.mu.Unlock()
	msg := message.NewMessage(watermill.NewUUID(), []byte(id))
	redisdelay.DelayFor(msg, after)
	return s.publisher.Publish(topic, msg)
}

// onTimeout handles the end of the time to pay. Like every handler, it may get a message twice. The
// second time has no effect, because a cancelled order is no longer unpaid.
func (s *shop) onTimeout(msg *message.Message) error {
	id := string(msg.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.orders[id] {
	case unpaid:
		s.orders[id] = cancelled
		s.timeline.Printf("%s not paid in time: cancelled", id)
	case paid:
		s.timeline.Printf("%s is paid: nothing to do", id)
	case cancelled:
		// a second delivery
	default:
		return fmt.Errorf("there is no order %q", id) // delivered again, after Backoff
	}
	s.handled(timeoutsTopic, id)
	return nil
}

// onPayment handles a payment, which may be too late.
func (s *shop) onPayment(msg *message.Message) error {
	id := string(msg.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.orders[id] {
	case unpaid:
		s.orders[id] = paid
		s.timeline.Printf("%s paid", id)
	case cancelled:
		s.refunded[id] = true
		s.timeline.Printf("%s paid too late: money back", id)
	case paid:
		// a second delivery
	default:
		return fmt.Errorf("there is no order %q", id)
	}
	s.handled(paymentsTopic, id)
	return nil
}

// handled records a handled message, and ends the example after the last. s.mu is held.
func (s *shop) handled(topic, id string) {
	delete(s.toCome, topic+" "+id)
	if len(s.toCome) == 0 {
		s.done()
	}
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (s *shop) summary(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[status]int{}
	for _, status := range s.orders {
		count[status]++
	}
	fmt.Printf("\n%d orders: %d paid, %d cancelled; %d paid too late and got their money back.\n",
		len(s.orders), count[paid], count[cancelled], len(s.refunded))
	switch {
	case why != nil:
		return fmt.Errorf("%d messages did not come: %w", len(s.toCome), why)
	case count[paid] != 2 || count[cancelled] != 2 || !s.refunded["A-4"]:
		return fmt.Errorf("wrong: %v", s.orders)
	}
	return nil
}
