package components

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The decorators count every delivery, acked or nacked, and every call of Publish, on a router.
func TestMetricsOfARouter(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const messages = 10
		registry := prometheus.NewRegistry()
		router := newRouter(t)
		metrics.NewPrometheusMetricsBuilder(registry, "shop", "").AddPrometheusRouterMetrics(router)
		got := newSightings()
		router.AddHandler("work", "orders", newSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
		}), "out", newPublisher(t, s), func(msg *message.Message) ([]*message.Message, error) {
			if got.record(msg.UUID, msg.Context(), nil).delivery.Number == 1 {
				return nil, errNotToday
			}
			later := message.NewMessage(msg.UUID, nil)
			redisdelay.DelayFor(later, 50*time.Millisecond)
			return []*message.Message{later}, nil
		})
		router.AddConsumerHandler("last", "out", newSubscriber(t, s), func(*message.Message) error { return nil })
		start(t, router)
		publisher := newPublisher(t, s)
		for i := range messages {
			require.NoError(t, publisher.Publish("orders", message.NewMessage(fmt.Sprint(i), nil)))
		}
		requireMetrics(t, registry, map[string]uint64{
			"shop_subscriber_messages_received_total acked=nacked handler_name=work subscriber_name=redisdelay.Subscriber": messages,
			"shop_subscriber_messages_received_total acked=acked handler_name=work subscriber_name=redisdelay.Subscriber":  messages,
			"shop_subscriber_messages_received_total acked=acked handler_name=last subscriber_name=redisdelay.Subscriber":  messages,
			"shop_publish_time_seconds handler_name=work publisher_name=redisdelay.Publisher success=true":                 messages,
			"shop_handler_execution_time_seconds handler_name=work success=false":                                          messages,
			"shop_handler_execution_time_seconds handler_name=work success=true":                                           messages,
			"shop_handler_execution_time_seconds handler_name=last success=true":                                           messages,
		})
	})
}

// Without a router, the decorators count too, and refused messages as failures.
func TestMetricsOfAPublisherAndASubscriber(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		registry := prometheus.NewRegistry()
		builder := metrics.NewPrometheusMetricsBuilder(registry, "", "")
		publisher, err := builder.DecoratePublisher(newPublisher(t, s))
		require.NoError(t, err)
		subscriber, err := builder.DecorateSubscriber(newSubscriber(t, s))
		require.NoError(t, err)
		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)

		order := message.NewMessage("order", nil)
		order.Metadata.Set(redisdelay.DelayKey, "soon")
		require.ErrorIs(t, publisher.Publish("orders", order), redisdelay.ErrInvalidDelay)
		order = message.NewMessage("order", nil)
		redisdelay.DelayFor(order, 50*time.Millisecond)
		require.NoError(t, publisher.Publish("orders", order))
		for _, settle := range []func(*message.Message) bool{(*message.Message).Nack, (*message.Message).Ack} {
			select {
			case msg := <-messages:
				_, ok := redisdelay.DeliveryFromContext(msg.Context())
				require.True(t, ok)
				redisdelay.DelayFor(msg, 20*time.Millisecond)
				settle(msg)
			case <-time.After(patience):
				require.FailNow(t, "no message")
			}
		}
		requireMetrics(t, registry, map[string]uint64{
			"publish_time_seconds handler_name=<no handler> publisher_name=redisdelay.Publisher success=false":                1,
			"publish_time_seconds handler_name=<no handler> publisher_name=redisdelay.Publisher success=true":                 1,
			"subscriber_messages_received_total acked=nacked handler_name=<no handler> subscriber_name=redisdelay.Subscriber": 1,
			"subscriber_messages_received_total acked=acked handler_name=<no handler> subscriber_name=redisdelay.Subscriber":  1,
		})
	})
}

// requireMetrics waits until the counts are as wanted, and there are no others.
func requireMetrics(t testing.TB, registry *prometheus.Registry, want map[string]uint64) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		families, err := registry.Gather()
		require.NoError(c, err)
		got := map[string]uint64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := family.GetName()
				for _, label := range metric.GetLabel() {
					name += " " + label.GetName() + "=" + label.GetValue()
				}
				got[name] = uint64(metric.GetCounter().GetValue()) + metric.GetHistogram().GetSampleCount()
			}
		}
		require.Equal(c, want, got)
	}, patience, 10*time.Millisecond)
}
