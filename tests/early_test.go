package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestMessagesWithRandomDelaysAreNeverEarlyAndNeverLost(t *testing.T) {
	t.Parallel()
	for _, groups := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d groups", groups), func(t *testing.T) {
			t.Parallel()
			testRandomDelays(t, groups)
		})
	}
}

func testRandomDelays(t *testing.T, groups int) {
	const publishers, subscribers, messages = 4, 3, 2000
	server := redistest.Start(t) // on this machine, so that its clock is time.Now
	client := server.Client(t)
	expectDrained(t, client, redisdelay.DefaultKeyPrefix)

	received := make([]*receipts, groups)
	for g := range groups {
		received[g] = newReceipts()
		for range subscribers {
			received[g].ackAll(subscribe(t, server.Client(t), redisdelay.DefaultKeyPrefix, func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup = fmt.Sprintf("group-%d", g)
				c.MaxInFlight = 10
			}))
		}
	}

	var (
		mu       sync.Mutex
		earliest = map[string]time.Time{} // by UUID: when Publish was called, and the delay
		wg       sync.WaitGroup
	)
	for p := range publishers {
		publisher := newPublisher(t, server.Client(t), redisdelay.DefaultKeyPrefix)
		wg.Go(func() {
			for n := 0; n < messages/publishers; {
				batch := make([]*message.Message, min(1+rand.IntN(25), messages/publishers-n))
				before := time.Now()
				mu.Lock()
				for i := range batch {
					delay := time.Duration(rand.Int64N(int64(2 * time.Second)))
					batch[i] = message.NewMessage(fmt.Sprintf("%d-%d", p, n), nil)
					redisdelay.DelayFor(batch[i], delay)
					earliest[batch[i].UUID] = before.Add(delay)
					n++
				}
				mu.Unlock()
				if !assert.NoError(t, publisher.Publish(topic, batch...)) {
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, earliest, messages)

	for g := range groups {
		late := make([]time.Duration, 0, messages)
		for uuid, r := range received[g].await(t, messages) {
			require.False(t, r.delivery.DueAt.Before(earliest[uuid]),
				"message %s is due %v before its delay is over", uuid, earliest[uuid].Sub(r.delivery.DueAt))
			require.False(t, r.at.Before(r.delivery.DueAt),
				"message %s came %v early", uuid, r.delivery.DueAt.Sub(r.at))
			late = append(late, r.at.Sub(r.delivery.DueAt))
		}
		slices.Sort(late)
		t.Logf("group %d of %d: %d messages, late by p50 %v, p99 %v, max %v", g+1, groups,
			messages, late[messages/2], late[messages*99/100], late[messages-1])
		require.Less(t, late[messages/2], 50*time.Millisecond, "half of them come late, by far more than a busy machine explains")
	}
}

// What the tests of this package have in common.

// topic is what the tests publish to: each has a server or a key prefix of its own.
const topic = "orders"

// patience is how long the tests wait for what has to happen.
const patience = 30 * time.Second

// prompt is how late a message may be that somebody is there to deliver: far more than it takes, for
// the sake of busy machines, and far less than the poll that covers lost wake-ups.
const prompt = 2500 * time.Millisecond

func newPublisher(t testing.TB, client redis.UniversalClient, prefix string) *redisdelay.Publisher {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, KeyPrefix: prefix}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	return publisher
}

// newSubscriber has defaults but for what change sets, and is closed when the test ends.
func newSubscriber(t testing.TB, client redis.UniversalClient, prefix string, change func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{Client: client, KeyPrefix: prefix}
	if change != nil {
		change(&config)
	}
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, subscriber.Close()) })
	return subscriber
}

func subscribe(t testing.TB, client redis.UniversalClient, prefix string, change func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	messages, err := newSubscriber(t, client, prefix, change).Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return messages
}

// publish publishes one message, delayed if the delay is not zero.
func publish(t testing.TB, publisher *redisdelay.Publisher, uuid string, delay time.Duration) {
	t.Helper()
	require.NoError(t, publisher.Publish(topic, newMessage(uuid, delay)))
}

func newMessage(uuid string, delay time.Duration) *message.Message {
	msg := message.NewMessage(uuid, nil)
	if delay != 0 {
		redisdelay.DelayFor(msg, delay)
	}
	return msg
}

// receive returns the next message, and what is known of its delivery.
func receive(t testing.TB, messages <-chan *message.Message) (*message.Message, redisdelay.Delivery) {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "the subscription has ended")
		return msg, deliveryOf(t, msg)
	case <-time.After(patience):
		require.FailNow(t, "no message")
		return nil, redisdelay.Delivery{}
	}
}

func deliveryOf(t testing.TB, msg *message.Message) redisdelay.Delivery {
	t.Helper()
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok)
	return delivery
}

// receipts are the messages that the subscriptions of one group got.
type receipts struct {
	mu     sync.Mutex
	all    map[string]receipt // by UUID
	twice  []string
	change chan struct{}
}

type receipt struct {
	at       time.Time
	delivery redisdelay.Delivery
}

func newReceipts() *receipts {
	return &receipts{all: map[string]receipt{}, change: make(chan struct{}, 1)}
}

// ackAll takes everything that a subscription brings, until it is closed.
func (r *receipts) ackAll(messages <-chan *message.Message) {
	go func() {
		for msg := range messages {
			at := time.Now()
			delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
			r.mu.Lock()
			if _, known := r.all[msg.UUID]; known {
				r.twice = append(r.twice, msg.UUID)
			}
			r.all[msg.UUID] = receipt{at, delivery}
			r.mu.Unlock()
			msg.Ack()
			select {
			case r.change <- struct{}{}:
			default:
			}
		}
	}()
}

// await waits for so many different messages. None may have come twice.
func (r *receipts) await(t testing.TB, n int) map[string]receipt {
	t.Helper()
	deadline := time.After(2 * patience)
	for {
		r.mu.Lock()
		got, twice := len(r.all), r.twice
		r.mu.Unlock()
		require.Empty(t, twice, "delivered twice")
		if got == n {
			return r.all
		}
		require.Less(t, got, n)
		select {
		case <-r.change:
		case <-deadline:
			require.FailNow(t, "messages are missing", "%d of %d came", got, n)
		}
	}
}

// expectDrained checks, when everything that the test opens after it is closed, that every message is
// settled and has left nothing behind.
func expectDrained(t testing.TB, client redis.UniversalClient, prefix string, options ...queuetest.Option) {
	t.Cleanup(func() {
		if !t.Failed() {
			queuetest.CheckDrained(t, client, prefix, options...)
		}
	})
}
