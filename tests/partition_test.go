package tests

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func partitionedPublisher(t testing.TB, s redistest.Server, partitions int) *partition.Publisher {
	t.Helper()
	p, err := partition.NewPublisher(partition.PublisherConfig{
		Partitions: partitions,
		Publisher:  redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix},
	}, nil)
	require.NoError(t, err)
	return testkit.Closes(t, p)
}

func partitionedSubscriber(t testing.TB, s redistest.Server, partitions, maxInFlight int) *partition.Subscriber {
	t.Helper()
	sub, err := partition.NewSubscriber(partition.SubscriberConfig{
		Partitions: partitions,
		Subscriber: redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, MaxInFlight: maxInFlight},
	}, nil)
	require.NoError(t, err)
	return testkit.Closes(t, sub)
}

// keyed returns a message with a payload, which is also its partition key.
func keyed(payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	partition.SetKey(msg, payload)
	return msg
}

func TestDelayOnErrorOnAPartitionedTopic(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const n, keys = 4, 10
		router := newRouter(t)
		router.AddMiddleware((&middleware.DelayOnError{InitialInterval: 20 * time.Millisecond, Multiplier: 2, MaxInterval: time.Second}).Middleware)
		var mu sync.Mutex
		deliveries, done := map[string]int{}, make(chan string, keys)
		router.AddConsumerHandler("work", topic, partitionedSubscriber(t, s, n, 3), func(msg *message.Message) error {
			d, _ := redisdelay.DeliveryFromContext(msg.Context())
			mu.Lock()
			defer mu.Unlock()
			key := string(msg.Payload)
			if deliveries[key]++; deliveries[key] != d.Number || d.Number < 3 {
				return fmt.Errorf("delivery %d of %s", d.Number, key)
			}
			done <- key
			return nil
		})
		start(t, router)
		p := partitionedPublisher(t, s, n)
		for i := range keys {
			testkit.Publish(t, p, topic, keyed(fmt.Sprint("key", i)))
		}
		for range keys {
			testkit.Wait(t, done, "a message that was handled")
		}
	})
}

type shipped struct{ Order string }

func TestCQRSOnAPartitionedTopic(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const n = 4
		bus, err := cqrs.NewEventBusWithConfig(partitionedPublisher(t, s, n), cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return topic, nil },
			OnPublish: func(params cqrs.OnEventSendParams) error {
				partition.SetKey(params.Message, params.Event.(shipped).Order)
				return nil
			},
			Marshaler: cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		router := newRouter(t)
		processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return topic, nil },
			SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return partitionedSubscriber(t, s, n, 2), nil
			},
			Marshaler: cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		got := make(chan string, 10)
		require.NoError(t, processor.AddHandlers(cqrs.NewEventHandler("note", func(_ context.Context, event *shipped) error {
			got <- event.Order
			return nil
		})))
		start(t, router)
		want := map[string]bool{}
		for i := range 10 {
			want[fmt.Sprint(i)] = true
			require.NoError(t, bus.Publish(context.Background(), shipped{fmt.Sprint(i)}))
		}
		for range 10 {
			delete(want, testkit.Wait(t, got, "an event"))
		}
		require.Empty(t, want)
	})
}

// arrivals is a destination of a relay.
type arrivals chan string

func (a arrivals) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		a <- topic + " " + string(msg.Payload)
	}
	return nil
}

func (a arrivals) Close() error { return nil }

func TestRelayOfAPartitionedTopic(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const n = 4
		names, err := partition.Topics(topic, n)
		require.NoError(t, err)
		came := make(arrivals, 100)
		r, err := relay.New(relay.Config{
			Subscriber:       redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix},
			Topics:           append(names, "other"),
			Destination:      came,
			DestinationTopic: partition.DestinationTopic,
		}, nil)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(context.Background())
		ended := testkit.Begin(func() error { return r.Run(ctx) })
		p := partitionedPublisher(t, s, n)
		want := map[string]bool{"other x": true}
		testkit.Publish(t, newPublisher(t, s), "other", message.NewMessage("1", []byte("x")))
		for i := range 10 {
			key := fmt.Sprint(i)
			want[topic+" "+key] = true
			testkit.Publish(t, p, topic, keyed(key))
		}
		for range 11 {
			delete(want, testkit.Wait(t, came, "a message at the destination"))
		}
		require.Empty(t, want)
		stop()
		require.NoError(t, testkit.Wait(t, ended, "the end of the relay"))
	})
}

// TestAPartitionedTopicGrowsAndShrinks goes through the procedures of docs/scale.md while messages
// are published and handled.
func TestAPartitionedTopicGrowsAndShrinks(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const few, many = 3, 7
		var mu sync.Mutex
		promised, came := map[string]bool{}, map[string]int{}
		early := 0
		consume := func(sub *partition.Subscriber) {
			messages := testkit.SubscribeTo(t, sub, topic)
			go func() {
				for msg := range messages {
					d, _ := redisdelay.DeliveryFromContext(msg.Context())
					mu.Lock()
					came[string(msg.Payload)]++
					if time.Now().Before(d.DueAt.Add(-time.Millisecond)) {
						early++
					}
					mu.Unlock()
					msg.Ack()
				}
			}()
		}
		settled := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(came) == len(promised)
		}
		var number atomic.Int64
		publishSome := func(p *partition.Publisher) {
			for range 50 {
				payload := fmt.Sprint(number.Add(1))
				msg := keyed(payload)
				redisdelay.DelayFor(msg, 100*time.Millisecond)
				testkit.Publish(t, p, topic, msg)
				mu.Lock()
				promised[payload] = true
				mu.Unlock()
			}
		}

		subs := []*partition.Subscriber{partitionedSubscriber(t, s, few, 5), partitionedSubscriber(t, s, few, 5)}
		for _, sub := range subs {
			consume(sub)
		}
		old := partitionedPublisher(t, s, few)
		publishSome(old)
		for _, sub := range subs { // to grow: first the subscribers, one after the other
			more := partitionedSubscriber(t, s, many, 5)
			consume(more)
			require.NoError(t, sub.Close())
			publishSome(old)
		}
		grown := partitionedPublisher(t, s, many) // then the publishers
		publishSome(grown)
		publishSome(old)
		require.NoError(t, old.Close())
		publishSome(grown)

		shrunk := partitionedPublisher(t, s, few) // to shrink: first the publishers
		publishSome(grown)
		publishSome(shrunk)
		require.NoError(t, grown.Close())
		names, err := partition.Topics(topic, many)
		require.NoError(t, err)
		for _, name := range names[few:] { // then wait until the partitions are empty
			testkit.AwaitEmpty(t, s, name)
		}
		consume(partitionedSubscriber(t, s, few, 5)) // then the subscribers
		publishSome(shrunk)
		testkit.Eventually(t, settled, "all messages come")
		mu.Lock()
		defer mu.Unlock()
		for payload, times := range came {
			require.Equal(t, 1, times, payload)
		}
		require.Zero(t, early)
	})
}
