package components

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Many wait for replies at the same time, on one topic, and each gets its own: with Broadcast,
// because each has to see all replies to find it.
func TestRepliesReachTheirSender(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		backend := newBackend(t, s)
		bus := newCommandBus(t, newPublisher(t, s))
		router := newRouter(t)
		addCommandHandlers(t, s, router, requestreply.NewCommandHandlerWithResult("feedback", backend,
			func(_ context.Context, c *SendFeedbackForm) (string, error) {
				if c.OrderID == "failing" {
					return "", errNotToday
				}
				return "sent " + c.OrderID, nil
			}))
		start(t, router)

		var waiting sync.WaitGroup
		for i := range 8 {
			waiting.Go(func() {
				id := fmt.Sprint(i)
				reply, err := requestreply.SendWithReply(t.Context(), bus, backend, &SendFeedbackForm{OrderID: id})
				if assert.NoError(t, err) && assert.NoError(t, reply.Error) {
					assert.Equal(t, "sent "+id, reply.HandlerResult)
				}
			})
		}
		waiting.Wait()
		reply, err := requestreply.SendWithReply(t.Context(), bus, backend, &SendFeedbackForm{OrderID: "failing"})
		require.NoError(t, err)
		require.EqualError(t, reply.Error, errNotToday.Error())
	})
}

// A delay in the context delays the command, not its reply.
func TestReplyToADelayedCommand(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const wait = 400 * time.Millisecond
		backend := newBackend(t, s)
		bus := newCommandBus(t, newPublisher(t, s))
		got := newSightings()
		router := newRouter(t)
		addCommandHandlers(t, s, router, requestreply.NewCommandHandlerWithResult("feedback", backend,
			func(ctx context.Context, c *SendFeedbackForm) (string, error) {
				got.record(c.OrderID, ctx, nil)
				return "sent", nil
			}))
		start(t, router)
		before := time.Now()
		ctx := delay.WithContext(t.Context(), delay.For(wait))
		reply, err := requestreply.SendWithReply(ctx, bus, backend, &SendFeedbackForm{OrderID: "1"})
		replied := time.Now()
		require.NoError(t, err)
		require.NoError(t, reply.Error)
		seen := got.next(t)
		requireDelayed(t, seen, before, wait)
		delivery, ok := redisdelay.DeliveryFromContext(reply.NotificationMessage.Context())
		require.True(t, ok)
		require.Less(t, delivery.DueAt.Sub(seen.at), wait, "the reply was delayed too")
		require.Less(t, replied.Sub(seen.at), prompt)
	})
}

func newBackend(t testing.TB, s redistest.Server) *requestreply.PubSubBackend[string] {
	t.Helper()
	replies := newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.Broadcast = true })
	timeout := patience
	backend, err := requestreply.NewPubSubBackend(requestreply.PubSubBackendConfig{
		Publisher: newPublisher(t, s),
		SubscriberConstructor: func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) {
			return replies, nil
		},
		GeneratePublishTopic:   func(requestreply.PubSubBackendPublishParams) (string, error) { return "replies", nil },
		GenerateSubscribeTopic: func(requestreply.PubSubBackendSubscribeParams) (string, error) { return "replies", nil },
		ListenForReplyTimeout:  &timeout,
		AckCommandErrors:       true,
	}, requestreply.BackendPubsubJSONMarshaler[string]{})
	require.NoError(t, err)
	return backend
}
