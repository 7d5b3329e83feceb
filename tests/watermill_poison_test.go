package tests

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The copy in the poison queue arrives at once, however long the message was delayed.
func TestPoisonedCopyArrivesAtOnce(t *testing.T) {
	t.Parallel()
	for name, set := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHandMoved(t, func(t *testing.T, s handMovedServer) {
				expectDrained(t, s.Server)
				publisher := newPublisher(t, s.Server)
				router := newRouter(t)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s.Server, ofLongLease), func(*message.Message) error {
					return errNotToday
				}).AddMiddleware(poisonQueue(t, publisher, "poison"))
				start(t, router)
				poisoned := subscribeTo(t, newSubscriber(t, s.Server, ofLongLease), "poison")
				due := serverTime(t, s.Client).Add(time.Hour)

				order := message.NewMessage("order", []byte("payload"))
				set(order, time.Hour)
				require.NoError(t, publisher.Publish(topic, order))
				s.nothingYet(t, publisher, topic, poisoned)
				s.advance(t, time.Hour)
				msg, delivery := s.receiveAtOnce(t, poisoned)
				requireBetween(t, delivery.DueAt, due, serverTime(t, s.Client))
				require.Equal(t, "order", msg.UUID)
				require.Equal(t, "payload", string(msg.Payload))
				require.Equal(t, message.Metadata{
					middleware.ReasonForPoisonedKey:  errNotToday.Error(),
					middleware.PoisonedTopicKey:      topic,
					middleware.PoisonedHandlerKey:    "work",
					middleware.PoisonedSubscriberKey: "redisdelay.Subscriber",
				}, msg.Metadata)
				msg.Ack()
			})
		})
	}
}

func poisonQueue(t testing.TB, publisher message.Publisher, topic string) message.HandlerMiddleware {
	t.Helper()
	queue, err := middleware.PoisonQueue(publisher, topic)
	require.NoError(t, err)
	return queue
}

// A filter leaves some errors to the backoff, and only what is hopeless goes to the poison queue:
// at once, though its last delivery was a delayed one.
func TestPoisonQueueWithFilterAfterBackoff(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		publisher := newPublisher(t, s)
		errHopeless := errors.New("hopeless")
		hopeless, err := middleware.PoisonQueueWithFilter(publisher, "poison", func(err error) bool {
			return errors.Is(err, errHopeless)
		})
		require.NoError(t, err)
		onError := middleware.DelayOnError{InitialInterval: 20 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
		got := make(sightings, 10)
		router := newRouter(t)
		router.AddConsumerHandler("work", topic, newSubscriber(t, s), func(msg *message.Message) error {
			if got.record(msg).delivery.Number < 3 {
				return errNotToday
			}
			return errHopeless
		}).AddMiddleware(onError.Middleware, hopeless)
		start(t, router)
		poisoned := subscribeTo(t, newSubscriber(t, s), "poison")
		publish(t, publisher, "order", 50*time.Millisecond)

		last := got.next(t)
		for _, interval := range []time.Duration{20 * time.Millisecond, 40 * time.Millisecond} {
			again := got.next(t)
			nacks.requireGap(t, last, again, interval)
			last = again
		}
		msg, delivery := receive(t, poisoned)
		require.Equal(t, errHopeless.Error(), msg.Metadata.Get(middleware.ReasonForPoisonedKey))
		require.Less(t, time.Since(last.at), prompt)
		require.Equal(t, 1, delivery.Number)
		msg.Ack()
	})
}

// When the poison queue cannot be reached, the message stays, and is delivered again.
func TestMessageIsKeptWhenItCannotBePoisoned(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		nacks := noteNacks(s)
		closed := newPublisher(t, s)
		require.NoError(t, closed.Close())
		got := make(sightings, 10)
		router := newRouter(t)
		router.AddConsumerHandler("work", topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
		}), func(msg *message.Message) error {
			if got.record(msg).delivery.Number == 1 {
				return errNotToday
			}
			return nil
		}).AddMiddleware(poisonQueue(t, closed, "poison"))
		start(t, router)
		publish(t, newPublisher(t, s), "order", 0)
		first := got.next(t)
		again := got.next(t)
		require.Equal(t, 2, again.delivery.Number)
		nacks.requireGap(t, first, again, 20*time.Millisecond)
	})
}

// Watermill's documented flow, with its own parts alone: what fails is published to a topic
// `requeue`, with the delay that DelayOnError sets, and from there, when it is over, where it came
// from. The backoff grows with each round.
func TestRequeuerOverADelayedTopicBacksOff(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		router := newRouter(t)
		router.AddMiddleware(delayedRequeue(t, s, &middleware.DelayOnError{
			InitialInterval: 60 * time.Millisecond, Multiplier: 2, MaxInterval: 200 * time.Millisecond,
		})...)
		got := make(sightings, 100)
		intervals := []time.Duration{60, 120, 200, 200}
		router.AddConsumerHandler("work", topic, newSubscriber(t, s), func(msg *message.Message) error {
			if got.record(msg).metadata.Get(requeuer.RetriesKey) == strconv.Itoa(len(intervals)) {
				return nil
			}
			return errNotToday
		})
		start(t, router)
		publish(t, newPublisher(t, s), "order", 100*time.Millisecond)

		last := got.next(t)
		require.Empty(t, last.metadata)
		for i, interval := range intervals {
			interval *= time.Millisecond
			again := got.next(t)
			require.Equal(t, 1, again.delivery.Number, "it is a new message each time")
			require.Equal(t, strconv.Itoa(i+1), again.metadata.Get(requeuer.RetriesKey))
			require.Equal(t, interval.String(), again.metadata.Get(delay.DelayedForKey))
			require.Equal(t, topic, again.metadata.Get(middleware.PoisonedTopicKey))
			gap := again.at.Sub(last.at)
			require.GreaterOrEqual(t, gap, interval, "came early")
			require.Less(t, gap, interval+prompt, "came late")
			t.Logf("interval %v: came %v after the failure", interval, gap.Round(time.Microsecond))
			last = again
		}
	})
}

