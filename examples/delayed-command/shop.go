package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// shop stands in for the mail, and knows which customers were not asked yet.
type shop struct {
	commands *cqrs.CommandBus
	timeline example.Timeline
	done     func()

	mu    sync.Mutex
	toAsk map[string]bool // orders whose customers were not asked yet
	asked int
}

func newShop(commands *cqrs.CommandBus, done func()) *shop {
	return &shop{commands: commands, timeline: example.NewTimeline(), done: done, toAsk: map[string]bool{}}
}

func (s *shop) placed(order OrderPlaced) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.toAsk[order.OrderID] = true
	s.timeline.Printf("order %s placed by %s", order.OrderID, order.Customer.Name)
}

// onSendFeedbackForm handles the command.
func (s *shop) onSendFeedbackForm(_ context.Context, cmd *SendFeedbackForm) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeline.Printf("order %s to %s: Hello %s! How did you like it? Let us know!", cmd.OrderID, cmd.To, cmd.Name)
	s.asked++
	if delete(s.toAsk, cmd.OrderID); len(s.toAsk) == 0 {
		s.done()
	}
	return nil
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (s *shop) summary(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("\n%d customers asked, %d not.\n", s.asked, len(s.toAsk))
	switch {
	case why != nil:
		return fmt.Errorf("%d customers were not asked: %w", len(s.toAsk), why)
	case s.asked != 3:
		return errors.New("a customer was asked twice")
	}
	return nil
}
