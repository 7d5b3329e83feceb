package relay

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
)

// AddHandlers adds to the router one handler per topic of Config.Topics, named "relay-" and the
// topic. It is an alternative to Run: the relay then runs as long as the router, with its
// middleware. The handlers share a new Subscriber, which the router closes.
//
// Each message is published alone. If the destination fails, the handler returns the error; the
// router logs it and nacks the message. The middleware redisdelay.KeepError stores the error with
// the message, as Run does. With Ordered, the handler waits for the Backoff before it returns, at
// most half the Subscriber's CloseTimeout. If the Backoff is longer, the message comes again and
// waits for the rest, which uses up no delivery. When the router closes, the contexts of the
// handlers end after a third of the Subscriber's CloseTimeout, and those of the destination's
// Publish later, as in Run. The router's CloseTimeout must be longer than the Subscriber's.
//
// Errors wrap redisdelay.ErrInvalidConfig.
func (r *Relay) AddHandlers(router *message.Router) error {
	if len(r.config.Topics) == 0 {
		return field.Invalid("Topics", "is required for handlers on a router")
	}
	subscriber, err := r.subscriber(r.config.Concurrency)
	if err != nil {
		return err
	}
	for _, topic := range r.config.Topics {
		stopping, beginStop := context.WithCancel(context.Background())
		stop := r.stopWith(stopping)
		router.AddConsumerHandler("relay-"+topic, topic, &observed{subscriber, beginStop}, func(msg *message.Message) error {
			return r.handle(stop, topic, msg)
		})
	}
	return nil
}

// observed is the Subscriber of one handler. It calls closes when it begins to close.
type observed struct {
	*redisdelay.Subscriber
	closes func()
}

// String is the name of the Subscriber in the router's logs and metrics.
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

// handle publishes one message. It returns the error, on which the router nacks the message.
func (r *Relay) handle(s stop, topic string, msg *message.Message) error {
	if d := consume.Of(msg); d != nil {
		d.TakeBackPostpone() // of an earlier try, by Watermill's Retry for instance
	}
	if err := r.heldUp(s.late, topic, msg, r.config.Subscriber.CloseTimeout/2); err != nil {
		return err
	}
	to, err := r.destinationTopic(topic, msg)
	if err == nil {
		err = r.publish(s, to, msg)
	}
	switch {
	case err == nil, r.refused(msg, err):
	case r.config.Ordered:
		r.holdUp(s.late, msg, err, r.config.Subscriber.CloseTimeout/2)
	default:
		postpone(msg, err)
	}
	return err
}
