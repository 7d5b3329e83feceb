package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// failures has the number of times that the bank fails, by customer.
var failures = map[string]int{"Ann": 0, "Ben": 2, "Eve": maxDeliveries}

var errBank = errors.New("the bank does not answer (made up, to show retries)")

// charges handles the charges. With MaxInFlight 1, the default, it handles one at a time. A charge
// that waits for its retry does not count.
type charges struct {
	timeline example.Timeline
	done     func()
	failedAt map[string]time.Time // last failure by customer
	charged  []string
	givenUp  []string
}

func newCharges(done func()) *charges {
	return &charges{timeline: example.NewTimeline(), done: done, failedAt: map[string]time.Time{}}
}

func (c *charges) publish(publisher message.Publisher) error {
	var messages []*message.Message
	for _, customer := range []string{"Eve", "Ben", "Ann"} {
		messages = append(messages, message.NewMessage(watermill.NewUUID(), []byte(customer)))
	}
	return publisher.Publish(topic, messages...)
}

// handle charges a customer. After an error it is tried again; DelayOnError sets the delay.
func (c *charges) handle(msg *message.Message) error {
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	if !ok {
		return errors.New("the message is not from a redisdelay.Subscriber")
	}
	customer := string(msg.Payload)
	waited := ""
	if at, failed := c.failedAt[customer]; failed {
		waited = fmt.Sprintf(" after %d ms", time.Since(at).Milliseconds())
	}

	if delivery.Number <= failures[customer] {
		c.timeline.Printf("%s: delivery %d%s: failed", customer, delivery.Number, waited)
		c.failedAt[customer] = time.Now()
		if delivery.Number == maxDeliveries {
			c.givenUp = append(c.givenUp, customer)
			c.finish()
		}
		return errBank
	}
	c.timeline.Printf("%s: delivery %d%s: charged", customer, delivery.Number, waited)
	c.charged = append(c.charged, customer)
	c.finish()
	return nil
}

// finish ends the router after the last charge. The result of the present handler still counts.
func (c *charges) finish() {
	if len(c.charged)+len(c.givenUp) == len(failures) {
		c.done()
	}
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (c *charges) summary(why error) error {
	fmt.Printf("\nCharged: %v. Given up: %v.\n", c.charged, c.givenUp)
	if why != nil {
		return fmt.Errorf("%d charges are missing: %w", len(failures)-len(c.charged)-len(c.givenUp), why)
	}
	return nil
}
