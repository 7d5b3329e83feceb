package redisdelay_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const (
	soon  = testkit.Soon
	never = testkit.Never
	tick  = 5 * time.Millisecond
)

var ctx = context.Background()

// The names that the tests call the kit by.
var (
	both         = testkit.Both
	newPublisher = testkit.NewPublisher
	subscribeTo  = testkit.SubscribeTo
	receive      = testkit.Receive
	consume      = testkit.Consume
	deliveryOf   = testkit.DeliveryOf
	eventually   = testkit.Eventually
	stateOfGroup = testkit.StateOf
)

// drained checks, when the test is over, that no message is left.
func drained(t *testing.T, s redistest.Server) { testkit.Drained(t, s) }

// embedded gives a test a server whose clock it may set.
func embedded(t *testing.T) redistest.Server {
	t.Helper()
	t.Parallel()
	mini, client := redistest.Embedded(t)
	s := redistest.On(t, client, "test")
	s.Mini = mini
	s.OnCleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
	return s
}

// private gives a test a server of its own, to be stopped or emptied. Calls to it fail fast.
func private(t *testing.T, args ...string) (redistest.Server, *redistest.Instance) {
	t.Helper()
	t.Parallel()
	in := redistest.Start(t, args...)
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	return redistest.On(t, client, "test"), in
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
	return clientWith(t, s.Client.(*redis.Client).Options())
}

func clientOf(t *testing.T, addr string) *redis.Client {
	return clientWith(t, &redis.Options{Addr: addr})
}

func clientWith(t *testing.T, options *redis.Options) *redis.Client {
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// newSubscriber returns one whose nacks have no delay.
func newSubscriber(t *testing.T, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	return newLoggingSubscriber(t, s, nil, change...)
}

func newLoggingSubscriber(t *testing.T, s redistest.Server, logger watermill.LoggerAdapter, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	usual := []func(*redisdelay.SubscriberConfig){testkit.AtOnce, closingWithin(2 * time.Second)}
	return testkit.NewLoggingSubscriber(t, s, logger, append(usual, change...)...)
}

// subscribe subscribes a new Subscriber.
func subscribe(t *testing.T, s redistest.Server, topic string, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	return subscribeTo(t, newSubscriber(t, s, change...), topic)
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
	return testkit.Delay(text(payload), d)
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

func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	return testkit.Wait(t, c, what)
}

func begin[T any](f func() T) <-chan T { return testkit.Begin(f) }

// queued begins a call of Publish, and returns when it waits in the line of its topic. The stacks
// of all goroutines tell.
func queued(t *testing.T, publish func() error) (ended <-chan error) {
	t.Helper()
	names := make(chan string, 1)
	ended = begin(func() error {
		text := make([]byte, 64)
		name, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), "[") // "goroutine 17 [running]:"
		names <- name
		return publish()
	})
	name := wait(t, names, "the call begins")
	all := make([]byte, 1<<20)
	var next time.Time
	eventually(t, func() bool {
		if time.Now().Before(next) { // a look stops all goroutines
			return false
		}
		defer func() { next = time.Now().Add(5 * time.Millisecond) }()
		n := runtime.Stack(all, true)
		if n == len(all) {
			all = make([]byte, 2*n)
		}
		for stack := range strings.SplitSeq(string(all[:n]), "\n\n") {
			if strings.HasPrefix(stack, name) {
				return strings.Contains(stack, "publish.(*line).wait")
			}
		}
		return false
	}, "the call waits in the line")
	return ended
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
	return testkit.RunScheduler(t, scheduler.Config{Client: s.Client, KeyPrefix: s.Prefix})
}

type state = testkit.State

func stateOf(t testing.TB, s redistest.Server, topic string) state {
	t.Helper()
	return testkit.StateOf(t, s, topic, redisdelay.DefaultConsumerGroup)
}

// records is what the default group knows of its messages' deliveries: "count flag delayed_for
// reason".
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
	eventually(t, func() bool { found = stateOf(t, s, topic); return found.InHand == 0 }, "everything is settled")
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

// requireSame is require.ElementsMatch for many texts, in less than quadratic time.
func requireSame(t testing.TB, want, got []string) {
	t.Helper()
	require.Equal(t, slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got)))
}
