// Package testkit has helpers for the tests of several packages. Its publishers, subscribers and
// schedulers end with their test. It waits with a limit, and reads the state of a topic in Redis.
// Package redistest gives the servers.
package testkit

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const (
	// Soon is the longest that a test waits for anything, on a slow machine too.
	Soon = 30 * time.Second

	// Never is longer than any test.
	Never = time.Hour

	// tick is how often Eventually looks.
	tick = 2 * time.Millisecond
)

// TB is the part of a test that the helpers need. A *testing.T, a *testing.B and a *rapid.T have
// it.
type TB interface {
	require.TestingT
	Helper()
	Cleanup(func())
	Failed() bool
}

var ctx = context.Background()

// Both runs a test on an embedded and on the real server, in parallel with others, and checks what
// it leaves in Redis.
func Both(t *testing.T, test func(t *testing.T, s redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		test(t, s)
	})
}

// Drained checks, when all that the test uses is closed, that every message is settled and has left
// nothing behind. A test that has failed is not checked.
func Drained(t testing.TB, s redistest.Server, options ...queuetest.Option) {
	s.OnCleanup(func() {
		if !t.Failed() {
			queuetest.CheckDrained(t, s.Client, s.Prefix, options...)
		}
	})
}

// NewPublisher returns a Publisher that is closed with the test.
func NewPublisher(t TB, s redistest.Server, change ...func(*redisdelay.PublisherConfig)) *redisdelay.Publisher {
	t.Helper()
	config := redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}
	for _, f := range change {
		f(&config)
	}
	p, err := redisdelay.NewPublisher(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// NewSubscriber returns a Subscriber that is closed with the test. Its group opens no takeover
// window, so that a message is gone from Redis once the groups are done with it.
func NewSubscriber(t TB, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	return NewLoggingSubscriber(t, s, nil, change...)
}

// NewLoggingSubscriber is NewSubscriber with a logger.
func NewLoggingSubscriber(t TB, s redistest.Server, logger watermill.LoggerAdapter, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, TakeoverWindow: -1}
	for _, f := range change {
		f(&config)
	}
	sub, err := redisdelay.NewSubscriber(config, logger)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// AtOnce has a nacked message come again without a delay.
func AtOnce(c *redisdelay.SubscriberConfig) { c.Backoff = func(int) time.Duration { return 0 } }

// Closes checks that Close returns no error when the test ends, and returns what it was given.
func Closes[C io.Closer](t TB, c C) C {
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// SubscribeTo subscribes until the Subscriber is closed.
func SubscribeTo(t TB, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	return messages
}

// RunScheduler runs a scheduler until stop is called or the test ends.
func RunScheduler(t TB, config scheduler.Config) (stop func()) {
	t.Helper()
	s, err := scheduler.New(config, nil)
	require.NoError(t, err)
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(running)
		close(ended)
	}()
	stop = func() {
		cancel()
		require.NoError(t, Wait(t, ended, "the end of the scheduler"))
	}
	t.Cleanup(stop)
	return stop
}

// Delay delays a message, and returns it.
func Delay(msg *message.Message, d time.Duration) *message.Message {
	redisdelay.DelayFor(msg, d)
	return msg
}

// Publish publishes in one call.
func Publish(t TB, p message.Publisher, topic string, messages ...*message.Message) {
	t.Helper()
	require.NoError(t, p.Publish(topic, messages...))
}

// Receive returns the next message.
func Receive(t TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	msg := Wait(t, messages, "a message")
	require.NotNil(t, msg, "the channel was closed")
	return msg
}

// Consume receives and acks n messages, and returns their payloads.
func Consume(t TB, messages <-chan *message.Message, n int) []string {
	t.Helper()
	payloads := make([]string, 0, n)
	for range n {
		msg := Receive(t, messages)
		payloads = append(payloads, string(msg.Payload))
		require.True(t, msg.Ack())
	}
	return payloads
}

// DeliveryOf returns the Delivery in the message's context.
func DeliveryOf(t TB, msg *message.Message) redisdelay.Delivery {
	t.Helper()
	d, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok, "the message's context has no Delivery")
	return d
}

// Wait returns what comes next on a channel, or the zero value when it is closed.
func Wait[T any](t TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Soon):
		require.FailNow(t, "timeout waiting for "+what)
	}
	return v
}

// Begin runs f in a goroutine, and returns the channel on which its result comes.
func Begin[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

// Eventually waits until a condition is met.
func Eventually(t TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, Soon, tick, what)
}

// State counts what a topic has in Redis for one group.
type State struct{ Bodies, Waiting, Ready, InHand, Retrying, Dead int64 }

// StateOf returns the state of a topic at one moment.
func StateOf(t TB, s redistest.Server, topic, group string) State {
	t.Helper()
	k := queue.NewKeys(s.Prefix, topic)
	p := s.Client.TxPipeline()
	counts := []*redis.IntCmd{
		p.HLen(ctx, k.Messages()), p.ZCard(ctx, k.Pending()), p.LLen(ctx, k.Ready(group)),
		p.ZCard(ctx, k.Unack(group)), p.ZCard(ctx, k.Retry(group)), p.ZCard(ctx, k.Dead(group)),
	}
	_, err := p.Exec(ctx)
	require.NoError(t, err)
	n := func(i int) int64 { return counts[i].Val() }
	return State{n(0), n(1), n(2), n(3), n(4), n(5)}
}

// AwaitEmpty waits until no message of a topic is left.
func AwaitEmpty(t TB, s redistest.Server, topic string) {
	t.Helper()
	messages := queue.NewKeys(s.Prefix, topic).Messages()
	Eventually(t, func() bool {
		n, err := s.Client.Exists(ctx, messages).Result()
		return err == nil && n == 0
	}, "all messages are settled")
}

// Unreachable returns a client of a server that refuses each connection, and how many it has
// refused. It is for a synctest bubble.
func Unreachable(t TB) (client *redis.Client, refused *atomic.Int32) {
	refused = new(atomic.Int32)
	client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		refused.Add(1)
		return nil, errors.New("connection refused")
	}})
	t.Cleanup(func() {
		_ = client.Close()
		time.Sleep(time.Minute) // until all that the client has begun has ended
	})
	return client, refused
}

// LookNow has all processes look at the server's clock, because they sleep by their own clocks.
func LookNow(t TB, s redistest.Server) {
	t.Helper()
	mailboxes, err := s.Client.PubSubChannels(ctx, queue.MailboxChannel(s.Prefix, "*")).Result()
	require.NoError(t, err)
	for _, mailbox := range mailboxes {
		require.NoError(t, s.Client.Publish(ctx, mailbox, "*").Err())
	}
}
