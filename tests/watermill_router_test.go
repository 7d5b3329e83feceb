package tests

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

var errNotToday = errors.New("not today")

// Two handlers of one topic are two consumers of its group: each message goes to one of them.
func TestTwoHandlersOfOneTopicShareItsMessages(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		publisher := newPublisher(t, s)
		subscriber := newSubscriber(t, s)
		router := newRouter(t)
		seen := map[string]sightings{"one": make(sightings, 10), "other": make(sightings, 10)}
		finish := make(chan struct{})
		for name, handled := range seen {
			router.AddConsumerHandler(name, topic, subscriber, func(msg *message.Message) error {
				handled.record(msg)
				<-finish
				return nil
			})
		}
		stop := start(t, router)
		for i := range 10 {
			publish(t, publisher, strconv.Itoa(i), 0)
		}
		uuids := map[string]int{}
		for _, handled := range seen { // each has one while it does not let go of it
			uuids[handled.next(t).uuid]++
		}
		close(finish)
		for len(uuids) < 10 {
			select {
			case seen := <-seen["one"]:
				uuids[seen.uuid]++
			case seen := <-seen["other"]:
				uuids[seen.uuid]++
			}
		}
		stop()
		for _, handled := range seen {
			require.Empty(t, handled)
		}
		for uuid, times := range uuids {
			require.Equal(t, 1, times, uuid)
		}
	})
}

// Handlers that are at work when the router closes finish, and all they do counts: what they return
// is published, and their messages are done.
func TestRouterClosesWhileHandlersWork(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const atWork, waiting = 4, 20
		published := newPublisher(t, s)
		subscriber := newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = atWork })
		require.NoError(t, subscriber.SubscribeInitialize(topic))
		for i := range atWork + waiting {
			publish(t, published, strconv.Itoa(i), 0)
		}

		router := newRouter(t)
		started, finish := make(sightings, atWork+waiting), make(chan struct{})
		router.AddHandler("work", topic, subscriber, "done", newPublisher(t, s),
			func(msg *message.Message) ([]*message.Message, error) {
				started.record(msg)
				<-finish
				if err := msg.Context().Err(); err != nil {
					return nil, err
				}
				return []*message.Message{message.NewMessage(msg.UUID, nil)}, nil
			})
		stop := start(t, router)
		handled := map[string]bool{}
		for range atWork {
			handled[started.next(t).uuid] = true
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			stop()
		}()
		awaitClosing(t, subscriber)
		close(finish)
		<-closed
		for range len(started) { // by the time that passed since the router was told to close
			handled[started.next(t).uuid] = true
		}

		// Nothing of it comes again, nothing of the rest is lost or counted as delivered.
		rest := newReceipts()
		rest.ackAll(subscribe(t, s))
		for uuid, r := range rest.await(t, atWork+waiting-len(handled)) {
			require.False(t, handled[uuid], "%s was done and came again", uuid)
			require.Equal(t, 1, r.delivery.Number)
			require.False(t, r.delivery.Redelivered)
		}
		done := newReceipts()
		done.ackAll(subscribeTo(t, newSubscriber(t, s), "done"))
		for uuid := range done.await(t, len(handled)) {
			require.True(t, handled[uuid])
		}
	})
}

// awaitClosing waits until a subscriber takes no more subscriptions, as it does when it closes.
func awaitClosing(t testing.TB, subscriber *redisdelay.Subscriber) {
	t.Helper()
	require.Eventually(t, func() bool {
		return errors.Is(subscriber.SubscribeInitialize(topic), redisdelay.ErrClosed)
	}, patience, time.Millisecond)
}

// The router closes a handler's publisher when the handler's subscription has ended, so that
// handlers which share a publisher fail when another has ended before them. Their messages are not
// lost.
func TestRouterClosesAPublisherThatOthersStillUse(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		shared := newPublisher(t, s)
		router := newRouter(t)
		pass := func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }
		idle := router.AddHandler("idle", "nothing", newSubscriber(t, s), "out", shared, pass)
		router.AddHandler("busy", topic, newSubscriber(t, s), "out", shared, pass)
		stop := start(t, router)

		idle.Stop()
		await(t, idle.Stopped())
		publish(t, newPublisher(t, s), "order", 0)
		awaitRetry(t, s)
		stop()

		messages := subscribe(t, s)
		msg, delivery := receive(t, messages)
		require.Equal(t, "order", msg.UUID)
		require.Equal(t, 2, delivery.Number)
		msg.Ack()
	})
}

