package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
func (r *Relay) publishBatch(s stop, topic string, batch []*message.Message) {
	var order []string
	byTopic := map[string][]*message.Message{}
	for _, msg := range batch {
		to, err := r.destinationTopic(topic, msg)
		if err != nil {
			r.failed(s, topic, msg, err)
			continue
		}
		if delivery, _ := redisdelay.DeliveryFromContext(msg.Context()); delivery.Number > 1 || r.limit(msg) == 1 {
			r.publishTogether(s, to, []*message.Message{msg})
			continue
		}
		if byTopic[to] == nil {
			order = append(order, to)
		}
		byTopic[to] = append(byTopic[to], msg)
	}
	for _, to := range order {
		r.publishTogether(s, to, byTopic[to])
	}
}

// limit is after how many failed deliveries the message is dead; negative: there is none.
func (r *Relay) limit(msg *message.Message) int {
	if own, err := strconv.Atoi(msg.Metadata[redisdelay.MaxDeliveriesKey]); err == nil {
		return own
	}
	return r.config.Subscriber.MaxDeliveries
}

// spared tells whether a message that could not be published is to be left to its lease: it was cut off by the stop, or
// not tried any more, and is not to die of that.
func (r *Relay) spared(s stop, msg *message.Message) bool {
	if s.late.Err() == nil {
		return false
	}
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	limit := r.limit(msg)
	return limit > 0 && delivery.Number >= limit
}

// publishTogether publishes messages of one destination topic in one call. Where that is refused for good, they go
// one by one, to find the one that it is about.
func (r *Relay) publishTogether(s stop, to string, messages []*message.Message) {
	lost := func(msg *message.Message) bool { return msg.Context().Err() != nil } // its lease, so that it is another's
	messages = slices.DeleteFunc(messages, lost)
	if len(messages) == 0 {
		return
	}
	err := r.publish(s, to, messages...)
	if err != nil && len(messages) > 1 && r.permanent(err) {
		r.publishSingly(s, to, messages)
		return
	}
	for _, msg := range messages {
		r.settle(s, to, msg, err)
	}
}

func (r *Relay) publishSingly(s stop, to string, messages []*message.Message) {
	var down error
	for _, msg := range messages {
		err := down // one that does not answer is not asked for each
		if err == nil && msg.Context().Err() == nil {
			err = r.publish(s, to, msg)
		}
		if err != nil && !r.permanent(err) {
			down = err
		}
		r.settle(s, to, msg, err)
	}
}

// settle ends the delivery of a message that was published, or was not because of err.
func (r *Relay) settle(s stop, to string, msg *message.Message, err error) {
	if err == nil {
		msg.Ack()
		return
	}
	r.failed(s, to, msg, err)
}

// failed ends the delivery of a message that could not be published.
func (r *Relay) failed(s stop, to string, msg *message.Message, err error) {
	if r.hopeless(msg, err) {
		msg.Nack()
		return
	}
	if !errors.Is(err, errUntried) {
		r.outage.failed(to, err)
	}
	if r.spared(s, msg) {
		return
	}
	if !errors.Is(err, errUntried) { // else it has the last one that it had
		keepError(msg, err)
	}
	if r.config.Ordered {
		r.holdUp(s.begun, msg, redisdelay.MaxDelay)
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

// publish hands messages to the destination, unless it is too late for that.
func (r *Relay) publish(s stop, to string, messages ...*message.Message) (err error) {
	defer recovered(&err)
	if s.late.Err() != nil {
		return errUntried
	}
	out := make([]*message.Message, len(messages))
	ends := make([]context.CancelCauseFunc, len(messages))
	for i, msg := range messages {
		out[i], ends[i] = outgoing(msg)
	}
	defer context.AfterFunc(s.late, func() {
		for _, end := range ends {
			end(errStopped)
		}
	})()
	err = r.config.Destination.Publish(to, out...)
	if err != nil && s.late.Err() != nil {
		err = fmt.Errorf("%w: %w", errStopped, err)
	}
	if err != nil {
		return fmt.Errorf("publish to destination topic %q: %w", to, err)
	}
	r.outage.sent(s, to)
	return nil
}

func (r *Relay) destinationTopic(topic string, msg *message.Message) (to string, err error) {
	defer recovered(&err)
	return r.config.DestinationTopic(topic, msg), nil
}

// permanent is Config.Permanent. If that panics, a further try may help; and so it may after a stop.
func (r *Relay) permanent(err error) (permanent bool) {
	defer func() { _ = recover() }() // then it is false
	return !errors.Is(err, errStopped) && r.config.Permanent(err)
}

// errPanic is what a panic of the destination, or of the configuration's functions, becomes.
var errPanic = errors.New("panic")

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errPanic, p)
	}
}

// outgoing is the message as the destination gets it. Its context is the delivery's, so that a Publish that heeds it
// ends when the message is another's; and it ends by end, so that there is time to give the message back. It has no delay: what
// is delivered has none of its own, but holdUp sets one, and a middleware of the router may come again with the same message.
func outgoing(msg *message.Message) (out *message.Message, end context.CancelCauseFunc) {
	out = msg.Copy()
	ctx, end := context.WithCancelCause(msg.Context())
	out.SetContext(ctx)
	delete(out.Metadata, redisdelay.DelayKey)
	if delivery, ok := redisdelay.DeliveryFromContext(msg.Context()); ok {
		out.Metadata.Set(IDKey, delivery.ID)
	}
	return out, end
}

// outages are the destination topics that do not take messages. The beginning and the end of each is logged. It ends when
// messages have gone out and none has failed for a while: where only some fail, each failure would begin one else.
type outages struct {
	logger watermill.LoggerAdapter
	mu     sync.Mutex
	topics map[string]*time.Timer // its end; nil while nothing has gone out since the last failure
}

// calm is how long nothing fails before an outage is over: longer than a message waits, by default, that fails for ever.
const calm = 2 * time.Minute

// failed begins an outage, or has it go on.
func (o *outages) failed(topic string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	end, known := o.topics[topic]
	if end != nil {
		end.Stop()
	}
	if o.topics == nil {
		o.topics = map[string]*time.Timer{}
	}
	o.topics[topic] = nil
	if !known {
		o.logger.Error("The destination does not take messages, trying again", err, watermill.LogFields{"destination_topic": topic})
	}
}

// sent has an outage end, unless more fails. What is stopped by then says nothing more.
func (o *outages) sent(s stop, topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if end, known := o.topics[topic]; !known || end != nil {
		return
	}
	var end *time.Timer
	end = time.AfterFunc(calm, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case o.topics[topic] != end: // more has failed just now
		case s.begun.Err() != nil:
			o.topics[topic] = nil
		default:
			delete(o.topics, topic)
			o.logger.Info("The destination takes messages again", watermill.LogFields{"destination_topic": topic})
		}
	})
	o.topics[topic] = end
}
