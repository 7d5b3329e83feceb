package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// atOnce lets the tests see what a nack does without waiting for it. Retries of the middleware are
// one delivery, for which the lease is extended for as long as they take.
func TestRetryKeepsTheLease(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		got := make(sightings, 10)
		retry := middleware.Retry{MaxRetries: 5, InitialInterval: crashLease, Multiplier: 1, MaxInterval: crashLease}
		router := newRouter(t)
		var others atomic.Int32
		work := func(msg *message.Message) error {
			others.Add(1)
			if got.record(msg); others.Load() <= 2 {
				return errNotToday
			}
			return msg.Context().Err()
		}
		for i := range 2 { // the second would get it if the first lost it
			router.AddConsumerHandler(strconv.Itoa(i), topic, newSubscriber(t, s, ofCrashLease), work)
		}
		router.AddMiddleware(retry.Middleware)
		start(t, router)
		publish(t, newPublisher(t, s), "order", 50*time.Millisecond)
		first := got.next(t)
		for range 2 {
			require.Equal(t, first.delivery, got.next(t).delivery)
		}
	})
}

// A message that the retries of the middleware do not mend is nacked once, and then waits in Redis.
func TestRetryGivesUpWithOneNack(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		got := make(sightings, 10)
		router := newRouter(t)
		onError := middleware.DelayOnError{InitialInterval: 50 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
		retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1, MaxInterval: time.Millisecond}
		router.AddMiddleware(onError.Middleware, retry.Middleware)
		router.AddConsumerHandler("work", topic, newSubscriber(t, s), func(msg *message.Message) error {
			if got.record(msg).delivery.Number < 3 {
				return errNotToday
			}
			return nil
		})
		start(t, router)
		publish(t, newPublisher(t, s), "order", 0)
		for number, waited := range []string{"", "50ms"} {
			for range 3 { // a delivery and two retries
				seen := got.next(t)
				require.Equal(t, number+1, seen.delivery.Number)
				require.Equal(t, waited, seen.metadata.Get(delay.DelayedForKey))
			}
		}
		require.Equal(t, 3, got.next(t).delivery.Number)
	})
}

// Timeout ends the handler's context, not the message's own: the nack counts, the delivery after it
// has a context that lives, and what is published with the ended one is published.
func TestTimeoutEndsTheHandlerOnly(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		router := newRouter(t)
		router.AddMiddleware(poisonQueue(t, newPublisher(t, s), "poison"), middleware.Timeout(20*time.Millisecond))
		handle := func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "slow" {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			return []*message.Message{msg}, msg.Context().Err() // Timeout cancels its context then
		}
		router.AddHandler("work", topic, newSubscriber(t, s), "out", newPublisher(t, s), handle)
		got := make(sightings, 10)
		nacking := router.AddConsumerHandler("nack", "nacked", newSubscriber(t, s, atOnce), func(msg *message.Message) error {
			if got.record(msg).delivery.Number == 1 {
				<-msg.Context().Done()
			}
			return msg.Context().Err()
		})
		nacking.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := next(msg)
				if err != nil {
					msg.Nack() // before the poison queue takes it
				}
				return nil, nil
			}
		})
		start(t, router)
		poisoned := subscribeTo(t, newSubscriber(t, s), "poison")
		out := subscribeTo(t, newSubscriber(t, s), "out")
		publisher := newPublisher(t, s)

		publish(t, publisher, "slow", 0)
		msg, _ := receive(t, poisoned)
		require.Equal(t, "slow", msg.UUID)
		require.Equal(t, context.DeadlineExceeded.Error(), msg.Metadata.Get(middleware.ReasonForPoisonedKey))
		msg.Ack()
		publish(t, publisher, "quick", 0)
		msg, _ = receive(t, out)
		require.Equal(t, "quick", msg.UUID)
		msg.Ack()
		require.NoError(t, publisher.Publish("nacked", message.NewMessage("nacked", nil)))
		require.Equal(t, 1, got.next(t).delivery.Number)
		require.Equal(t, 2, got.next(t).delivery.Number)
	})
}

