package components

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// OrderPlaced is an event, SendFeedbackForm a command.
type (
	OrderPlaced      struct{ OrderID string }
	OrderPaid        struct{ OrderID string }
	SendFeedbackForm struct{ OrderID string }
)

var (
	marshaler   = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	errNotToday = errors.New("not today")
)

// waysToDelay wrap the publisher of a bus, and make the context of a call.
var waysToDelay = map[string]struct {
	publisher func(message.Publisher) (message.Publisher, error)
	ctx       func(context.Context, time.Duration) context.Context
}{
	"delay.WithContext": {
		func(p message.Publisher) (message.Publisher, error) { return p, nil },
		func(ctx context.Context, d time.Duration) context.Context {
			return delay.WithContext(ctx, delay.For(d))
		},
	},
	"delay.NewPublisher and delay.WithContext": {
		func(p message.Publisher) (message.Publisher, error) {
			return delay.NewPublisher(p, delay.PublisherConfig{AllowNoDelay: true})
		},
		func(ctx context.Context, d time.Duration) context.Context {
			return delay.WithContext(ctx, delay.For(d))
		},
	},
	"delay.NewPublisher with a default": {
		func(p message.Publisher) (message.Publisher, error) {
			return delay.NewPublisher(p, delay.PublisherConfig{
				DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
					return delay.For(usualDelay), nil
				},
			})
		},
		func(ctx context.Context, _ time.Duration) context.Context { return ctx },
	},
}

const usualDelay = 150 * time.Millisecond

// A command is handled when its delay is over; one whose handler fails backs off from
// InitialInterval on.
func TestDelayedCommands(t *testing.T) {
	t.Parallel()
	for name, way := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				got := newSightings()
				router := newRouter(t)
				onError := middleware.DelayOnError{InitialInterval: 30 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
				router.AddMiddleware(onError.Middleware)
				addCommandHandlers(t, s, router, cqrs.NewCommandHandler("feedback", func(ctx context.Context, c *SendFeedbackForm) error {
					if seen := got.record(c.OrderID, ctx, cqrs.OriginalMessageFromCtx(ctx).Metadata); seen.delivery.Number < 3 {
						return errNotToday
					}
					return nil
				}))
				start(t, router)
				publisher, err := way.publisher(newPublisher(t, s))
				require.NoError(t, err)
				bus := newCommandBus(t, publisher)

				before := time.Now()
				require.NoError(t, bus.Send(way.ctx(t.Context(), usualDelay), &SendFeedbackForm{OrderID: "1"}))
				seen := got.next(t)
				requireDelayed(t, seen, before, usualDelay)
				require.Equal(t, message.Metadata{"name": "SendFeedbackForm"}, seen.metadata)
				for i, waited := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond} {
					failed := seen.at
					seen = got.next(t)
					require.Equal(t, i+2, seen.delivery.Number)
					require.Equal(t, waited.String(), seen.metadata.Get(delay.DelayedForKey))
					requireDelayed(t, seen, failed, waited)
				}
			})
		})
	}
}

// A message that a bus sends later can be named, and so be taken back or replaced.
func TestCommandsAndEventsCanBeNamed(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		publisher := newPublisher(t, s)
		later := delay.WithContext(t.Context(), delay.For(time.Hour))
		bus := newCommandBus(t, publisher)
		events, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
			OnPublish: func(p cqrs.OnEventSendParams) error {
				redisdelay.SetDelayID(p.Message, "order "+p.Event.(*OrderPaid).OrderID, redisdelay.DelayIDReplace)
				return nil
			},
			Marshaler: marshaler,
		})
		require.NoError(t, err)
		for range 2 { // the second takes the place of the first
			require.NoError(t, bus.SendWithModifiedMessage(later, &SendFeedbackForm{OrderID: "1"}, func(msg *message.Message) error {
				redisdelay.SetDelayID(msg, "order 1", redisdelay.DelayIDReplace)
				return nil
			}))
			require.NoError(t, events.Publish(later, &OrderPaid{OrderID: "1"}))
		}
		operator, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		for _, topic := range []string{"SendFeedbackForm", "OrderPaid"} {
			stats, err := operator.Stats(t.Context(), topic)
			require.NoError(t, err)
			require.Equal(t, 1, stats.Waiting)
			require.NoError(t, operator.Cancel(t.Context(), topic, admin.ByDelayID("order 1")))
			stats, err = operator.Stats(t.Context(), topic)
			require.NoError(t, err)
			require.Zero(t, stats.Waiting)
		}
	})
}

