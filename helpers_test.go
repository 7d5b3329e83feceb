package redisdelay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const (
	// soon is the time in which everything happens that happens, on a slow machine too.
	soon = 30 * time.Second

	// never is longer than any test.
	never = time.Hour

	tick = 5 * time.Millisecond
)

var ctx = context.Background()

// both runs a test on an embedded and on a real server, and checks what it leaves in Redis.
func both(t *testing.T, test func(t *testing.T, s redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		t.Cleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		test(t, s)
	})
}

// embedded gives a test a server whose clock it may set.
func embedded(t *testing.T) redistest.Server {
	t.Helper()
	t.Parallel()
	mini, client := redistest.Embedded(t)
	s := redistest.Server{Client: client, Prefix: "test", Mini: mini}
	t.Cleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
	return s
}

// private gives a test a server of its own, to be stopped or emptied. Calls to it fail fast.
func private(t *testing.T, args ...string) (redistest.Server, *redistest.Instance) {
	t.Helper()
	t.Parallel()
	in := redistest.Start(t, args...)
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	return redistest.Server{Client: client, Prefix: "test"}, in
}

// drained checks, when the test is over, that no message is left.
func drained(t *testing.T, s redistest.Server) {
	t.Cleanup(func() {
		if !t.Failed() { // else it was not consumed
			queuetest.CheckDrained(t, s.Client, s.Prefix)
		}
	})
}

// jump sets the clock of an embedded server ahead. It stands still from then on.
func jump(t *testing.T, s redistest.Server, d time.Duration) {
	s.Mini.SetTime(serverTime(t, s).Add(d))
}

func serverTime(t testing.TB, s redistest.Server) time.Time {
	t.Helper()
	now, err := s.Client.Time(ctx).Result()
	require.NoError(t, err)
	return now
}

// another is one more client of the server.
func another(t *testing.T, s redistest.Server) *redis.Client {
	return clientOf(t, s.Client.(*redis.Client).Options().Addr)
}

func clientOf(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newPublisher(t *testing.T, s redistest.Server, change ...func(*redisdelay.PublisherConfig)) *redisdelay.Publisher {
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

// newSubscriber returns one whose nacks have no delay.
func newSubscriber(t *testing.T, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	return newLoggingSubscriber(t, s, nil, change...)
}

func newLoggingSubscriber(t *testing.T, s redistest.Server, logger watermill.LoggerAdapter, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{
		Client:       s.Client,
		KeyPrefix:    s.Prefix,
		Backoff:      func(int) time.Duration { return 0 },
		CloseTimeout: 2 * time.Second,
	}
	for _, f := range change {
		f(&config)
	}
	sub, err := redisdelay.NewSubscriber(config, logger)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// subscribe subscribes a new Subscriber.
func subscribe(t *testing.T, s redistest.Server, topic string, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	return subscribeTo(t, newSubscriber(t, s, change...), topic)
}

func subscribeTo(t *testing.T, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	return messages
}

func inGroup(name string) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = name }
}

func inFlight(n int) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = n }
}

func leaseOf(d time.Duration) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.LeaseDuration = d }
}

func through(client redis.UniversalClient) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.Client = client }
}

func closingWithin(d time.Duration) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.CloseTimeout = d }
}

// register makes the default group exist, so that what is published is ready at once.
func register(t *testing.T, s redistest.Server, topic string, groups ...string) {
	t.Helper()
	if len(groups) == 0 {
		groups = []string{redisdelay.DefaultConsumerGroup}
	}
	for _, g := range groups {
		require.NoError(t, newSubscriber(t, s, inGroup(g)).SubscribeInitialize(topic))
	}
}

// text makes a message that is told by its payload.
func text(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), message.Payload(payload))
}

func delayed(payload string, d time.Duration) *message.Message {
	msg := text(payload)
	redisdelay.DelayFor(msg, d)
	return msg
}