// Messages that wait for their turn keep their leases, and no subscriber hoards what it cannot
// take.
func TestThrottleHoldsMessagesWithoutLosingThem(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const messages, interval = 12, 200 * time.Millisecond
		router := newRouter(t)
		got := make(sightings, 2*messages)
		throttle := middleware.NewThrottle(1, interval)
		router.AddMiddleware(throttle.Middleware)
		for i := range 2 {
			router.AddConsumerHandler(strconv.Itoa(i), topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.LeaseDuration = crashLease
				c.MaxInFlight = messages
			}), func(msg *message.Message) error {
				got.record(msg)
				return msg.Context().Err()
			})
		}
		start(t, router)
		publisher := newPublisher(t, s)
		begin := time.Now()
		for i := range messages {
			publish(t, publisher, strconv.Itoa(i), 50*time.Millisecond)
		}
		seen := map[string]bool{}
		for range messages {
			sighting := got.next(t)
			require.False(t, seen[sighting.uuid], "%s came twice", sighting.uuid)
			require.False(t, sighting.delivery.Redelivered)
			seen[sighting.uuid] = true
		}
		// A tick may have been waiting for the first.
		require.GreaterOrEqual(t, time.Since(begin), (messages-2)*interval)
	})
}

// Deduplicator drops what it has seen. A message that failed was seen too, so it would be dropped
// at its retry: unless a redelivery has a key of its own.
func TestDeduplicatorAndRetries(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key   middleware.MessageHasher
		tries []string
	}{
		"retries are dropped": {func(msg *message.Message) (string, error) { return msg.UUID, nil }, []string{"1"}},
		"retries are handled": {byFirstDelivery, []string{"1", "2", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				router := newRouter(t)
				deduplicator := middleware.Deduplicator{KeyFactory: test.key, Timeout: patience}
				router.AddMiddleware(deduplicator.Middleware)
				got := make(sightings, 10)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s, atOnce), func(msg *message.Message) error {
					if seen := got.record(msg); seen.uuid == "order" && seen.delivery.Number < 3 {
						return errNotToday
					}
					return nil
				})
				start(t, router)
				publisher := newPublisher(t, s)
				publish(t, publisher, "order", 50*time.Millisecond)
				for _, number := range test.tries {
					seen := got.next(t)
					require.Equal(t, "order", seen.uuid)
					require.Equal(t, number, strconv.Itoa(seen.delivery.Number))
				}
				publish(t, publisher, "order", 0) // the same UUID again
				publish(t, publisher, "end", 0)
				require.Equal(t, "end", got.next(t).uuid)
			})
		})
	}
}

// byFirstDelivery is the key that docs/watermill.md says.
func byFirstDelivery(msg *message.Message) (string, error) {
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	switch {
	case !ok:
		return "", errors.New("not a delivery")
	case delivery.Redelivered:
		return watermill.NewUUID(), nil
	default:
		return fmt.Sprintf("%q %q %s", delivery.Topic, delivery.Group, msg.UUID), nil
	}
}

