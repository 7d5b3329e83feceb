package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func init() { children["failing worker"] = failingChild }

// A message that fails again and again waits for InitialInterval, then for Multiplier times as long
// each time, up to MaxInterval.
func TestDelayOnErrorGrowsUpToItsMaxInterval(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		intervals := []time.Duration{60, 120, 240, 300, 300}
		failing := newFailing(middleware.DelayOnError{
			InitialInterval: 60 * time.Millisecond, Multiplier: 2, MaxInterval: 300 * time.Millisecond,
		}, len(intervals))
		router := newRouter(t)
		failing.add(router, "work", newSubscriber(t, s))
		start(t, router)

		publisher := newPublisher(t, s)
		publish(t, publisher, "order", 0)
		last := failing.next(t)
		require.Empty(t, last.metadata.Get(delay.DelayedForKey))
		for i, interval := range intervals {
			interval *= time.Millisecond
			again := failing.next(t)
			require.Equal(t, i+2, again.delivery.Number)
			require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
			nacks.requireGap(t, last, again, interval)
			last = again
		}
	})
}

// nacks tell when the server had each nack: at the latest when it had answered.
type nacks struct {
	prefix string
	mu     sync.Mutex
	known  map[string]chan time.Time // by the key of what the group holds
}

// noteNacks notes the nacks of the subscribers that use the client of s.
func noteNacks(s redistest.Server) *nacks {
	noted := &nacks{prefix: s.Prefix, known: map[string]chan time.Time{}}
	s.Client.AddHook(redistest.AfterEach(func(call redis.Cmder) {
		if args := call.Args(); call.Name() == "evalsha" && queue.ScriptName(args[1].(string)) == "nack" {
			noted.of(args[3].(string)) <- time.Now()
		}
	}))
	return noted
}

func (n *nacks) of(held string) chan time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[held] == nil {
		n.known[held] = make(chan time.Time, 100)
	}
	return n.known[held]
}

// requireGap checks that a message that failed waited for as long as it was to, from when the
// server heard of the failure, and then came. It takes the next nack of the group.
func (n *nacks) requireGap(t testing.TB, failed, again sighting, interval time.Duration) {
	t.Helper()
	held := queue.NewKeys(n.prefix, failed.delivery.Topic).Unack(failed.delivery.Group)
	known := testkit.Wait(t, n.of(held), "the reply to a nack")
	if interval == 0 { // the message keeps its place, and its due time
		require.Equal(t, failed.delivery.DueAt, again.delivery.DueAt)
		require.Less(t, again.at.Sub(failed.at), prompt, "came late")
		return
	}
	require.Less(t, known.Sub(failed.at), prompt, "the server heard late")
	requireBetween(t, again.delivery.DueAt, failed.at.Add(interval), known.Add(interval))
	requireOnTime(t, again.delivery, again.at)
}

// The intervals are exact, and begin with InitialInterval however long the message was delayed at
// first: by a clock that stands still but for what the test moves it.
func TestDelayOnErrorAfterADelayOfAnHour(t *testing.T) {
	t.Parallel()
	for name, set := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := handMoved(t)
			expectDrained(t, s.Server)
			intervals := []time.Duration{1, 2, 4, 5, 5}
			failing := newFailing(middleware.DelayOnError{
				InitialInterval: time.Minute, Multiplier: 2, MaxInterval: 5 * time.Minute,
			}, len(intervals))
			router := newRouter(t)
			failing.add(router, "work", newSubscriber(t, s.Server))
			start(t, router)
			inAnHour := s.publishDelayed(t, set)

			s.advance(t, time.Hour)
			first := failing.next(t)
			inAnHour(first)
			require.Empty(t, first.metadata.Get(delay.DelayedForKey))
			for i, interval := range intervals {
				interval *= time.Minute
				s.awaitRetry(t)
				// Watermill cuts the instant to whole seconds, and what that leaves is the most it
				// takes.
				exactly := min(interval, time.Until((<-failing.instants).Add(time.Second)))
				now := serverTime(t, s.Client)
				s.advance(t, interval)
				again := failing.next(t)
				require.Equal(t, i+2, again.delivery.Number)
				require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
				require.LessOrEqual(t, again.delivery.DueAt.Sub(now), interval)
				require.GreaterOrEqual(t, again.delivery.DueAt.Sub(now), exactly)
			}
		})
	}
}

