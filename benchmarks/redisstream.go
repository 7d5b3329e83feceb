package main

import (
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
)

const redisstreamName = "watermill-redisstream"

var redisStream = system{name: redisstreamName, open: openRedisstream}

// openRedisstream makes each subscriber a consumer of its own in one group, which is how its
// documents scale it out: a subscriber reads one message at a time. It has no delays. Messages stay
// in the stream after their ack, as they do by default; trimming would only cost.
func openRedisstream(e *env, o options) (*queue, error) {
	const group = "group"
	topic := e.topic()
	client := e.newClient()
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return nil, err
	}
	// Close of these closes the client too.
	closers := []func() error{publisher.Close}
	var subscribers []*redisstream.Subscriber
	for range o.subscribers {
		subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client:        e.newClient(),
			ConsumerGroup: group,
			// Without this the first read waits for a message for ever, and Close for the read.
			DisableIndefiniteInitialBlock: true,
		}, nil)
		if err != nil {
			return nil, err
		}
		subscribers = append(subscribers, subscriber)
		closers = append(closers, subscriber.Close)
	}

	return &queue{
		publish: func(messages []*message.Message, _ []time.Time) error {
			return publisher.Publish(topic, messages...)
		},
		consume: func(handle func(payload []byte)) error {
			for _, subscriber := range subscribers {
				if err := consumeWatermill(subscriber, topic, handle); err != nil {
					return err
				}
			}
			return nil
		},
		stored: func() (int64, error) { return client.XLen(ctx, topic).Result() },
		unsettled: func() (int64, error) {
			pending, err := client.XPending(ctx, topic, group).Result()
			if err != nil {
				return 0, err
			}
			return pending.Count, nil
		},
		close: closeAll(closers),
	}, nil
}
