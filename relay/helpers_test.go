package relay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const soon, never = testkit.Soon, testkit.Never

const topic = "orders"

var (
	errDown    = errors.New("the destination is down")
	errRefused = errors.New("the message is too large")
)

// The names that the tests call the kit by.
var (
	both       = testkit.Both
	publish    = testkit.Publish
	eventually = testkit.Eventually
)

// drained checks, when the test is over, that no message is left.
func drained(t *testing.T, s redistest.Server) { testkit.Drained(t, s) }

// sent is one message that a destination took.
type sent struct {
	topic, uuid, payload string
	metadata             message.Metadata
	at                   time.Time
}

// destination is a Publisher that returns what answer returns; a nil answer takes all messages.
type destination struct {
	answer func(topic string, messages []*message.Message) error

	mu     sync.Mutex
	taken  []sent
	calls  [][]string // UUIDs of each call that was answered with nil
	tries  int
	closed bool
	news   chan struct{}
}

func newDestination(answer func(topic string, messages []*message.Message) error) *destination {
	if answer == nil {
		answer = func(string, []*message.Message) error { return nil }
	}
	return &destination{answer: answer, news: make(chan struct{}, 1)}
}

// silent is an answer that blocks until the messages' contexts end. It reports each call.
func silent(called chan<- string) *destination {
	return newDestination(func(_ string, messages []*message.Message) error {
		called <- messages[0].UUID
		<-messages[0].Context().Done()
		return messages[0].Context().Err()
	})
}

func (d *destination) Publish(topic string, messages ...*message.Message) error {
	err := d.answer(topic, messages)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries++
	if err == nil {
		var call []string
		for _, msg := range messages {
			d.taken = append(d.taken, sent{topic, msg.UUID, string(msg.Payload), maps.Clone(msg.Metadata), time.Now()})
			call = append(call, msg.UUID)
		}
		d.calls = append(d.calls, call)
	}
	select {
	case d.news <- struct{}{}:
	default:
	}
	return err
}

func (d *destination) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// await waits until n messages were taken, and returns them.
func (d *destination) await(t testing.TB, n int) []sent {
	t.Helper()
	d.until(t, func() bool { return len(d.taken) >= n }, "not enough messages came")
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Len(t, d.taken, n)
	return d.taken
}

func (d *destination) awaitTries(t testing.TB, n int) {
	t.Helper()
	d.until(t, func() bool { return d.tries >= n }, "not enough calls of Publish")
}

func (d *destination) until(t testing.TB, condition func() bool, otherwise string) {
	t.Helper()
	timeout := time.After(soon)
	for {
		d.mu.Lock()
		met := condition()
		d.mu.Unlock()
		if met {
			return
		}
		select {
		case <-d.news:
		case <-timeout:
			require.FailNow(t, otherwise)
		}
	}
}

func uuids(all []sent) (found []string) {
	for _, s := range all {
		found = append(found, s.uuid)
	}
	return found
}

func newMessage(uuid string, delay time.Duration) *message.Message {
	msg := message.NewMessage(uuid, []byte("payload of "+uuid))
	msg.Metadata.Set("kind", "gift")
	if delay > 0 {
		redisdelay.DelayFor(msg, delay)
	}
	return msg
}

// numbered returns messages "0", "1" ... with the same delay.
func numbered(n int, delay time.Duration) (all []*message.Message, names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(i))
		all = append(all, newMessage(names[i], delay))
	}
	return all, names
}

func newPublisher(t testing.TB, s redistest.Server) *redisdelay.Publisher {
	t.Helper()
	return testkit.NewPublisher(t, s)
}

// newRelay returns a relay of topic that tries again after 20 ms.
func newRelay(t testing.TB, s redistest.Server, to message.Publisher, change ...func(*relay.Config)) *relay.Relay {
	t.Helper()
	return newLoggedRelay(t, s, nil, to, change...)
}

func newLoggedRelay(t testing.TB, s redistest.Server, logger watermill.LoggerAdapter, to message.Publisher, change ...func(*relay.Config)) *relay.Relay {
	t.Helper()
	config := relay.Config{
		Subscriber: redisdelay.SubscriberConfig{
			Client: s.Client, KeyPrefix: s.Prefix, TakeoverWindow: -1,
			Backoff: func(int) time.Duration { return 20 * time.Millisecond },
		},
		Topics:      []string{topic},
		Destination: to,
		Permanent:   func(err error) bool { return errors.Is(err, errRefused) },
	}
	for _, f := range change {
		f(&config)
	}
	r, err := relay.New(config, logger)
	require.NoError(t, err)
	return r
}

func ordered(c *relay.Config) { c.Ordered = true }

func singly(c *relay.Config) { c.Concurrency = 1 }

// endsSoon sets a short CloseTimeout, for relays whose destination does not answer. A quarter of it
// is left for Redis, which other tests keep busy.
func endsSoon(c *relay.Config) { c.Subscriber.CloseTimeout = 2 * time.Second }

// route runs a relay on a router until stop, or until the end of the test.
func route(t testing.TB, r *relay.Relay, around ...message.HandlerMiddleware) (stop func() error) {
	t.Helper()
	router := testkit.NewRouter(t)
	router.AddMiddleware(around...)
	require.NoError(t, r.AddHandlers(router))
	ended := testkit.Begin(func() error { return router.Run(context.Background()) })
	wait(t, router.Running(), "the router")
	stop = sync.OnceValue(func() error { return errors.Join(router.Close(), wait(t, ended, "the router's end")) })
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}

// run runs a relay until stop, or until the end of the test.
func run(t testing.TB, r *relay.Relay) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := testkit.Begin(func() error { return r.Run(ctx) })
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(soon):
			return errors.New("the relay goes on")
		}
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}

func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	return testkit.Wait(t, c, what)
}

// counts are of a topic's messages in the relay's group.
type counts = testkit.State

func countsOf(t testing.TB, s redistest.Server, topic string) counts {
	t.Helper()
	return testkit.StateOf(t, s, topic, relay.DefaultConsumerGroup)
}

// reasons returns why a topic's messages are dead, by ID.
func reasons(t testing.TB, s redistest.Server, topic string) map[string]string {
	t.Helper()
	found, err := s.Client.HGetAll(context.Background(), queue.NewKeys(s.Prefix, topic).Deliveries(relay.DefaultConsumerGroup)).Result()
	require.NoError(t, err)
	for id, record := range found {
		found[id] = strings.SplitN(record, " ", 4)[3]
	}
	return found
}