// numbered returns the texts from to to-1.
func numbered(from, to int) []string {
	var texts []string
	for i := from; i < to; i++ {
		texts = append(texts, fmt.Sprintf("%04d", i))
	}
	return texts
}

func publish(t testing.TB, p message.Publisher, topic string, payloads ...string) {
	t.Helper()
	messages := make([]*message.Message, len(payloads))
	for i, payload := range payloads {
		messages[i] = text(payload)
	}
	require.NoError(t, p.Publish(topic, messages...))
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "the channel was closed")
		return msg
	case <-time.After(soon):
		require.FailNow(t, "no message came")
		return nil
	}
}

// consume receives and acks n messages, and returns their payloads.
func consume(t testing.TB, messages <-chan *message.Message, n int) []string {
	t.Helper()
	payloads := make([]string, 0, n)
	for range n {
		msg := receive(t, messages)
		payloads = append(payloads, string(msg.Payload))
		require.True(t, msg.Ack())
	}
	return payloads
}

// requireClosed waits for the end of the subscription, and lets no message come before it.
func requireClosed(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, open := <-messages:
		if open {
			require.FailNow(t, "a message came", "%s", msg.Payload)
		}
	case <-time.After(soon):
		require.FailNow(t, "the channel stays open")
	}
}

func wait[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		require.FailNow(t, "timeout waiting for "+what)
	}
	return v
}

// begin runs f on its own, and returns where its result comes.
func begin[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

// merged gives what comes on any of the channels.
func merged(t *testing.T, channels ...<-chan *message.Message) <-chan *message.Message {
	all := make(chan *message.Message)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	for _, c := range channels {
		go func() {
			for {
				select {
				case msg, open := <-c:
					if !open {
						return
					}
					select {
					case all <- msg:
					case <-done:
						return
					}
				case <-done:
					return
				}
			}
		}()
	}
	return all
}

// schedule runs a scheduler of its own until stop.
func schedule(t *testing.T, s redistest.Server) (stop func()) {
	t.Helper()
	due, err := scheduler.New(scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix}, nil)
	require.NoError(t, err)
	running, cancel := context.WithCancel(ctx)
	ended := begin(func() error { return due.Run(running) })
	return func() {
		cancel()
		require.NoError(t, wait(t, ended, "the scheduler"))
	}
}

func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, soon, tick, what)
}

func deliveryOf(t testing.TB, msg *message.Message) redisdelay.Delivery {
	t.Helper()
	d, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok, "the message's context has no Delivery")
	return d
}

// state counts what a topic has in Redis.
type state struct {
	Bodies, Pending, Ready, Unack, Retry, Dead int64
}

func stateOf(t testing.TB, s redistest.Server, topic string) state {
	t.Helper()
	return stateOfGroup(t, s, topic, redisdelay.DefaultConsumerGroup)
}

func stateOfGroup(t testing.TB, s redistest.Server, topic, group string) state {
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
	return state{n(0), n(1), n(2), n(3), n(4), n(5)}
}

// records is what the default group knows of its messages' deliveries: "count flag delayed_for reason".
func records(t testing.TB, s redistest.Server, topic string) map[string]string {
	t.Helper()
	key := queue.NewKeys(s.Prefix, topic).Deliveries(redisdelay.DefaultConsumerGroup)
	found, err := s.Client.HGetAll(ctx, key).Result()
	require.NoError(t, err)
	return found
}

// settledState waits until nothing is leased.
func settledState(t *testing.T, s redistest.Server, topic string) (found state) {
	t.Helper()
	eventually(t, func() bool { found = stateOf(t, s, topic); return found.Unack == 0 }, "everything is settled")
	return found
}

// keysOf returns all keys under the server's prefix.
func keysOf(t testing.TB, s redistest.Server) (keys []string) {
	t.Helper()
	it := s.Client.Scan(ctx, 0, s.Prefix+"*", 1000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	require.NoError(t, it.Err())
	return keys
}
