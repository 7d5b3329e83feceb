package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/relay"
)

// customer handles and counts the reminders.
type customer struct {
	expected int // set before the first message
	done     func()

	mu    sync.Mutex
	times map[string]int  // by UUID
	ids   map[string]bool // relay IDs of handled messages
	early int
}

// remind is the router's handler.
func (c *customer) remind(msg *message.Message) error {
	notBefore, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get("not_before"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := msg.Metadata.Get(relay.IDKey)
	if c.ids[id] {
		return nil // a duplicate
	}
	if id != "" {
		c.ids[id] = true
	}
	late := time.Since(notBefore)
	fmt.Printf("%s  %6.1f ms late  %s\n", time.Now().Format("15:04:05.000"), float64(late.Microseconds())/1000, msg.Payload)
	if late < 0 {
		c.early++
	}
	if c.times[msg.UUID]++; len(c.times) == c.expected {
		c.done()
	}
	return nil
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (c *customer) summary(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("\n%d reminders came, %d of them through Redis; early: %d.\n", len(c.times), len(c.ids), c.early)
	switch {
	case c.early > 0:
		return fmt.Errorf("%d reminders came early", c.early)
	case len(c.times) < c.expected:
		return fmt.Errorf("%d reminders did not come: %w", c.expected-len(c.times), why)
	case len(c.ids) != c.expected-1:
		return errors.New("the reminders with a delay did not come from Redis")
	}
	return nil
}
