package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// failsOnce is the timeout of the order whose handling fails at first, to show a retry.
const failsOnce = time.Second

var errShop = errors.New("the shop does not answer (made up, to show a retry)")

// tally handles and counts the timeouts. With MaxInFlight 1, the default, only one handler runs at
// a time.
type tally struct {
	client redis.UniversalClient
	left   int // orders not handled yet
	done   func()

	deliveries, retries, early int
	latest                     time.Duration
}

// handle is the router's handler. After an error the message is delivered again, after Backoff.
func (t *tally) handle(msg *message.Message) error {
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	if !ok {
		return errors.New("the message is not from a redisdelay.Subscriber")
	}
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return err
	}
	now, err := t.client.Time(msg.Context()).Result() // the clock by which messages are due
	if err != nil {
		return fmt.Errorf("ask Redis for its time: %w", err)
	}
	t.count(o, delivery, now)

	if o.PayIn == failsOnce && delivery.Number == 1 {
		return errShop
	}
	// A real shop would cancel the order here unless it is paid.
	if t.left--; t.left == 0 {
		t.done()
	}
	return nil
}

func (t *tally) count(o order, delivery redisdelay.Delivery, now time.Time) {
	late := now.Sub(delivery.DueAt)
	fmt.Printf("%s  %6.1f ms late  %s    %-7v  %d\n", delivery.DueAt.Format("15:04:05.000"),
		float64(late.Microseconds())/1000, o.ID, o.PayIn, delivery.Number)

	t.deliveries++
	if delivery.Redelivered {
		t.retries++
	}
	if late < 0 || now.Before(o.PlacedAt.Add(o.PayIn)) {
		t.early++
	}
	t.latest = max(t.latest, late)
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (t *tally) summary(why error) error {
	fmt.Printf("\n%d deliveries, %d of them retries; early: %d; the latest came %.1f ms after it was due.\n",
		t.deliveries, t.retries, t.early, float64(t.latest.Microseconds())/1000)
	switch {
	case t.early > 0:
		return fmt.Errorf("%d messages came early", t.early)
	case t.left > 0:
		return fmt.Errorf("%d orders were not handled: %w", t.left, why)
	case t.retries == 0:
		return errors.New("the order that failed was not delivered again")
	}
	return nil
}