// The number of the delivery does not tell these from what was seen: the first lost lease does not
// count, what is requeued counts anew, and what is poisoned is another topic's.
func TestDeduplicatorHandlesMessagesThatComeAgain(t *testing.T) {
	t.Parallel()
	onHandMoved(t, func(t *testing.T, s handMovedServer) {
		expectDrained(t, s.Server)
		publisher := newPublisher(t, s.Server)
		repository, err := middleware.NewMapExpiringKeyRepository(time.Hour)
		require.NoError(t, err)
		router := newRouter(t)
		router.AddMiddleware((&middleware.Deduplicator{KeyFactory: byFirstDelivery, Repository: repository, Timeout: patience}).Middleware)
		work := newSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
			c.LeaseDuration, c.MaxDeliveries = time.Minute/2, 1
		})
		got, poisoned := make(sightings, 10), make(sightings, 10)
		router.AddConsumerHandler("work", topic, work, func(msg *message.Message) error {
			seen := got.record(msg)
			switch {
			case seen.uuid == "slow" && !seen.delivery.Redelivered:
				<-msg.Context().Done() // its lease is lost
				return msg.Context().Err()
			case seen.uuid == "dies" && !seen.delivery.Redelivered:
				return errNotToday
			}
			return nil
		})
		poison := router.AddConsumerHandler("poisoned work", "bad", newSubscriber(t, s.Server), func(*message.Message) error {
			return errNotToday
		})
		poison.AddMiddleware(poisonQueue(t, publisher, "poison"))
		router.AddConsumerHandler("poison", "poison", newSubscriber(t, s.Server), func(msg *message.Message) error {
			poisoned.record(msg)
			return nil
		})
		start(t, router)

		publish(t, publisher, "slow", 0)
		require.Equal(t, 1, got.next(t).delivery.Number)
		if s.kit != nil {
			s.kit.ExpireLeases(topic) // which Advance leaves alone
		} else {
			s.advance(t, time.Minute)
		}
		again := got.next(t)
		require.Equal(t, "slow", again.uuid)
		require.Equal(t, 1, again.delivery.Number)

		publish(t, publisher, "dies", 0)
		require.Equal(t, "dies", got.next(t).uuid)
		operator, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			n, err := operator.RequeueAll(t.Context(), topic, admin.Bulk{Group: redisdelay.DefaultConsumerGroup})
			return err == nil && n == 1
		}, patience, time.Millisecond)
		again = got.next(t)
		require.Equal(t, "dies", again.uuid)
		require.Equal(t, 1, again.delivery.Number)

		require.NoError(t, publisher.Publish("bad", newMessage("bad", 0)))
		require.Equal(t, "bad", poisoned.next(t).uuid)
	})
}

// On the publisher's side the delayed messages that are repeated are dropped before they are in
// Redis.
func TestDeduplicatorDecoratesAPublisher(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		deduplicator := middleware.Deduplicator{
			KeyFactory: middleware.NewMessageHasherSHA256(math.MaxInt64), Timeout: patience,
		}
		publisher, err := deduplicator.PublisherDecorator()(newPublisher(t, s))
		require.NoError(t, err)
		messages := subscribe(t, s)
		for i, payload := range []string{"a", "a", "b", "a"} {
			msg := message.NewMessage(strconv.Itoa(i), []byte(payload))
			redisdelay.DelayFor(msg, time.Duration(i+1)*50*time.Millisecond)
			require.NoError(t, publisher.Publish(topic, msg))
		}
		for _, uuid := range []string{"0", "2"} {
			msg, _ := receive(t, messages)
			require.Equal(t, uuid, msg.UUID)
			msg.Ack()
		}
		publish(t, newPublisher(t, s), "end", 300*time.Millisecond)
		msg, _ := receive(t, messages)
		require.Equal(t, "end", msg.UUID)
		msg.Ack()
	})
}

// The correlation ID passes through delays, retries, and from message to message.
func TestCorrelationIDOutlastsDelaysAndRetries(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		router := newRouter(t)
		router.AddMiddleware(middleware.CorrelationID)
		router.AddHandler("work", topic, newSubscriber(t, s, atOnce), "out", newPublisher(t, s),
			func(msg *message.Message) ([]*message.Message, error) {
				if deliveryOf(t, msg).Number == 1 {
					return nil, errNotToday
				}
				return []*message.Message{newMessage("later", 50*time.Millisecond)}, nil
			})
		start(t, router)
		out := subscribeTo(t, newSubscriber(t, s), "out")
		order := newMessage("order", 50*time.Millisecond)
		middleware.SetCorrelationID("request 7", order)
		require.NoError(t, newPublisher(t, s).Publish(topic, order))
		msg, delivery := receive(t, out)
		require.Equal(t, "later", msg.UUID)
		require.Equal(t, "request 7", middleware.MessageCorrelationID(msg))
		requireOnTime(t, delivery, time.Now())
		msg.Ack()
	})
}

