// Command redisstream is watermill-redisstream, the baseline without delays. A subscriber reads one
// message at a time, and its documentation scales it out by more consumers of one group. So there
// are 32, each with a client of its own.
package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

const topic = "peers"

func main() {
	driver.Main(driver.System{Produce: produce, Consume: consume})
}

func produce(_ context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	client := redis.NewClient(&redis.Options{Addr: o.Addr, PoolSize: o.Producers})
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	return func(_ context.Context, _ int, batch []driver.Message) error {
		messages := make([]*message.Message, len(batch))
		for i, m := range batch {
			messages[i] = message.NewMessage(watermill.NewUUID(), m.Payload)
		}
		return publisher.Publish(topic, messages...)
	}, err
}

func consume(ctx context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	var subscribers []*redisstream.Subscriber
	for range 32 {
		subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client:        redis.NewClient(&redis.Options{Addr: o.Addr}),
			ConsumerGroup: "group",
			MaxIdleTime:   o.Lease,
			// Without this the first read waits for a message for ever, and Close for the read.
			DisableIndefiniteInitialBlock: true,
		}, nil)
		if err != nil {
			return nil, err
		}
		subscribers = append(subscribers, subscriber)
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
	}
	return func() (err error) {
		for _, subscriber := range subscribers {
			err = errors.Join(err, subscriber.Close())
		}
		return err
	}, nil
}
