package relay

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// AddHandlers adds a handler to the router for each of Config.Topics, named "relay-" and the topic, as another way
// to run the relay: with the router's life, and its middleware around each message. It has a Subscriber of its own,
// which the router closes.
//
// Each message is published on its own. What the destination does not take, the handler returns as an error, for the
// router to log and to nack; the middleware redisdelay.KeepError keeps it with the message, as Run does. With Ordered,
// the handler waits for as long as Backoff says before it returns, at most half the Subscriber's CloseTimeout.
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
		router.AddConsumerHandler("relay-"+topic, topic, subscriber, func(msg *message.Message) error {
			return r.handle(topic, msg)
		})
	}
	return nil
}

func (r *Relay) handle(topic string, msg *message.Message) error {
	to, err := r.destinationTopic(topic, msg)
	if err == nil {
		err = r.publish(to, msg)
	}
	if err != nil && !r.hopeless(msg, err) && r.config.Ordered {
		r.holdUp(context.Background(), msg, r.config.Subscriber.CloseTimeout/2)
	}
	return err
}
