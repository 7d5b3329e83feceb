package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// orders is how many orders there are. The bank is down for the second one twice, and the fifth one
// has a card that it never takes.
const orders = 8

const downFor, wrongCard = "order 2", "order 5"

// shop has the handlers.
type shop struct {
	tell example.Timeline
	done func()

	mu      sync.Mutex
	charged []string             // in the order in which they were
	tries   map[string][]tried   // by order
	audited map[string]int       // by order
	dead    map[string]string    // reason, by order
	ids     map[string]time.Time // relay IDs that came
}

type tried struct {
	at   time.Time
	fail bool
}

func newShop(done func()) *shop {
	return &shop{
		tell: example.NewTimeline(), done: done,
		tries: map[string][]tried{}, audited: map[string]int{}, dead: map[string]string{}, ids: map[string]time.Time{},
	}
}

// charge is the handler that fails.
func (s *shop) charge(msg *message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := string(msg.Payload)
	if id := msg.Metadata.Get(relay.IDKey); id != "" {
		if _, came := s.ids[id]; came {
			return nil // a duplicate
		}
		s.ids[id] = time.Now()
	}
	var err error
	switch {
	case order == downFor && len(s.tries[order]) < 2:
		err = errors.New("the bank is down")
	case order == wrongCard:
		err = errors.New("the bank does not know the card")
	}
	s.tries[order] = append(s.tries[order], tried{time.Now(), err != nil})
	if err != nil {
		s.tell.Printf("charge: %s fails: %v", order, err)
		return err
	}
	s.tell.Printf("charge: %s is charged", order)
	s.charged = append(s.charged, order)
	s.ended()
	return nil
}

// audit is a handler of another group, which never fails.
func (s *shop) audit(msg *message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audited[string(msg.Payload)]++
	s.ended()
	return nil
}

// bury is the handler of the topic of dead messages.
func (s *shop) bury(msg *message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := msg.Metadata.Get("reason_poisoned")
	s.dead[string(msg.Payload)] = reason
	s.tell.Printf("dead: %s: %s", msg.Payload, reason)
	s.ended()
	return nil
}

// ended calls done when each order is charged or dead, and audited.
func (s *shop) ended() {
	if len(s.charged)+len(s.dead) == orders && len(s.audited) == orders {
		s.done()
	}
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (s *shop) summary(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("\n%d orders are charged, %d dead. Tries of %s: %d, of %s: %d.\n",
		len(s.charged), len(s.dead), downFor, len(s.tries[downFor]), wrongCard, len(s.tries[wrongCard]))
	if why != nil {
		return fmt.Errorf("not all orders are handled: %w", why)
	}
	if s.charged[len(s.charged)-1] != downFor {
		return fmt.Errorf("orders waited for %s: %q", downFor, s.charged)
	}
	if behind := slices.Delete(slices.Clone(s.charged), orders-2, orders-1); !slices.IsSorted(behind) {
		return fmt.Errorf("the order of the partition is lost: %q", s.charged)
	}
	for order, tries := range s.tries {
		for i, wait := 1, firstWait; i < len(tries); i, wait = i+1, 2*wait {
			if gap := tries[i].at.Sub(tries[i-1].at); gap < wait {
				return fmt.Errorf("%s came back after %v, before its wait of %v", order, gap, wait)
			}
		}
	}
	for order, times := range s.audited {
		if times != 1 {
			return fmt.Errorf("%s was audited %d times", order, times)
		}
	}
	return nil
}