// On a real server, whose clock is this machine's plus what the test sets it ahead, the interval
// begins between the error and the moment at which the server has it.
func TestDelayOnErrorWaitsForItsIntervalByTheServersClock(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	client := server.Client(t)
	expectDrained(t, on(t, client))
	intervals := []time.Duration{1, 2, 4, 5, 5}
	failing := newFailing(middleware.DelayOnError{
		InitialInterval: time.Minute, Multiplier: 2, MaxInterval: 5 * time.Minute,
	}, len(intervals))
	router := newRouter(t)
	failing.add(router, "work", newSubscriber(t, on(t, client), ofLongLease))
	start(t, router)
	publish(t, newPublisher(t, on(t, client)), "order", 0)

	var ahead time.Duration
	last := failing.next(t)
	for i, interval := range intervals {
		interval *= time.Minute
		due := awaitRetryDue(t, client)
		failed, known := last.at.Add(ahead), serverTime(t, client)
		require.False(t, due.Before(failed.Add(interval)), "early")
		require.False(t, due.After(known.Add(interval+time.Millisecond)), "late") // rounded up
		t.Logf("interval %v: due %v after the failure, of which the server knew in at most %v",
			interval, due.Sub(failed), known.Sub(failed))

		ahead += interval
		server.SetClock(ahead)
		testkit.LookNow(t, on(t, client))
		last = failing.next(t)
		require.Equal(t, i+2, last.delivery.Number)
		require.Equal(t, due, last.delivery.DueAt.UTC())
	}
}

// awaitRetryDue waits until the server knows that the message was nacked, and returns when it is
// due.
func awaitRetryDue(t testing.TB, client redis.UniversalClient) (due time.Time) {
	t.Helper()
	require.Eventually(t, func() bool {
		retries := client.ZRangeWithScores(t.Context(), keys.Retry(redisdelay.DefaultConsumerGroup), 0, -1).Val()
		if len(retries) == 1 {
			due = time.UnixMilli(int64(retries[0].Score)).UTC()
		}
		return len(retries) == 1
	}, patience, time.Millisecond)
	return due
}

// publishDelayed publishes a message that is due in an hour. due checks that it was.
func (s handMovedServer) publishDelayed(t *testing.T, set func(*message.Message, time.Duration)) (due func(sighting)) {
	t.Helper()
	publisher := newPublisher(t, s.Server)
	order := message.NewMessage("order", nil)
	now, start := serverTime(t, s.Client), time.Now()
	set(order, time.Hour)
	require.NoError(t, publisher.Publish(topic, order))
	// The same as for intervals: Watermill's delays begin when they are made, not when they are
	// published.
	underWay := time.Since(start) + time.Millisecond
	published := serverTime(t, s.Client)
	return func(seen sighting) {
		t.Helper()
		require.Equal(t, "order", seen.uuid)
		requireBetween(t, seen.delivery.DueAt, now.Add(time.Hour-underWay), published.Add(time.Hour))
	}
}

// Each delivery is in a process of its own, which is killed after it. The next one goes on where
// the last one was.
func TestDelayOnErrorSurvivesTheRestartOfTheWorker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s := redistest.On(t, client, redisdelay.DefaultKeyPrefix)
	expectDrained(t, s, queuetest.Live()) // the killed ones did not close
	subscriber := newSubscriber(t, s)
	require.NoError(t, subscriber.SubscribeInitialize(topic))
	publish(t, newPublisher(t, s), "order", 0)

	var last sighting
	for i, interval := range []time.Duration{0, 1, 2, 4, 4} {
		interval *= 500 * time.Millisecond
		worker := startChild(t, server, "failing worker")
		var again sighting
		again.metadata = message.Metadata{}
		require.NoError(t, json.Unmarshal([]byte(worker.line()), &reported{&again.at, &again.delivery, &again.metadata}))
		require.Equal(t, i+1, again.delivery.Number)
		if i > 0 {
			require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
			require.GreaterOrEqual(t, again.delivery.DueAt.Sub(last.at.Truncate(time.Millisecond)), interval, "came early")
			require.Less(t, again.delivery.DueAt.Sub(last.at), interval+prompt)
		}
		awaitRetry(t, s)
		worker.kill()
		last = again
	}
	msg, delivery := receive(t, subscribeTo(t, subscriber, topic))
	require.Equal(t, 6, delivery.Number)
	msg.Ack()
}

// reported is what the failing worker prints.
type reported struct {
	At       *time.Time
	Delivery *redisdelay.Delivery
	Metadata *message.Metadata
}

// failingChild fails, says so, and keeps running.
func failingChild() int {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	orDie(err)
	onError := middleware.DelayOnError{
		InitialInterval: 500 * time.Millisecond, Multiplier: 2, MaxInterval: 2 * time.Second,
	}
	router.AddMiddleware(onError.Middleware)
	out := bufio.NewWriter(os.Stdout)
	subscriber := childSubscriber(func(c *redisdelay.SubscriberConfig) { c.LeaseDuration = crashLease })
	router.AddConsumerHandler("work", topic, subscriber, func(msg *message.Message) error {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		now := time.Now()
		orDie(json.NewEncoder(out).Encode(reported{&now, &delivery, &msg.Metadata}))
		orDie(out.Flush())
		return errNotToday
	})
	orDie(router.Run(context.Background()))
	return 0
}