// A handler that panics has nacked, with Recoverer, so that others in the chain see it, and
// without.
func TestPanickingHandlerHasNacked(t *testing.T) {
	t.Parallel()
	for name, recoverer := range map[string]message.HandlerMiddleware{
		"Recoverer": middleware.Recoverer,
		"none":      func(next message.HandlerFunc) message.HandlerFunc { return next },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				nacks := noteNacks(s)
				onError := middleware.DelayOnError{InitialInterval: 50 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
				got := make(sightings, 10)
				router := newRouter(t)
				router.AddMiddleware(onError.Middleware, recoverer)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
					c.Backoff = func(int) time.Duration { return 30 * time.Millisecond }
				}), func(msg *message.Message) error {
					if got.record(msg).delivery.Number < 3 {
						panic("no such order")
					}
					return nil
				})
				start(t, router)
				publish(t, newPublisher(t, s), "order", 0)

				intervals := []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}
				if name == "none" { // a panic passes DelayOnError by
					intervals = []time.Duration{30 * time.Millisecond, 30 * time.Millisecond}
				}
				last := got.next(t)
				for i, interval := range intervals {
					again := got.next(t)
					require.Equal(t, i+2, again.delivery.Number)
					nacks.requireGap(t, last, again, interval)
					last = again
				}
			})
		})
	}
}

// InstantAck settles the message before it is handled, which ends its context. Publishing the same
// object, or another with its context, works all the same, with a delay and without.
func TestInstantAckAndPublishingOn(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		publisher := newPublisher(t, s)
		router := newRouter(t)
		router.AddMiddleware(middleware.InstantAck)
		router.AddHandler("work", topic, newSubscriber(t, s), "out", newPublisher(t, s),
			func(msg *message.Message) ([]*message.Message, error) {
				await(t, msg.Context().Done()) // the server has it, or is about to
				other := newMessage("other", 100*time.Millisecond)
				other.SetContext(msg.Context())
				assert.NoError(t, publisher.Publish("out", other))
				redisdelay.DelayFor(msg, 50*time.Millisecond)
				assert.NoError(t, publisher.Publish("out", msg))
				msg.Metadata.Set("returned", "yes")
				redisdelay.DelayFor(msg, 150*time.Millisecond)
				return []*message.Message{msg}, nil
			})
		start(t, router)
		out := subscribeTo(t, newSubscriber(t, s), "out")
		publish(t, publisher, "order", 50*time.Millisecond)
		for range 3 {
			msg, delivery := receive(t, out)
			requireOnTime(t, delivery, time.Now())
			name := msg.UUID + msg.Metadata.Get("returned")
			require.Contains(t, []string{"order", "other", "orderyes"}, name)
			msg.Ack()
		}
	})
}

// With InstantAck a handler that fails has lost its message, and nothing is held up by it.
func TestInstantAckForgetsFailedMessages(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		got := make(sightings, 10)
		router := newRouter(t)
		router.AddMiddleware(middleware.InstantAck)
		router.AddConsumerHandler("work", topic, newSubscriber(t, s, atOnce), func(msg *message.Message) error {
			got.record(msg)
			return errNotToday
		})
		start(t, router)
		publisher := newPublisher(t, s)
		for _, uuid := range []string{"first", "second"} {
			publish(t, publisher, uuid, 0)
			seen := got.next(t)
			require.Equal(t, uuid, seen.uuid)
			require.Equal(t, 1, seen.delivery.Number)
		}
	})
}

// Timeout leaves its context on the message, and ends it. ResetContextOnRetry mends that, as does
// Timeout outside of Retry.
func TestRetryOutsideOfTimeoutRetriesOnADeadContext(t *testing.T) {
	t.Parallel()
	timeout := middleware.Timeout(time.Hour)
	retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1, MaxInterval: time.Millisecond}
	reset := retry
	reset.ResetContextOnRetry = true
	for name, test := range map[string]struct {
		outer, inner message.HandlerMiddleware
		want         []error
	}{
		"outside":            {retry.Middleware, timeout, []error{nil, context.Canceled, context.Canceled}},
		"outside, and reset": {reset.Middleware, timeout, []error{nil, nil, nil}},
		"inside":             {timeout, retry.Middleware, []error{nil, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				found := make(chan error, len(test.want))
				router := newRouter(t)
				var tries atomic.Int32
				router.AddMiddleware(test.outer, test.inner)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s), func(msg *message.Message) error {
					found <- msg.Context().Err()
					if tries.Add(1) == 3 {
						return nil
					}
					return errNotToday
				})
				start(t, router)
				publish(t, newPublisher(t, s), "order", 0)
				for i, want := range test.want {
					require.Equal(t, want, testkit.Wait(t, found, fmt.Sprint("try ", i+1)))
				}
			})
		})
	}
}

