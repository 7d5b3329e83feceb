package relay

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// AddHandlers adds a handler to the router for each of Config.Topics, named "relay-" and the topic, as another way
// to run the relay: with the router's life, and its middleware around each message. It has a Subscriber of its own,
// which the router closes.
//
// Each message is published on its own. What the destination does not take, the handler returns as an error, for the
// router to log and to nack; the middleware redisdelay.KeepError keeps it with the message, as Run does. With Ordered,
// the handler waits for as long as Backoff says before it returns, at most half the Subscriber's CloseTimeout. When the
// router closes, messages are given back as Run does; a CloseTimeout of the router has to be the longer one.
//
// Errors wrap redisdelay.ErrInvalidConfig.
func (r *Relay) AddHandlers(router *message.Router) error {
	if len(r.config.Topics) == 0 {
		return invalid("Topics", "is required for handlers on a router")
	}
	subscriber, err := r.subscriber(r.config.Concurrency)
	if err != nil {
		return err
	}
	for _, topic := range r.config.Topics {
		begun, begin := context.WithCancel(context.Background())
		stop := r.stopWith(begun)
		router.AddConsumerHandler("relay-"+topic, topic, &observed{subscriber, begin}, func(msg *message.Message) error {
			return r.handle(stop, topic, msg)
		})
	}
	return nil
}

// observed is the Subscriber of one handler, of which it is told when it begins to close.
type observed struct {
	*redisdelay.Subscriber
	closes func()
}

// String is what the router calls the Subscriber, also in metrics.
func (o *observed) String() string { return "redisdelay.Subscriber" }

func (o *observed) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := o.Subscriber.Subscribe(ctx, topic)
	if err == nil {
		context.AfterFunc(ctx, o.closes)
	}
	return messages, err
}

func (o *observed) Close() error {
	o.closes()
	return o.Subscriber.Close()
}

func (r *Relay) handle(s stop, topic string, msg *message.Message) error {
	to, err := r.destinationTopic(topic, msg)
	if err == nil {
		err = r.publish(s, to, msg)
	}
	switch {
	case err == nil, r.hopeless(msg, err):
	case r.spared(s, msg):
		pause(msg.Context(), r.config.Subscriber.CloseTimeout) // then the router's nack does nothing
	case r.config.Ordered:
		r.holdUp(s.late, msg, r.config.Subscriber.CloseTimeout/2)
	}
	return err
}
