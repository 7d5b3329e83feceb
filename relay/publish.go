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
	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// publishBatch publishes messages and settles them. Messages of one destination topic are published
// together, in order. A message that failed before is published alone, because it could make the
// others fail again and again. So is a message with a single delivery, which another's error would
// make dead.
func (r *Relay) publishBatch(s stop, topic string, batch []*message.Message) {
	var order []string
	byTopic := map[string][]*message.Message{}
	for _, msg := range batch {
		if err := r.heldUp(s.stopping, topic, msg, redisdelay.MaxDelay); err != nil {
			keepError(msg, err)
			msg.Nack()
			continue
		}
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

// exited handles what is left of a batch in which the destination, or DestinationTopic, has called
// runtime.Goexit. It is not known which message it was, so all of them have failed.
func (r *run) exited(topic string, batch []*message.Message) {
	for _, msg := range batch {
		if !settled(msg) {
			r.failed(r.stop, topic, msg, fmt.Errorf("publish to the destination: %w", guard.Exited("the destination")))
		}
	}
}

// settled returns whether a message was acked or nacked.
func settled(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// limit returns after how many failed deliveries the message becomes dead; negative means never.
func (r *Relay) limit(msg *message.Message) int {
	if own, err := strconv.Atoi(msg.Metadata[redisdelay.MaxDeliveriesKey]); err == nil {
		return own
	}
	return r.config.Subscriber.MaxDeliveries
}

// isLost returns whether a message is not the relay's any more, because its lease was lost.
func isLost(msg *message.Message) bool {
	cause := context.Cause(msg.Context())
	return cause != nil && !errors.Is(cause, redisdelay.ErrClosed)
}

// publishTogether publishes messages of one destination topic in one call. If the call fails with a
// permanent error, each message is published alone, to find which one is refused.
func (r *Relay) publishTogether(s stop, to string, messages []*message.Message) {
	messages = slices.DeleteFunc(messages, isLost)
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

// publishSingly publishes messages one by one. After an error that is not permanent it tries no
// more messages, because the destination may be down.
func (r *Relay) publishSingly(s stop, to string, messages []*message.Message) {
	var down error
	for _, msg := range messages {
		err := down
		if err == nil && !isLost(msg) {
			err = r.publish(s, to, msg)
		}
		if err != nil && !r.permanent(err) {
			down = err
		}
		r.settle(s, to, msg, err)
	}
}

// settle acks a message that was published, or handles the error.
func (r *Relay) settle(s stop, to string, msg *message.Message, err error) {
	if err == nil {
		msg.Ack()
		return
	}
	r.failed(s, to, msg, err)
}

// failed nacks a message that could not be published.
func (r *Relay) failed(s stop, to string, msg *message.Message, err error) {
	if r.refused(msg, err) {
		msg.Nack()
		return
	}
	if !errors.Is(err, errUntried) {
		r.outage.failed(to, err)
	}
	if !errors.Is(err, errUntried) { // an untried message keeps its last error
		keepError(msg, err)
	}
	if r.config.Ordered {
		r.holdUp(s.stopping, msg, err, redisdelay.MaxDelay)
	} else {
		postpone(msg, err)
	}
	msg.Nack()
}

// postponed returns how long the destination wants the message to wait, and 0 if its error does not
// say.
func postponed(err error) time.Duration {
	var p *redisdelay.PostponeError
	if errors.As(err, &p) {
		return min(max(0, p.Delay), redisdelay.MaxDelay)
	}
	return 0
}

// postpone has the next nack wait as long as the destination wants, and use up no delivery.
func postpone(msg *message.Message, err error) {
	if wait := postponed(err); wait > 0 {
		_ = redisdelay.Postpone(msg, wait) // fails only for a wait out of range
	}
}

// keepError stores the error with the message, for its retry and its dead letter.
func keepError(msg *message.Message, err error) {
	_, _ = redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) { return nil, err })(msg)
}

// refused returns whether the error is permanent. If so, the next nack makes the message dead, and
// is logged.
func (r *Relay) refused(msg *message.Message, err error) bool {
	return r.permanent(err) && redisdelay.DeadOnNack(msg, fmt.Errorf("refused by the destination: %w", err))
}

// held is why the messages of an ordered topic wait, and until when.
type held struct {
	until time.Time
	err   error // the destination's
}

// holdUp has the topic of the message wait: as long as the destination wants, else for the Backoff.
// It holds the message for that time, or for a part of it, as hold does. The nack after it returns
// the message to its place in the order, even if the message has its own backoff. If the
// destination said how long, the nack uses up no delivery.
func (r *Relay) holdUp(ctx context.Context, msg *message.Message, err error, atMost time.Duration) {
	redisdelay.DelayFor(msg, 0)
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	wait := postponed(err)
	if d := consume.Of(msg); wait > 0 && d != nil {
		d.GiveBack()
	} else {
		wait = r.backoff(delivery.Number)
	}
	if ctx.Err() == nil {
		r.held.Store(delivery.Topic, held{time.Now().Add(wait), err})
	}
	r.hold(ctx, msg, min(wait, atMost))
}

// heldUp goes on with a holdUp that is not over. It returns nil if the message can be published
// now. Otherwise it returns the error of the destination that began the wait. The nack after it
// returns the message to its place and uses up no delivery.
func (r *Relay) heldUp(ctx context.Context, topic string, msg *message.Message, atMost time.Duration) error {
	was, ok := r.held.Load(topic)
	d := consume.Of(msg)
	if !ok || d == nil {
		return nil
	}
	end := was.(held).until
	r.hold(ctx, msg, min(time.Until(end), atMost))
	if time.Until(end) <= 0 {
		r.held.Delete(topic)
		return nil
	}
	redisdelay.DelayFor(msg, 0)
	d.GiveBack()
	return was.(held).err
}

// hold waits while it holds a message, or until ctx ends. It waits at most for half the time for
// which a handler can have it, because a message whose lease is lost uses up a delivery.
func (r *Relay) hold(ctx context.Context, msg *message.Message, wait time.Duration) {
	if s := r.config.Subscriber; s.MaxExtension >= 0 {
		wait = min(wait, s.LeaseDuration/2+s.MaxExtension/2)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(msg.Context(), cancel)()
	pause(ctx, wait)
}

// publish publishes messages to the destination. After the late end of the stop it returns
// errUntried.
func (r *Relay) publish(s stop, to string, messages ...*message.Message) (err error) {
	defer guard.Recover(&err, "the destination")
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
	err = guard.Sound(r.config.Destination.Publish(to, out...))
	if err != nil && s.late.Err() != nil {
		err = fmt.Errorf("%w: %w", errStopped, err)
	}
	if err != nil {
		return fmt.Errorf("publish to destination topic %q: %w", to, err)
	}
	r.outage.sent(s, to)
	return nil
}

// destinationTopic calls Config.DestinationTopic and returns a panic as an error.
func (r *Relay) destinationTopic(topic string, msg *message.Message) (to string, err error) {
	defer guard.Recover(&err, "DestinationTopic")
	return r.config.DestinationTopic(topic, msg), nil
}

// permanent returns whether Config.Permanent says so. It is false if that panics, which is logged,
// and for errors of a stop.
func (r *Relay) permanent(err error) (permanent bool) {
	if errors.Is(err, errStopped) {
		return false
	}
	if fault := guard.Apart("Permanent", func() { permanent = r.config.Permanent(err) }); fault != nil {
		r.logger.Error("Permanent has failed, taking an error of the destination for one that passes", fault, nil)
		return false
	}
	return permanent
}

// outgoing returns the copy of the message that the destination receives. Its context ends with the
// message's, so that Publish can return when the lease is lost. It does not end because the
// Subscriber closes: the destination has until end is called, early enough to give the message back
// on a stop. The delay is removed: holdUp may have set one before a middleware of the router tried
// the message again.
func outgoing(msg *message.Message) (out *message.Message, end context.CancelCauseFunc) {
	out = msg.Copy()
	from := msg.Context()
	ctx, end := context.WithCancelCause(goingOn{context.WithoutCancel(from), from})
	context.AfterFunc(from, func() {
		if cause := context.Cause(from); !errors.Is(cause, redisdelay.ErrClosed) {
			end(cause)
		}
	})
	out.SetContext(ctx)
	delete(out.Metadata, redisdelay.DelayKey)
	if delivery, ok := redisdelay.DeliveryFromContext(msg.Context()); ok {
		out.Metadata.Set(IDKey, delivery.ID)
	}
	return out, end
}

// goingOn is a context that does not end with the one that it is of, but has its deadline.
type goingOn struct {
	context.Context
	of context.Context
}

func (c goingOn) Deadline() (time.Time, bool) { return c.of.Deadline() }

// outages tracks the destination topics that fail to take messages, and logs when an outage begins
// and ends. An outage ends when a message was published and none has failed for the calm time.
// Otherwise a destination that fails for some messages only would begin an outage with each of
// them.
type outages struct {
	logger watermill.LoggerAdapter
	mu     sync.Mutex
	topics map[string]*time.Timer // timer to the end; nil if nothing was published since a failure
}

// calm is how long nothing may fail before an outage is over. It is longer than the default
// Backoff's maximum, so that a message that always fails is one outage.
const calm = 2 * time.Minute

// failed begins an outage, or prolongs it.
func (o *outages) failed(topic string, err error) {
	o.mu.Lock()
	end, known := o.topics[topic]
	if end != nil {
		end.Stop()
	}
	if o.topics == nil {
		o.topics = map[string]*time.Timer{}
	}
	o.topics[topic] = nil
	o.mu.Unlock()
	if !known {
		o.logger.Error("The destination fails to take messages, trying again", err, watermill.LogFields{"destination_topic": topic})
	}
}

// sent starts the timer to the end of an outage. If the run is stopped by then, the end is not
// logged.
func (o *outages) sent(s stop, topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if end, known := o.topics[topic]; !known || end != nil {
		return
	}
	var end *time.Timer
	end = time.AfterFunc(calm, func() {
		stopping := s.stopping.Err() != nil
		o.mu.Lock()
		over := o.topics[topic] == end // or another message has just failed
		switch {
		case over && stopping:
			o.topics[topic] = nil
		case over:
			delete(o.topics, topic)
		}
		o.mu.Unlock()
		if over && !stopping {
			o.logger.Info("The destination takes messages again", watermill.LogFields{"destination_topic": topic})
		}
	})
	o.topics[topic] = end
}
