package tests

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// topic is what the tests publish to: each has a server or a key prefix of its own.
const topic = "orders"

// patience is how long the tests wait for what has to happen.
const patience = testkit.Soon

// prompt is how late a message may be that somebody is there to deliver: far more than it takes,
// for the sake of busy machines, and far less than the poll that covers lost wake-ups.
const prompt = 2500 * time.Millisecond

// The names that the tests call the kit by.
var (
	expectDrained = testkit.Drained
	subscribeTo   = testkit.SubscribeTo
	deliveryOf    = testkit.DeliveryOf
	runScheduler  = testkit.RunScheduler
	newRouter     = testkit.NewRouter
	start         = testkit.StartRouter
	atOnce        = testkit.AtOnce
)

// on is a server that belongs to the test alone.
func on(t testing.TB, client redis.UniversalClient) redistest.Server {
	return redistest.On(t, client, redisdelay.DefaultKeyPrefix)
}

func newPublisher(t testing.TB, s redistest.Server) *redisdelay.Publisher {
	t.Helper()
	return testkit.Closes(t, testkit.NewPublisher(t, s))
}

// newSubscriber has the takeover window that every user gets.
func newSubscriber(t testing.TB, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	change = append([]func(*redisdelay.SubscriberConfig){func(c *redisdelay.SubscriberConfig) { c.TakeoverWindow = 0 }}, change...)
	return testkit.Closes(t, testkit.NewSubscriber(t, s, change...))
}

func subscribe(t testing.TB, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	return subscribeTo(t, newSubscriber(t, s, change...), topic)
}

// publish publishes one message, delayed if the delay is not zero.
func publish(t testing.TB, publisher message.Publisher, uuid string, delay time.Duration) {
	t.Helper()
	testkit.Publish(t, publisher, topic, newMessage(uuid, delay))
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
	msg := testkit.Receive(t, messages)
	return msg, deliveryOf(t, msg)
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

// soFar returns the messages that have come. None may have come twice.
func (r *receipts) soFar(t testing.TB) map[string]receipt {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.twice, "delivered twice")
	return maps.Clone(r.all)
}
