package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// failsOnce is the order that cannot be shipped at first.
const failsOnce = "4"

var errNoVan = errors.New("there is no van (made up, to show a retry)")

// book records the work of the services. In reality each service has a separate one.
type book struct {
	timeline example.Timeline
	done     func()

	mu              sync.Mutex
	billed, shipped map[string]int // by order
}

func newBook(done func()) *book {
	return &book{timeline: example.NewTimeline(), done: done, billed: map[string]int{}, shipped: map[string]int{}}
}

func (b *book) bill(worker string, msg *message.Message) error {
	b.enter(b.billed, worker, "billed", string(msg.Payload))
	return nil
}

func (b *book) ship(worker string, msg *message.Message) error {
	order := string(msg.Payload)
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	if !ok {
		return errors.New("the message is not from a redisdelay.Subscriber")
	}
	if order == failsOnce && delivery.Number == 1 {
		b.timeline.Printf("%-11s order %s not shipped: no van", worker, order)
		return errNoVan
	}
	b.enter(b.shipped, worker, "shipped", order)
	return nil
}

func (b *book) enter(page map[string]int, worker, what, order string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	page[order]++
	b.timeline.Printf("%-11s order %s %s", worker, order, what)
	if len(b.billed) == orders && len(b.shipped) == orders {
		b.done()
	}
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// services ended, nil if all was done.
func (b *book) summary(why error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Printf("\nOf %d orders, %d billed and %d shipped.\n", orders, len(b.billed), len(b.shipped))
	if why != nil {
		return fmt.Errorf("not all was done: %w", why)
	}
	for order, times := range b.billed {
		if times != 1 || b.shipped[order] != 1 {
			return fmt.Errorf("order %s was billed %d times and shipped %d times", order, times, b.shipped[order])
		}
	}
	return nil
}
