package relay_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func TestOrderIsKeptIfConfigured(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var failures atomic.Int32
		to := newDestination(func(_ string, messages []*message.Message) error {
			if strings.HasSuffix(messages[0].UUID, "7") && failures.Add(1)%3 != 0 {
				return errDown
			}
			return nil
		})
		config := func(c *relay.Config) {
			ordered(c)
			c.Topics = []string{topic, "other"}
			c.Subscriber.Backoff = func(int) time.Duration { return 2 * time.Millisecond }
		}
		stop := run(t, newRelay(t, s, to, config))
		all, names := numbered(100, 0)
		publish(t, newPublisher(t, s), topic, all...)
		to.until(t, func() bool { return len(to.taken) >= 30 }, "30 messages")
		require.NoError(t, stop())
		run(t, newRelay(t, s, to, config))
		require.Equal(t, names, uuids(to.await(t, 100)))
		require.EqualValues(t, 30, failures.Load())
	})
}

func TestOrderedTopicWaitsWhileOthersGoOn(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		var up atomic.Bool
		var failures atomic.Int32
		to := newDestination(func(topic string, _ []*message.Message) error {
			if topic == "orders" && !up.Load() {
				failures.Add(1)
				return errDown
			}
			return nil
		})
		config := func(c *relay.Config) {
			ordered(c)
			c.Topics = []string{"orders", "other"}
			c.Subscriber.Backoff = func(int) time.Duration { return never }
		}
		stop := run(t, newRelay(t, s, to, config))
		p := newPublisher(t, s)
		publish(t, p, "orders", newMessage("1", 0), newMessage("2", 0))
		to.awaitTries(t, 1)
		publish(t, p, "other", newMessage("a", 0), newMessage("b", 0))
		require.Equal(t, []string{"a", "b"}, uuids(to.await(t, 2)))

		// A stop during the wait gives the message back to its place at once.
		require.NoError(t, stop())
		eventually(t, func() bool { return countsOf(t, s, "orders") == counts{Bodies: 2, Ready: 2} }, "it is back")
		require.LessOrEqual(t, failures.Load(), int32(2), "at most one more delivery before the subscription ended")
		up.Store(true)
		run(t, newRelay(t, s, to, config))
		require.Equal(t, []string{"1", "2"}, uuids(to.await(t, 4)[2:]))
	})
}

// With Ordered, a message's own backoff does not let others overtake it.
func TestOrderIsKeptWithAMessagesOwnBackoff(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var tries atomic.Int32
		to := newDestination(func(_ string, messages []*message.Message) error {
			if messages[0].UUID == "1" && tries.Add(1) < 3 {
				return errDown
			}
			return nil
		})
		all, names := numbered(4, 0)
		redisdelay.SetBackoff(all[1], 100*time.Millisecond, 100*time.Millisecond)
		publish(t, newPublisher(t, s), topic, all...)
		run(t, newRelay(t, s, to, ordered))
		got := to.await(t, 4)
		require.Equal(t, names, uuids(got))
	})
}

// A stop gives back unanswered messages before their leases are lost.
func TestOrderIsKeptOverAStopWhileTheDestinationDoesNotAnswer(t *testing.T) {
	for name, start := range map[string]func(testing.TB, *relay.Relay) func() error{
		"a Run":    run,
		"a router": func(t testing.TB, r *relay.Relay) func() error { return route(t, r) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				all, names := numbered(5, 0)
				publish(t, newPublisher(t, s), topic, all...)
				called := make(chan string, 5)
				stop := start(t, newRelay(t, s, silent(called), ordered, endsSoon))
				require.Equal(t, "0", wait(t, called, "Publish"))
				require.NoError(t, stop())
				require.Equal(t, counts{Bodies: 5, Ready: 5}, countsOf(t, s, topic), "all is back in its place")
				require.Empty(t, called)

				to := newDestination(nil)
				run(t, newRelay(t, s, to, ordered))
				require.Equal(t, names, uuids(to.await(t, 5)))
			})
		})
	}
}

// The delay that returns a message to its place must not reach consumers.
func TestMessageRetriedByAMiddlewareGoesOutUnchanged(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var tries atomic.Int32
		to := newDestination(func(string, []*message.Message) error {
			if tries.Add(1) == 1 {
				return errDown
			}
			return nil
		})
		route(t, newRelay(t, s, to, ordered), middleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware)
		publish(t, newPublisher(t, s), topic, newMessage("1", 0))
		got := to.await(t, 1)[0].metadata
		require.Equal(t, message.Metadata{"kind": "gift", relay.IDKey: got[relay.IDKey]}, got)
	})
}
