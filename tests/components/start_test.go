package components

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// starts is how often a program starts on an empty Redis. They run in parallel, which is the load.
const starts = 50

// byHandler are the UUIDs of the messages that handlers got. It also has the subscriptions of a
// topic wait for its first group.
type byHandler struct {
	mu      sync.Mutex
	got     map[string][]string
	handled map[string]chan struct{} // by topic: closed when a handler got a message of it
}

// latecomer is a Subscriber that is late: unless it is the topic's first one, it subscribes when a
// handler has got a message. Without a window, its group does not get that message.
type latecomer struct {
	message.Subscriber
	handlers *byHandler
}

func (l latecomer) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if handled, first := l.handlers.topic(topic); !first {
		select {
		case <-handled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return l.Subscriber.Subscribe(ctx, topic)
}

// topic returns a channel that is closed when a handler got a message of the topic, and whether it
// is the first call for the topic.
func (b *byHandler) topic(topic string) (handled chan struct{}, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handled == nil {
		b.handled = map[string]chan struct{}{}
	}
	handled, there := b.handled[topic]
	if !there {
		handled = make(chan struct{})
		b.handled[topic] = handled
	}
	return handled, !there
}

func (b *byHandler) note(topic, handler, uuid string) {
	handled, _ := b.topic(topic)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.got == nil {
		b.got = map[string][]string{}
	}
	select {
	case <-handled:
	default:
		close(handled)
	}
	if !slices.Contains(b.got[handler], uuid) { // it may come again
		b.got[handler] = append(b.got[handler], uuid)
	}
}

func (b *byHandler) of(handler string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got[handler])
}

// middleware notes what each handler of a router gets.
func (b *byHandler) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		b.note(message.SubscribeTopicFromCtx(msg.Context()), message.HandlerNameFromCtx(msg.Context()), msg.UUID)
		return next(msg)
	}
}

// newcomer is a Subscriber as a newcomer makes it, with a group and nothing else, and late.
func newcomer(t testing.TB, s redistest.Server, group string, handlers *byHandler) message.Subscriber {
	t.Helper()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, ConsumerGroup: group}, nil)
	require.NoError(t, err)
	return latecomer{testkit.Closes(t, subscriber), handlers}
}

// A service has one topic of commands and one of events. Each command handler and each read model
// is a consumer group. Commands are sent before and while the router starts its handlers. An event
// waits already.
func TestACQRSServiceThatStartsLosesNothing(t *testing.T) {
	t.Parallel()
	const commands = 12
	for i := range starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				var handled byHandler
				router := newRouter(t)
				router.AddMiddleware(handled.middleware)
				publisher := newPublisher(t, s)
				bus, err := cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
					GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
					Marshaler:            marshaler,
				})
				require.NoError(t, err)
				events, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
					GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
					Marshaler:            marshaler,
				})
				require.NoError(t, err)
				commandProcessor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
					GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
					SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
						return newcomer(t, s, p.HandlerName, &handled), nil
					},
					Marshaler: marshaler,
				})
				require.NoError(t, err)
				require.NoError(t, commandProcessor.AddHandlers(
					cqrs.NewCommandHandler("place", func(ctx context.Context, c *PlaceOrder) error {
						return events.Publish(ctx, &OrderPlaced{OrderID: c.OrderID})
					}),
					cqrs.NewCommandHandler("pay", func(ctx context.Context, c *PayOrder) error {
						return events.Publish(ctx, &OrderPaid{OrderID: c.OrderID})
					}),
					cqrs.NewCommandHandler("feedback", func(context.Context, *SendFeedbackForm) error { return nil }),
				))
				eventProcessor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
					GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
					SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
						return newcomer(t, s, p.EventGroupName, &handled), nil
					},
					Marshaler: marshaler,
				})
				require.NoError(t, err)
				for _, model := range []string{"orders", "timeline"} {
					require.NoError(t, eventProcessor.AddHandlersGroup(model,
						cqrs.NewGroupEventHandler(func(context.Context, *OrderPlaced) error { return nil }),
						cqrs.NewGroupEventHandler(func(context.Context, *OrderPaid) error { return nil })))
				}
				require.NoError(t, events.Publish(t.Context(), &OrderPlaced{OrderID: "before"}))
				var sending sync.WaitGroup
				sending.Go(func() {
					for i := range commands / 2 {
						id := fmt.Sprint(i)
						for _, command := range []any{&PlaceOrder{id}, &PayOrder{id}} {
							if err := bus.Send(t.Context(), command); err != nil {
								t.Error(err)
							}
							time.Sleep(time.Millisecond) // the pace of the traffic
						}
					}
				})
				start(t, router)
				sending.Wait()
				for group, want := range map[string]int{"place": commands, "pay": commands, "feedback": commands, "orders": 1 + commands, "timeline": 1 + commands} {
					require.Eventually(t, func() bool { return len(handled.of(group)) >= want }, patience, 5*time.Millisecond,
						"group %s got %d of %d", group, len(handled.of(group)), want)
				}
				require.Equal(t, handled.of("place"), handled.of("pay"), "in the same order")
				require.Equal(t, handled.of("place"), handled.of("feedback"))
				require.Equal(t, handled.of("orders"), handled.of("timeline"))
			})
		})
	}
}

// PlaceOrder and PayOrder are commands.
type (
	PlaceOrder struct{ OrderID string }
	PayOrder   struct{ OrderID string }
)

// Two services are deployed at the same time, one of them with two instances. Each service is a
// group, and gets every event, while a third publishes already.
func TestServicesThatStartTogetherGetEveryEvent(t *testing.T) {
	t.Parallel()
	const events = 20
	for i := range starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				var handled byHandler
				var sending sync.WaitGroup
				publisher := newPublisher(t, s)
				sending.Go(func() {
					for range events {
						if err := publisher.Publish("signed-up", message.NewMessage(watermill.NewUUID(), nil)); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Millisecond) // the pace of the traffic
					}
				})
				var starting sync.WaitGroup
				for _, service := range []string{"crm", "newsletter", "newsletter"} {
					router := newRouter(t)
					router.AddConsumerHandler(service, "signed-up", newcomer(t, s, service, &handled), func(msg *message.Message) error {
						handled.note("signed-up", service, msg.UUID)
						return nil
					})
					starting.Go(func() { start(t, router) })
				}
				starting.Wait()
				sending.Wait()
				for _, service := range []string{"crm", "newsletter"} {
					require.Eventually(t, func() bool { return len(handled.of(service)) == events }, patience, 5*time.Millisecond,
						"service %s got %d", service, len(handled.of(service)))
				}
			})
		})
	}
}