// delayedRequeue runs a requeuer, and returns the middleware that feeds it. It is all that a
// delayed requeuer takes.
func delayedRequeue(t testing.TB, s redistest.Server, onError *middleware.DelayOnError) []message.HandlerMiddleware {
	t.Helper()
	own := newRouter(t)
	_, err := requeuer.NewRequeuer(requeuer.Config{
		Subscriber:     newSubscriber(t, s, ofLongLease),
		SubscribeTopic: "requeue",
		Publisher:      newPublisher(t, s),
		GeneratePublishTopic: func(params requeuer.GeneratePublishTopicParams) (string, error) {
			return params.Message.Metadata.Get(middleware.PoisonedTopicKey), nil
		},
		Router: own,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	start(t, own)
	return []message.HandlerMiddleware{
		poisonQueue(t, newPublisher(t, s), "requeue"),
		onError.Middleware, // inside of it, so that the copy has the delay
	}
}

// The first interval is InitialInterval after a delay of an hour too, and they are exact: on the
// embedded server by a clock that stands still but for what the test moves it.
func TestRequeuerAfterADelayOfAnHour(t *testing.T) {
	t.Parallel()
	for name, set := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHandMoved(t, func(t *testing.T, s handMovedServer) {
				expectDrained(t, s.Server)
				router := newRouter(t)
				router.AddMiddleware(delayedRequeue(t, s.Server, &middleware.DelayOnError{
					InitialInterval: time.Minute, Multiplier: 2, MaxInterval: 3 * time.Minute,
				})...)
				got := make(sightings, 10)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s.Server, ofLongLease), func(msg *message.Message) error {
					seen := got.record(msg)
					if seen.uuid == "other" || seen.metadata.Get(requeuer.RetriesKey) == "3" {
						return nil
					}
					return errNotToday
				})
				start(t, router)
				publisher := newPublisher(t, s.Server)
				inAnHour := s.publishDelayed(t, set)

				s.advance(t, time.Hour)
				last := got.next(t)
				inAnHour(last)
				for i, interval := range []time.Duration{1, 2, 3} {
					interval *= time.Minute
					due := s.awaitPendingDue(t, "requeue")
					now := serverTime(t, s.Client)
					// Watermill writes an instant, so what passed until Redis was told is not
					// waited for again.
					underWay := time.Since(last.at) + time.Millisecond
					requireBetween(t, due, now.Add(interval-underWay), now.Add(interval))
					publish(t, publisher, "other", 0) // is not held up
					require.Equal(t, "other", got.next(t).uuid)
					s.advance(t, due.Sub(now))
					last = got.next(t)
					require.Equal(t, strconv.Itoa(i+1), last.metadata.Get(requeuer.RetriesKey))
					require.Equal(t, interval.String(), last.metadata.Get(delay.DelayedForKey))
				}
			})
		})
	}
}

// awaitPendingDue waits until a topic has a message that waits for its delay, and returns when it
// is due.
func (s handMovedServer) awaitPendingDue(t *testing.T, topic string) time.Time {
	t.Helper()
	waiting := queue.NewKeys(s.Prefix, topic).Pending()
	require.Eventually(t, func() bool { return exists(t, s.Client, waiting) }, patience, time.Millisecond)
	first, err := s.Client.ZRangeWithScores(t.Context(), waiting, 0, 0).Result()
	require.NoError(t, err)
	return time.UnixMilli(int64(first[0].Score)).UTC()
}

// A requeued message is published to its topic again, so that all groups get it, those too that
// were done with it. A nack concerns its own group only.
func TestRequeuedMessageGoesToAllGroups(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		router := newRouter(t)
		requeue := delayedRequeue(t, s, &middleware.DelayOnError{InitialInterval: 20 * time.Millisecond})
		got := make(sightings, 10)
		for _, group := range []string{"failing", "content"} {
			router.AddConsumerHandler(group, topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup = group
			}), func(msg *message.Message) error {
				if got.record(msg).metadata.Get(requeuer.RetriesKey) == "" && group == "failing" {
					return errNotToday
				}
				return nil
			}).AddMiddleware(requeue...)
		}
		start(t, router)
		publish(t, newPublisher(t, s), "order", 0)
		times := map[string]int{}
		for range 4 {
			times[got.next(t).delivery.Group]++
		}
		require.Equal(t, map[string]int{"failing": 2, "content": 2}, times)
	})
}