// awaitRetry waits until the server knows that a message was nacked.
func awaitRetry(t testing.TB, s redistest.Server) {
	t.Helper()
	retry := queue.NewKeys(s.Prefix, topic).Retry(redisdelay.DefaultConsumerGroup)
	require.Eventually(t, func() bool { return exists(t, s.Client, retry) }, patience, time.Millisecond)
}

// A message that a handler passes on, the same object, is not delayed a second time.
func TestMessagePassedOnIsNotDelayedTwice(t *testing.T) {
	t.Parallel()
	for name, set := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHandMoved(t, func(t *testing.T, s handMovedServer) {
				expectDrained(t, s.Server)
				router := newRouter(t)
				router.AddHandler("pass", topic, newSubscriber(t, s.Server, ofLongLease), "second", newPublisher(t, s.Server),
					message.PassthroughHandler)
				byHand := newPublisher(t, s.Server)
				router.AddConsumerHandler("pass by hand", "second", newSubscriber(t, s.Server, ofLongLease),
					func(msg *message.Message) error { return byHand.Publish("third", msg) })
				start(t, router)
				messages := subscribeTo(t, newSubscriber(t, s.Server, ofLongLease), "third")
				begin := serverTime(t, s.Client)

				order := message.NewMessage("order", []byte("payload"))
				order.Metadata.Set("kind", "gift")
				set(order, time.Hour)
				require.NoError(t, byHand.Publish(topic, order))
				s.nothingYet(t, byHand, topic, messages)
				s.advance(t, time.Hour)
				msg, delivery := s.receiveAtOnce(t, messages)
				requireBetween(t, delivery.DueAt, begin.Add(time.Hour), serverTime(t, s.Client))
				require.Equal(t, "order", msg.UUID)
				require.Equal(t, "payload", string(msg.Payload))
				require.Equal(t, message.Metadata{"kind": "gift"}, msg.Metadata)
				msg.Ack()
			})
		})
	}
}

// nothingYet checks that nothing comes before its time: what is published now comes first.
func (s handMovedServer) nothingYet(t *testing.T, publisher message.Publisher, topic string, messages <-chan *message.Message) {
	t.Helper()
	require.NoError(t, publisher.Publish(topic, message.NewMessage("meanwhile", nil)))
	msg, _ := s.receiveAtOnce(t, messages)
	require.Equal(t, "meanwhile", msg.UUID, "it came early")
	msg.Ack()
}

// waysToDelay are those whose due time does not depend on the clock of the program.
var waysToDelay = map[string]func(*message.Message, time.Duration){
	"delay":         redisdelay.DelayFor,
	"watermill for": func(msg *message.Message, d time.Duration) { delay.Message(msg, delay.For(d)) },
	"context": func(msg *message.Message, d time.Duration) {
		msg.SetContext(delay.WithContext(msg.Context(), delay.For(d)))
	},
}

// A handler that publishes its own message again, with a new delay, is called again when that is
// over.
func TestHandlerReschedulesItself(t *testing.T) {
	t.Parallel()
	onHandMoved(t, func(t *testing.T, s handMovedServer) {
		expectDrained(t, s.Server)
		publisher := newPublisher(t, s.Server)
		router := newRouter(t)
		runs := make(sightings, 10)
		const times = 4
		router.AddHandler("report", topic, newSubscriber(t, s.Server, ofLongLease), topic, newPublisher(t, s.Server),
			func(msg *message.Message) ([]*message.Message, error) {
				run, _ := strconv.Atoi(msg.Metadata.Get("run"))
				if run++; run < times {
					msg.Metadata.Set("run", strconv.Itoa(run))
					redisdelay.DelayFor(msg, 24*time.Hour)
					defer runs.record(msg)
					return []*message.Message{msg}, nil
				}
				runs.record(msg)
				return nil, nil
			})
		start(t, router)

		earliest := serverTime(t, s.Client).Add(time.Hour)
		publish(t, publisher, "daily report", time.Hour)
		latest := serverTime(t, s.Client).Add(time.Hour)
		s.advance(t, time.Hour)
		for i := range times {
			run := runs.next(t)
			requireBetween(t, run.delivery.DueAt, earliest, latest)
			require.Equal(t, 1, run.delivery.Number)
			require.False(t, run.delivery.Redelivered)
			s.awaitPending(t, i < times-1)
			earliest, latest = run.delivery.DueAt.Add(24*time.Hour), serverTime(t, s.Client).Add(24*time.Hour)
			s.advance(t, 24*time.Hour)
		}
	})
}

