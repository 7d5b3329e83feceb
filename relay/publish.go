package relay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// publishBatch publishes messages, those of one destination topic together and in order, and settles them. What
// failed before goes alone: one that the destination never takes would else fail those that it is with, again and
// again. So does what is delivered only once: it would die of another's error.
func (r *Relay) publishBatch(ctx context.Context, topic string, batch []*message.Message) {
	var order []string
	byTopic := map[string][]*message.Message{}
	for _, msg := range batch {
		to, err := r.destinationTopic(topic, msg)
		if err != nil {
			r.failed(ctx, topic, msg, err)
			continue
		}
		if delivery, _ := redisdelay.DeliveryFromContext(msg.Context()); delivery.Number > 1 || r.once(msg) {
			r.publishTogether(ctx, to, []*message.Message{msg})
			continue
		}
		if byTopic[to] == nil {
			order = append(order, to)
		}
		byTopic[to] = append(byTopic[to], msg)
	}
	for _, to := range order {
		r.publishTogether(ctx, to, byTopic[to])
	}
}

// once tells whether the message is dead if its first delivery fails.
func (r *Relay) once(msg *message.Message) bool {
	if own, set := msg.Metadata[redisdelay.MaxDeliveriesKey]; set {
		n, err := strconv.Atoi(own)
		return err == nil && n == 1
	}
	return r.config.Subscriber.MaxDeliveries == 1
}

// publishTogether publishes messages of one destination topic in one call. Where that is refused for good, they go
// one by one, to find the one that it is about.
func (r *Relay) publishTogether(ctx context.Context, to string, messages []*message.Message) {
	messages = held(messages)
	if len(messages) == 0 {
		return
	}
	err := r.publish(to, messages...)
	if err != nil && len(messages) > 1 && r.permanent(err) {
		r.publishSingly(ctx, to, messages)
		return
	}
	for _, msg := range messages {
		r.settle(ctx, to, msg, err)
	}
}

func (r *Relay) publishSingly(ctx context.Context, to string, messages []*message.Message) {
	var down error
	for _, msg := range messages {
		err := down // one that does not answer is not asked for each
		if err == nil && msg.Context().Err() == nil {
			err = r.publish(to, msg)
		}
		if err != nil && !r.permanent(err) {
			down = err
		}
		r.settle(ctx, to, msg, err)
	}
}

// held are the messages whose lease is not lost. The others are another's.
func held(messages []*message.Message) []*message.Message {
	kept := messages[:0]
	for _, msg := range messages {
		if msg.Context().Err() == nil {
			kept = append(kept, msg)
		}
	}
	return kept
}

// settle ends the delivery of a message that was published, or was not because of err.
func (r *Relay) settle(ctx context.Context, to string, msg *message.Message, err error) {
	if err == nil {
		msg.Ack()
		return
	}
	r.failed(ctx, to, msg, err)
}

// failed ends the delivery of a message that could not be published.
func (r *Relay) failed(ctx context.Context, to string, msg *message.Message, err error) {
	if r.hopeless(msg, err) {
		msg.Nack()
		return
	}
	keepError(msg, err)
	r.outage.begin(to, err)
	if r.config.Ordered {
		r.holdUp(ctx, msg, redisdelay.MaxDelay)
	}
	msg.Nack()
}

// keepError has the error kept with the message, with its retry and if it dies of too many deliveries.
func keepError(msg *message.Message, err error) {
	_, _ = redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) { return nil, err })(msg)
}

// hopeless tells whether an error is permanent. The next nack of the message is its last then, and is logged.
func (r *Relay) hopeless(msg *message.Message, err error) bool {
	return r.permanent(err) && redisdelay.DeadOnNack(msg, fmt.Errorf("refused by the destination: %w", err))
}

// holdUp waits with the message in hand for as long as Backoff says. Its nack puts it back to its place then, even if
// it has a backoff of its own.
func (r *Relay) holdUp(ctx context.Context, msg *message.Message, atMost time.Duration) {
	redisdelay.DelayFor(msg, 0)
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(msg.Context(), cancel)()
	pause(ctx, min(r.config.Subscriber.Backoff(delivery.Number), atMost))
}

// publish hands messages to the destination.
func (r *Relay) publish(to string, messages ...*message.Message) (err error) {
	defer recovered(&err)
	out := make([]*message.Message, len(messages))
	for i, msg := range messages {
		out[i] = outgoing(msg)
	}
	if err := r.config.Destination.Publish(to, out...); err != nil {
		return fmt.Errorf("publish to destination topic %q: %w", to, err)
	}
	r.outage.end(to)
	return nil
}

func (r *Relay) destinationTopic(topic string, msg *message.Message) (to string, err error) {
	defer recovered(&err)
	return r.config.DestinationTopic(topic, msg), nil
}

// permanent is Config.Permanent. If that panics, a further try may help.
func (r *Relay) permanent(err error) (permanent bool) {
	defer func() {
		if recover() != nil {
			permanent = false
		}
	}()
	return r.config.Permanent(err)
}

// errPanic is what a panic of the destination, or of the configuration's functions, becomes.
var errPanic = errors.New("panic")

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errPanic, p)
	}
}

// outgoing is the message as the destination gets it. Its context is the delivery's, so that a Publish that heeds it
// ends when the message is another's.
func outgoing(msg *message.Message) *message.Message {
	out := msg.CopyWithContext()
	if delivery, ok := redisdelay.DeliveryFromContext(msg.Context()); ok {
		out.Metadata.Set(IDKey, delivery.ID)
	}
	return out
}

// outages are the destination topics that do not take messages. The beginning and the end of each is logged.
type outages struct {
	logger watermill.LoggerAdapter
	mu     sync.Mutex
	topics map[string]bool
}

func (o *outages) begin(topic string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.topics[topic] {
		return
	}
	if o.topics == nil {
		o.topics = map[string]bool{}
	}
	o.topics[topic] = true
	o.logger.Error("The destination does not take messages, trying again", err, watermill.LogFields{"destination_topic": topic})
}

func (o *outages) end(topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.topics[topic] {
		delete(o.topics, topic)
		o.logger.Info("The destination takes messages again", watermill.LogFields{"destination_topic": topic})
	}
}