// Retry looks at the context before it calls the handler, and the ack has ended it, or is about to:
// so Retry belongs outside of InstantAck.
func TestRetryAndInstantAck(t *testing.T) {
	t.Parallel()
	afterTheAck := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return next(msg)
		}
	}
	retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1, MaxInterval: time.Millisecond}
	for name, test := range map[string]struct {
		chain []message.HandlerMiddleware
		calls int
	}{
		"inside":  {[]message.HandlerMiddleware{middleware.InstantAck, afterTheAck, retry.Middleware}, 0},
		"outside": {[]message.HandlerMiddleware{retry.Middleware, middleware.InstantAck, afterTheAck}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				calls := make(sightings, 10)
				done := make(chan struct{})
				router := newRouter(t)
				router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						defer close(done)
						return next(msg)
					}
				})
				router.AddMiddleware(test.chain...)
				router.AddConsumerHandler("work", topic, newSubscriber(t, s), func(msg *message.Message) error {
					calls.record(msg)
					return errNotToday
				})
				start(t, router)
				publish(t, newPublisher(t, s), "order", 0)
				await(t, done)
				require.Len(t, calls, test.calls)
			})
		})
	}
}

// An error that is ignored is an ack; another is a nack.
func TestIgnoredErrorIsAnAck(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		errGone := errors.New("order is gone")
		got := make(sightings, 10)
		router := newRouter(t)
		router.AddMiddleware(middleware.NewIgnoreErrors([]error{errGone}).Middleware)
		router.AddConsumerHandler("work", topic, newSubscriber(t, s, atOnce), func(msg *message.Message) error {
			if got.record(msg).delivery.Number == 1 {
				return errNotToday
			}
			return errGone
		})
		start(t, router)
		publisher := newPublisher(t, s)
		for _, uuid := range []string{"first", "second"} {
			publish(t, publisher, uuid, 0)
			for number := range 2 {
				seen := got.next(t)
				require.Equal(t, uuid, seen.uuid)
				require.Equal(t, number+1, seen.delivery.Number)
			}
		}
	})
}

// Under handlers that fail, panic, and run twice, every message gets through, and nothing is left.
func TestEverythingGetsThroughFailingPanickingAndDuplicatingHandlers(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const messages, workers = 300, 3
		onError := middleware.DelayOnError{InitialInterval: time.Millisecond, Multiplier: 2, MaxInterval: 20 * time.Millisecond}
		router := newRouter(t)
		router.AddMiddleware(onError.Middleware, middleware.Recoverer, middleware.RandomFail(0.2), middleware.RandomPanic(0.2), middleware.Duplicator)
		for i := range workers {
			router.AddHandler(strconv.Itoa(i), topic, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.MaxInFlight = 10
				c.MaxDeliveries = -1
			}), "out", newPublisher(t, s), message.PassthroughHandler)
		}
		start(t, router)
		out := subscribeTo(t, newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 100 }), "out")
		publisher := newPublisher(t, s)
		for i := range messages {
			publish(t, publisher, strconv.Itoa(i), time.Duration(i%100)*time.Millisecond)
		}
		copies, ids := map[string]int{}, map[string]bool{}
		for range 2 * messages { // Duplicator returns the same message object twice
			msg, delivery := receive(t, out)
			copies[msg.UUID]++
			require.False(t, ids[delivery.ID])
			ids[delivery.ID] = true
			msg.Ack()
		}
		require.Len(t, copies, messages)
		for uuid, n := range copies {
			require.Equal(t, 2, n, uuid)
		}
	})
}