func newCommandBus(t testing.TB, publisher message.Publisher) *cqrs.CommandBus {
	t.Helper()
	bus, err := cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return p.CommandName, nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	return bus
}

func addCommandHandlers(t testing.TB, s redistest.Server, router *message.Router, handlers ...cqrs.CommandHandler) {
	t.Helper()
	processor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return p.CommandName, nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return newSubscriber(t, s), nil
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	require.NoError(t, processor.AddHandlers(handlers...))
}

// Each handler of an event has a group, and so gets each event once, when its delay is over; that
// one fails is nothing to the others.
func TestDelayedEventsReachEachHandlerOnce(t *testing.T) {
	t.Parallel()
	for name, way := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				expectDrained(t, s)
				const events = 30
				handlers := map[string]sightings{"billing": newSightings(), "shipping": newSightings(), "failing": newSightings()}
				router := newRouter(t)
				processor := newEventProcessor(t, s, router)
				for handler, got := range handlers {
					require.NoError(t, processor.AddHandlers(cqrs.NewEventHandler(handler, func(ctx context.Context, e *OrderPlaced) error {
						if got.record(e.OrderID, ctx, nil).delivery.Number == 1 && handler == "failing" {
							return errNotToday
						}
						return nil
					})))
				}
				start(t, router)
				publisher, err := way.publisher(newPublisher(t, s))
				require.NoError(t, err)
				bus := newEventBus(t, publisher)

				published := map[string]time.Time{}
				for i := range events {
					id := string(rune('A' + i))
					published[id] = time.Now()
					require.NoError(t, bus.Publish(way.ctx(t.Context(), usualDelay), OrderPlaced{OrderID: id}))
				}
				for handler, got := range handlers {
					times, want := map[string]int{}, 1
					if handler == "failing" {
						want = 2
					}
					for range events * want {
						seen := got.next(t)
						require.Equal(t, handler, seen.delivery.Group)
						if times[seen.what]++; times[seen.what] == 1 {
							requireDelayed(t, seen, published[seen.what], usualDelay)
						}
					}
					for id := range published {
						require.Equal(t, want, times[id], "%s of %s", id, handler)
					}
				}
				awaitGone(t, s, "OrderPlaced")
				for handler, got := range handlers {
					require.Empty(t, got, handler)
				}
			})
		})
	}
}

func newEventBus(t testing.TB, publisher message.Publisher) *cqrs.EventBus {
	t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	return bus
}

// newEventProcessor has a group for each handler.
func newEventProcessor(t testing.TB, s redistest.Server, router *message.Router) *cqrs.EventProcessor {
	t.Helper()
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup = p.HandlerName
				c.MaxInFlight = 10
				c.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
			}), nil
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	return processor
}

