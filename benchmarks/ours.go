package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

const oursName = "watermill-redisdelay"

var ours = system{name: oursName, open: openOurs}

// openOurs leaves all at its default but MaxInFlight and the limits that large payloads need.
func openOurs(e *env, o options) (*queue, error) {
	topic := cmp.Or(o.topic, e.topic())
	client := e.newClient()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:          client,
		MaxMessageBytes: max(8<<20, o.payload+1024),
	}, nil)
	if err != nil {
		return nil, err
	}
	closers := []func() error{publisher.Close}
	var subscribers []*redisdelay.Subscriber
	for range o.subscribers {
		client := e.newClient()
		subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
			Client:         client,
			MaxInFlight:    o.inFlight,
			TakeoverWindow: -1, // it is over in a topic that is older than seconds
		}, nil)
		if err != nil {
			return nil, err
		}
		subscribers = append(subscribers, subscriber)
		closers = append(closers, subscriber.Close, client.Close)
		if err := subscriber.SubscribeInitialize(topic); err != nil {
			return nil, err
		}
	}
	closers = append(closers, client.Close)

	stored := func() (int64, error) {
		return client.HLen(ctx, redisdelay.DefaultKeyPrefix+":{"+topic+"}:messages").Result()
	}
	return &queue{
		stored: stored,
		publish: func(messages []*message.Message, due []time.Time) error {
			for i := range due {
				redisdelay.DelayUntil(messages[i], due[i])
			}
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
		unsettled: func() (int64, error) {
			left, err := stored()
			return left - int64(o.pending), err
		},
		close: closeAll(closers),
	}, nil
}

// consumeWatermill subscribes, and acks each message at once in a goroutine of its own.
func consumeWatermill(subscriber message.Subscriber, topic string, handle func(payload []byte)) error {
	messages, err := subscriber.Subscribe(context.Background(), topic)
	if err != nil {
		return err
	}
	go func() {
		for msg := range messages {
			handle(msg.Payload)
			msg.Ack()
		}
	}()
	return nil
}

// closeAll calls what closes a queue, in order.
func closeAll(closers []func() error) func() error {
	return func() error {
		var failed []error
		for _, closer := range closers {
			failed = append(failed, closer())
		}
		return errors.Join(failed...)
	}
}
