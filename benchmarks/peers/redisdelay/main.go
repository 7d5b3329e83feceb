// Command redisdelay is this project. All is left at its default but the lease, and the number of
// messages in flight, which is the one of the project's own benchmarks.
package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

const topic = "peers"

func main() {
	driver.Main(driver.System{Setup: setup, Produce: produce, Consume: consume})
}

func newSubscriber(o driver.Options) (*redisdelay.Subscriber, *redis.Client, error) {
	client := redis.NewClient(&redis.Options{Addr: o.Addr})
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client: client, MaxInFlight: 256, LeaseDuration: o.Lease, TakeoverWindow: -1,
	}, nil)
	return subscriber, client, err
}

func setup(_ context.Context, o driver.Options) error {
	subscriber, client, err := newSubscriber(o)
	if err != nil {
		return err
	}
	return errors.Join(subscriber.SubscribeInitialize(topic), subscriber.Close(), client.Close())
}

func produce(_ context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	client := redis.NewClient(&redis.Options{Addr: o.Addr, PoolSize: o.Producers})
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	return func(_ context.Context, _ int, batch []driver.Message) error {
		messages := make([]*message.Message, len(batch))
		for i, m := range batch {
			messages[i] = message.NewMessage(watermill.NewUUID(), m.Payload)
			redisdelay.DelayUntil(messages[i], m.Due)
		}
		return publisher.Publish(topic, messages...)
	}, err
}

func consume(ctx context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	subscriber, client, err := newSubscriber(o)
	if err != nil {
		return nil, err
	}
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	go func() {
		for msg := range messages {
			handle(msg.Payload)
			msg.Ack()
		}
	}()
	return func() error { return errors.Join(subscriber.Close(), client.Close()) }, nil
}