// Groups that fail with the same message back off each for itself.
func TestDelayOnErrorOfTwoGroupsIsIndependent(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		ofGroup := func(group string) *redisdelay.Subscriber {
			return newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = group })
		}
		slow := newFailing(middleware.DelayOnError{
			InitialInterval: 150 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour,
		}, 2)
		fast := newFailing(middleware.DelayOnError{
			InitialInterval: 20 * time.Millisecond, Multiplier: 3, MaxInterval: time.Hour,
		}, 3)
		content := newFailing(middleware.DelayOnError{}, 0)
		router := newRouter(t)
		slow.add(router, "slow", ofGroup("slow"))
		fast.add(router, "fast", ofGroup("fast"))
		content.add(router, "content", ofGroup("content"))
		start(t, router)
		publisher := newPublisher(t, s)
		publish(t, publisher, "order", 50*time.Millisecond)
		for _, group := range []struct {
			failing   *failing
			intervals []time.Duration
		}{
			{slow, []time.Duration{150 * time.Millisecond, 300 * time.Millisecond}},
			{fast, []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 180 * time.Millisecond}},
			{content, nil},
		} {
			last := group.failing.next(t)
			require.Empty(t, last.metadata.Get(delay.DelayedForKey))
			for i, interval := range group.intervals {
				again := group.failing.next(t)
				require.Equal(t, i+2, again.delivery.Number)
				require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
				nacks.requireGap(t, last, again, interval)
				last = again
			}
		}
	})
}

// A message that a handler sends is one of its own: the delay that it is sent with is not where its
// backoff begins.
func TestDelayOnErrorOfAMessageThatAHandlerSent(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		sender := newPublisher(t, s)
		failing := newFailing(middleware.DelayOnError{
			InitialInterval: 30 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour,
		}, 1)
		router := newRouter(t)
		router.AddConsumerHandler("send", "placed", newSubscriber(t, s), func(msg *message.Message) error {
			reminder := message.NewMessage("reminder", nil)
			reminder.SetContext(msg.Context())
			delay.Message(reminder, delay.For(200*time.Millisecond))
			return sender.Publish(topic, reminder)
		})
		failing.add(router, "remind", newSubscriber(t, s))
		start(t, router)
		publisher := newPublisher(t, s)
		require.NoError(t, publisher.Publish("placed", message.NewMessage("order", nil)))
		first := failing.next(t)
		require.Empty(t, first.metadata.Get(delay.DelayedForKey), "not where DelayOnError is to begin")
		again := failing.next(t)
		require.Equal(t, "30ms", again.metadata.Get(delay.DelayedForKey))
		nacks.requireGap(t, first, again, 30*time.Millisecond)
	})
}

// A message that was retried, and is then passed on, takes its interval along. A copy of it does
// not.
func TestDelayOnErrorGoesOnWhereTheMessageIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		passedOn func(*message.Message) *message.Message
		had, got time.Duration // before the next topic's first failure, and after
	}{
		"itself": {func(msg *message.Message) *message.Message { return msg }, 30 * time.Millisecond, 60 * time.Millisecond},
		"a copy": {(*message.Message).Copy, 0, 30 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				nacks := noteNacks(s)
				onError := middleware.DelayOnError{InitialInterval: 30 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
				router := newRouter(t)
				router.AddHandler("pass", "placed", newSubscriber(t, s), topic, newPublisher(t, s),
					func(msg *message.Message) ([]*message.Message, error) {
						if deliveryOf(t, msg).Number == 1 {
							return nil, errNotToday
						}
						return []*message.Message{test.passedOn(msg)}, nil
					}).AddMiddleware(onError.Middleware)
				failing := newFailing(onError, 1)
				failing.add(router, "work", newSubscriber(t, s))
				start(t, router)
				require.NoError(t, newPublisher(t, s).Publish("placed", message.NewMessage("order", nil)))

				first := failing.next(t)
				had, _ := time.ParseDuration(first.metadata.Get(delay.DelayedForKey))
				require.Equal(t, test.had, had)
				require.Equal(t, 1, first.delivery.Number)
				again := failing.next(t)
				require.Equal(t, test.got.String(), again.metadata.Get(delay.DelayedForKey))
				nacks.requireGap(t, first, again, test.got)
			})
		})
	}
}

