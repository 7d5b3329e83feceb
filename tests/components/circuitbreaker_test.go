package components

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// While the breaker is open, messages are nacked unhandled, and wait in Redis as the backoff says.
// When it closes they are handled.
func TestCircuitBreakerLeavesTheWaitToTheBackoff(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		opened := make(chan struct{}, 10)
		breaker := middleware.NewCircuitBreaker(gobreaker.Settings{
			Timeout:     2 * time.Second,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures == 2 },
			OnStateChange: func(_ string, _, to gobreaker.State) {
				if to == gobreaker.StateOpen {
					opened <- struct{}{}
				}
			},
		})
		onError := middleware.DelayOnError{InitialInterval: 60 * time.Millisecond, Multiplier: 2, MaxInterval: 120 * time.Millisecond}
		got, refused := newSightings(), newSightings()
		router := newRouter(t)
		router.AddMiddleware(onError.Middleware, func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if err == gobreaker.ErrOpenState {
					refused.record(msg.UUID, msg.Context(), msg.Metadata)
				}
				return produced, err
			}
		}, breaker.Middleware)
		handled := 0
		router.AddConsumerHandler("work", "orders", newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.MaxDeliveries = -1
		}), func(msg *message.Message) error {
			got.record(msg.UUID, msg.Context(), msg.Metadata)
			if handled++; handled <= 2 {
				return errNotToday
			}
			return nil
		})
		start(t, router)
		publisher := newPublisher(t, s)
		require.NoError(t, publisher.Publish("orders", message.NewMessage("order", nil)))

		for number := range 2 {
			require.Equal(t, number+1, got.next(t).delivery.Number)
		}
		<-opened
		open := time.Now()
		first := refused.next(t)
		require.Equal(t, 3, first.delivery.Number)
		require.Equal(t, "120ms", first.metadata.Get(delay.DelayedForKey))
		again := got.next(t)
		require.Greater(t, again.delivery.Number, 3)
		require.GreaterOrEqual(t, again.at.Sub(open), 400*time.Millisecond, "the breaker was open")
	})
}
