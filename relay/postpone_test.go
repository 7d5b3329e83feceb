package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// A destination that says when it takes messages again is tried then, and not after the Backoff.
// Messages that allow a single delivery do not become dead by it.
func TestMessageWaitsAsLongAsTheDestinationWants(t *testing.T) {
	running := func(t testing.TB, r *relay.Relay) func() error { return run(t, r) }
	routed := func(t testing.TB, r *relay.Relay) func() error { return route(t, r) }
	for name, c := range map[string]struct {
		start  func(testing.TB, *relay.Relay) func() error
		change func(*relay.Config)
	}{
		"one by one":           {running, singly},
		"ordered":              {running, ordered},
		"on a router":          {routed, singly},
		"on a router, ordered": {routed, ordered},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				const wanted = 100 * time.Millisecond
				var mu sync.Mutex
				tried := map[string][]time.Time{}
				var numbers []int
				to := newDestination(func(_ string, messages []*message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					uuid := messages[0].UUID
					tried[uuid] = append(tried[uuid], time.Now())
					delivery, _ := redisdelay.DeliveryFromContext(messages[0].Context())
					numbers = append(numbers, delivery.Number)
					if uuid == "1" && len(tried[uuid]) < 3 {
						return fmt.Errorf("too many: %w", &redisdelay.PostponeError{Delay: wanted})
					}
					return nil
				})
				all, names := numbered(4, 0)
				for _, msg := range all {
					redisdelay.SetMaxDeliveries(msg, 1)
				}
				publish(t, newPublisher(t, s), topic, all...)
				c.start(t, newRelay(t, s, to, c.change, func(c *relay.Config) {
					c.BatchMessages = 1
					c.Subscriber.Backoff = func(int) time.Duration { return never }
				}))
				got := uuids(to.await(t, 4))
				mu.Lock()
				defer mu.Unlock()
				require.Len(t, tried["1"], 3)
				for i, at := range tried["1"][1:] {
					require.GreaterOrEqual(t, at.Sub(tried["1"][i]), wanted)
				}
				require.Equal(t, []int{1}, slices.Compact(numbers), "no delivery is used up")
				if strings.Contains(name, "ordered") {
					require.Equal(t, names, got)
				} else {
					require.Equal(t, []string{"0", "2", "3", "1"}, got, "one message that waits holds up no other")
				}
			})
		})
	}
}

// The wait is that of the last try, if a middleware tries again.
func TestWaitOfAnEarlierTryDoesNotCount(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		tries := 0
		to := newDestination(func(string, []*message.Message) error {
			if tries++; tries == 1 {
				return &redisdelay.PostponeError{Delay: never}
			}
			return errDown
		})
		msg := newMessage("1", 0)
		redisdelay.SetMaxDeliveries(msg, 1)
		publish(t, newPublisher(t, s), topic, msg)
		route(t, newRelay(t, s, to), middleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware)
		eventually(t, func() bool { return countsOf(t, s, topic) == counts{Bodies: 1, Dead: 1} }, "the second failure counts")
	})
}

// An ordered topic waits as long as it has to, without a lost lease: the message is given back and
// held again. Waits are longer than leases can be extended, and than a handler may hold a message.
func TestOrderedTopicWaitsLongerThanALease(t *testing.T) {
	running := func(t testing.TB, r *relay.Relay) func() error { return run(t, r) }
	routed := func(t testing.TB, r *relay.Relay) func() error { return route(t, r) }
	const wait = 1600 * time.Millisecond
	for name, c := range map[string]struct {
		start   func(testing.TB, *relay.Relay) func() error
		err     error
		numbers []int // of the deliveries that are tried
	}{
		"the destination says how long":              {running, &redisdelay.PostponeError{Delay: wait}, []int{1, 1, 1}},
		"the Backoff says":                           {running, errDown, []int{1, 2, 1}},
		"the destination says how long, on a router": {routed, &redisdelay.PostponeError{Delay: wait}, []int{1, 1, 1}},
		"the Backoff says, on a router":              {routed, errDown, []int{1, 2, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				var mu sync.Mutex
				var tried []time.Time
				var numbers []int
				to := newDestination(func(_ string, messages []*message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					delivery, _ := redisdelay.DeliveryFromContext(messages[0].Context())
					tried, numbers = append(tried, time.Now()), append(numbers, delivery.Number)
					if len(tried) == 1 {
						return c.err
					}
					return nil
				})
				all, names := numbered(2, 0)
				publish(t, newPublisher(t, s), topic, all...)
				c.start(t, newRelay(t, s, to, ordered, func(config *relay.Config) {
					config.Subscriber.LeaseDuration, config.Subscriber.MaxExtension, config.Subscriber.CloseTimeout = time.Second, time.Millisecond, 500*time.Millisecond
					config.Subscriber.Backoff = func(int) time.Duration { return wait }
				}))
				require.Equal(t, names, uuids(to.await(t, 2)))
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, c.numbers, numbers)
				require.GreaterOrEqual(t, tried[1].Sub(tried[0]), wait)
			})
		})
	}
}