// A group of handlers on one topic gets all its events in order of due time, also when one of them
// fails for a while and keeps its place.
func TestEventGroupKeepsTheOrder(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const orders = 40
		got := newSightings()
		router := newRouter(t)
		processor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
			SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
					c.ConsumerGroup = p.EventGroupName
					c.Backoff = func(int) time.Duration { return 0 }
				}), nil
			},
			AckOnUnknownEvent: true,
			Marshaler:         marshaler,
		})
		require.NoError(t, err)
		handle := func(what string, ctx context.Context) error {
			delivery, _ := redisdelay.DeliveryFromContext(ctx)
			if what[0] == 'C' && delivery.Number < 3 {
				return errNotToday
			}
			got.record(what, ctx, nil)
			return nil
		}
		require.NoError(t, processor.AddHandlersGroup("orders",
			cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderPlaced) error { return handle(e.OrderID+" placed", ctx) }),
			cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderPaid) error { return handle(e.OrderID+" paid", ctx) }),
		))
		start(t, router)
		var due time.Time
		bus, err := cqrs.NewEventBusWithConfig(newPublisher(t, s), cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
			OnPublish: func(p cqrs.OnEventSendParams) error {
				if !due.IsZero() {
					redisdelay.DelayUntil(p.Message, due)
				}
				return nil
			},
			Marshaler: marshaler,
		})
		require.NoError(t, err)

		// All are due at once, or at the same instant.
		ctx := t.Context()
		for _, later := range []time.Duration{0, time.Second} {
			if later > 0 {
				due = time.Now().Add(later)
			}
			var want []string
			for i := range orders {
				id := string(rune('A' + i))
				require.NoError(t, bus.Publish(ctx, OrderPlaced{OrderID: id}))
				require.NoError(t, bus.Publish(ctx, SendFeedbackForm{OrderID: id})) // no handler
				require.NoError(t, bus.Publish(ctx, OrderPaid{OrderID: id}))
				want = append(want, id+" placed", id+" paid")
			}
			for _, what := range want {
				require.Equal(t, what, got.next(t).what)
			}
		}
	})
}

// Watermill's own example of delayed messages: an event's handler sends a command with a delay,
// which is handled later. The command's backoff begins with InitialInterval.
func TestWatermillsExampleOfDelayedMessages(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const orders, feedbackAfter = 5, 300 * time.Millisecond
		publisher := newPublisher(t, s)
		delaying, err := delay.NewPublisher(publisher, delay.PublisherConfig{})
		require.NoError(t, err)
		events, commands := newEventBus(t, publisher), newCommandBus(t, delaying)
		router := newRouter(t)
		onError := middleware.DelayOnError{InitialInterval: 20 * time.Millisecond, Multiplier: 2, MaxInterval: time.Hour}
		router.AddMiddleware(onError.Middleware)
		placed, asked := newSightings(), newSightings()
		require.NoError(t, newEventProcessor(t, s, router).AddHandlers(
			cqrs.NewEventHandler("OnOrderPlaced", func(ctx context.Context, e *OrderPlaced) error {
				placed.record(e.OrderID, ctx, nil)
				ctx = delay.WithContext(ctx, delay.For(feedbackAfter))
				return commands.Send(ctx, SendFeedbackForm{OrderID: e.OrderID})
			}),
		))
		addCommandHandlers(t, s, router, cqrs.NewCommandHandler("OnSendFeedbackForm", func(ctx context.Context, c *SendFeedbackForm) error {
			seen := asked.record(c.OrderID, ctx, cqrs.OriginalMessageFromCtx(ctx).Metadata)
			if seen.delivery.Number == 1 && c.OrderID == "A" {
				return errNotToday
			}
			return nil
		}))
		start(t, router)
		for i := range orders {
			require.NoError(t, events.Publish(t.Context(), OrderPlaced{OrderID: string(rune('A' + i))}))
		}
		at := map[string]time.Time{}
		for range orders {
			seen := placed.next(t)
			at[seen.what] = seen.at
		}
		for range orders + 1 {
			seen := asked.next(t)
			if seen.delivery.Number == 1 {
				requireDelayed(t, seen, at[seen.what], feedbackAfter)
				require.NotContains(t, seen.metadata, delay.DelayedForKey)
			} else {
				require.Equal(t, "20ms", seen.metadata.Get(delay.DelayedForKey))
			}
		}
	})
}