// Watermill's delay.NewPublisher takes a message that comes from a retry for one that has a delay
// already, and sets none: what a handler then passes on comes at once.
func TestWatermillsDelayPublisherSetsNoDelayOnARetriedMessage(t *testing.T) {
	t.Parallel()
	onHandMoved(t, func(t *testing.T, s handMovedServer) {
		expectDrained(t, s.Server)
		delaying, err := delay.NewPublisher(newPublisher(t, s.Server), delay.PublisherConfig{
			DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
				return delay.For(time.Hour), nil
			},
		})
		require.NoError(t, err)
		onError := middleware.DelayOnError{InitialInterval: time.Minute}
		router := newRouter(t)
		router.AddMiddleware(onError.Middleware)
		router.AddHandler("pass", topic, newSubscriber(t, s.Server, ofLongLease), "out", delaying,
			func(msg *message.Message) ([]*message.Message, error) {
				if msg.UUID == "retried" && deliveryOf(t, msg).Number == 1 {
					return nil, errNotToday
				}
				return []*message.Message{msg}, nil
			})
		start(t, router)
		out := subscribeTo(t, newSubscriber(t, s.Server, ofLongLease), "out")
		publisher := newPublisher(t, s.Server)
		publish(t, publisher, "fresh", 0)
		due := s.awaitPendingDue(t, "out")
		require.WithinDuration(t, serverTime(t, s.Client).Add(time.Hour), due, time.Minute)

		publish(t, publisher, "retried", 0)
		s.awaitRetry(t)
		s.advance(t, time.Minute)
		msg, _ := s.receiveAtOnce(t, out)
		require.Equal(t, "retried", msg.UUID)
		msg.Ack()
		s.advance(t, time.Hour)
		msg, _ = s.receiveAtOnce(t, out)
		require.Equal(t, "fresh", msg.UUID)
		msg.Ack()
	})
}

// DelayOnError cuts its multiplier to a whole number. What it then asks for is what it gets;
// Backoff can do better.
func TestDelayOnErrorCutsItsMultiplierAndBackoffDoesNot(t *testing.T) {
	t.Parallel()
	const initial = 40 * time.Millisecond
	for _, test := range []struct {
		multiplier float64
		want       []time.Duration
	}{
		{1.5, []time.Duration{initial, initial, initial}},
		{0.5, []time.Duration{initial, 0, 0}},
		{2.9, []time.Duration{initial, 2 * initial, 4 * initial}},
	} {
		t.Run(fmt.Sprint(test.multiplier), func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				nacks := noteNacks(s)
				failing := newFailing(middleware.DelayOnError{
					InitialInterval: initial, Multiplier: test.multiplier, MaxInterval: time.Hour,
				}, len(test.want))
				router := newRouter(t)
				failing.add(router, "work", newSubscriber(t, s))
				start(t, router)
				publisher := newPublisher(t, s)
				publish(t, publisher, "order", 0)
				last := failing.next(t)
				for _, interval := range test.want {
					again := failing.next(t)
					require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
					nacks.requireGap(t, last, again, interval)
					last = again
				}
			})
		})
	}
	t.Run("Backoff", func(t *testing.T) {
		t.Parallel()
		redistest.Real(t, func(t *testing.T, s redistest.Server) {
			expectDrained(t, s)
			nacks := noteNacks(s)
			got := make(sightings, 10)
			router := newRouter(t)
			router.AddConsumerHandler("work", topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.Backoff = func(delivery int) time.Duration {
					wait := initial
					for range delivery - 1 {
						wait = wait * 3 / 2
					}
					return wait
				}
			}), func(msg *message.Message) error {
				if got.record(msg).delivery.Number <= 3 {
					return errNotToday
				}
				return nil
			})
			start(t, router)
			publisher := newPublisher(t, s)
			publish(t, publisher, "order", 0)
			last := got.next(t)
			for _, interval := range []time.Duration{initial, initial * 3 / 2, initial * 9 / 4} {
				again := got.next(t)
				require.Empty(t, again.metadata)
				nacks.requireGap(t, last, again, interval)
				last = again
			}
		})
	})
}

// failing is a handler that fails so many times, below DelayOnError.
type failing struct {
	sightings
	instants chan time.Time // that DelayOnError wrote
	onError  middleware.DelayOnError
	failures int
}

func newFailing(onError middleware.DelayOnError, failures int) *failing {
	return &failing{make(sightings, 100), make(chan time.Time, 100), onError, failures}
}

func (f *failing) add(router *message.Router, name string, subscriber message.Subscriber) {
	router.AddConsumerHandler(name, topic, subscriber, f.handle).AddMiddleware(f.noteInstant, f.onError.Middleware)
}

func (f *failing) noteInstant(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := next(msg)
		if err != nil {
			instant, _ := time.Parse(time.RFC3339, msg.Metadata.Get(delay.DelayedUntilKey))
			f.instants <- instant
		}
		return produced, err
	}
}

func (f *failing) handle(msg *message.Message) error {
	if f.record(msg).delivery.Number <= f.failures {
		return errNotToday
	}
	return nil
}