// ofLongLease is for clocks that are moved by hand before the server may have heard that a message
// is done.
func ofLongLease(c *redisdelay.SubscriberConfig) { c.LeaseDuration = 365 * 24 * time.Hour }

// awaitPending waits until the topic has messages that wait for their first delay, or none at all.
func (s handMovedServer) awaitPending(t *testing.T, some bool) {
	t.Helper()
	waiting := queue.NewKeys(s.Prefix, topic).Pending()
	require.Eventually(t, func() bool { return exists(t, s.Client, waiting) == some }, patience, time.Millisecond)
}

// A chain of decorators sees each delivery once, in order, those of a nacked message too, and
// closes with the router.
func TestSubscriberDecoratorsAreAChain(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		publisher := newPublisher(t, s)
		router := newRouter(t)
		type stage struct{}
		for i := range 3 {
			router.AddSubscriberDecorators(message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
				msg.Metadata.Set("stages", msg.Metadata.Get("stages")+strconv.Itoa(i))
				msg.SetContext(context.WithValue(msg.Context(), stage{}, i))
			}))
		}
		router.AddPublisherDecorators(message.MessageTransformPublisherDecorator(func(msg *message.Message) {
			msg.Metadata.Set("decorated", "yes")
			redisdelay.DelayFor(msg, 50*time.Millisecond)
		}))
		got := make(sightings, 100)
		router.AddHandler("work", topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return 0 }
		}), "out", newPublisher(t, s), func(msg *message.Message) ([]*message.Message, error) {
			assert.Equal(t, 2, msg.Context().Value(stage{}))
			if got.record(msg).delivery.Number == 1 {
				return nil, errNotToday
			}
			return []*message.Message{message.NewMessage(msg.UUID, nil)}, nil
		})
		stop := start(t, router)
		out := subscribeTo(t, newSubscriber(t, s), "out")

		const messages = 10
		for i := range messages {
			publish(t, publisher, strconv.Itoa(i), 0)
		}
		for i := range messages {
			for number := range 2 {
				delivery := got.next(t)
				require.Equal(t, strconv.Itoa(i), delivery.uuid, "out of order")
				require.Equal(t, number+1, delivery.delivery.Number)
				require.Equal(t, "012", delivery.metadata.Get("stages"))
			}
			msg, delivery := receive(t, out)
			require.Equal(t, "yes", msg.Metadata.Get("decorated"))
			requireOnTime(t, delivery, time.Now())
			msg.Ack()
		}
		stop()
	})
}

// A handler that is added to a running router gets what was there, and stops alone.
func TestHandlersComeAndGoWhileTheRouterRuns(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		publisher := newPublisher(t, s)
		router := newRouter(t)
		got := make(sightings, 10)
		add := func(group string) *message.Handler {
			return router.AddConsumerHandler(group, topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup = group
			}), func(msg *message.Message) error {
				got.record(msg)
				return nil
			})
		}
		first := add("first")
		start(t, router)
		second := add("second")
		require.NoError(t, router.RunHandlers(t.Context()))
		await(t, second.Started())

		publish(t, publisher, "both", 50*time.Millisecond)
		groups := map[string]bool{}
		for range 2 {
			sighting := got.next(t)
			require.Equal(t, "both", sighting.uuid)
			groups[sighting.delivery.Group] = true
		}
		require.Len(t, groups, 2)

		first.Stop()
		await(t, first.Stopped())
		publish(t, publisher, "second", 50*time.Millisecond)
		require.Equal(t, "second", got.next(t).delivery.Group)

		third := add("first")
		require.NoError(t, router.RunHandlers(t.Context()))
		await(t, third.Started())
		sighting := got.next(t)
		require.Equal(t, "second", sighting.uuid, "what came while the group had no handler")
		require.Equal(t, "first", sighting.delivery.Group)
	})
}

func await(t testing.TB, done <-chan struct{}) {
	t.Helper()
	testkit.Wait(t, done, "it to happen")
}

// sightings are what handlers were given.
type sightings chan sighting

type sighting struct {
	uuid     string
	metadata message.Metadata
	delivery redisdelay.Delivery
	at       time.Time
}

func (s sightings) record(msg *message.Message) sighting {
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	seen := sighting{msg.UUID, maps.Clone(msg.Metadata), delivery, time.Now()}
	s <- seen
	return seen
}

func (s sightings) next(t testing.TB) sighting {
	t.Helper()

	return testkit.Wait(t, s, "a call of the handler")
}
