package relay

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
)

// ErrPartlyPublished means that the messages with a delay are in Redis, but not all messages
// without a delay were published. Repeating the call would duplicate the messages with a delay.
var ErrPartlyPublished = errors.New("the messages with a delay are published, the others are not")

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	// Destination receives the messages without delay. Required. Publisher.Close closes it, and a
	// router closes the Publishers of its handlers. So give a Relay in the same program another
	// Destination.
	Destination message.Publisher

	// Delayed receives the messages with a delay. Required. A Relay with the same KeyPrefix and
	// Redis must run somewhere. A Publisher with a StreamConfig is refused, because its messages go
	// into Redis Streams, where a Relay does not read.
	Delayed *redisdelay.Publisher

	// DestinationTopic returns the destination's topic for messages without delay. It should do the
	// same as Config.DestinationTopic. Default: the topic that they are published to.
	DestinationTopic TopicFunc
}

// Validate reports all faults of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. NewPublisher calls it.
func (c PublisherConfig) Validate() error {
	return errors.Join(
		field.Required("Destination", c.Destination != nil),
		field.Required("Delayed", c.Delayed != nil),
		c.checkDelayed(),
	)
}

func (c PublisherConfig) checkDelayed() error {
	if c.Delayed == nil || !c.Delayed.IntoStreams() {
		return nil
	}
	return field.Invalid("Delayed", "has a Stream, so its messages go into Redis Streams and not to the Destination; leave Stream nil")
}

// Publisher publishes messages without delay to a destination. It puts messages with a delay into
// Redis, from where a Relay publishes them. It is safe for concurrent use if the destination is.
type Publisher struct{ config PublisherConfig }

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. Errors wrap redisdelay.ErrInvalidConfig.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.DestinationTopic == nil {
		config.DestinationTopic = sameTopic
	}
	return &Publisher{config}, nil
}

// Publish publishes messages to the destination, those with a delay when it is over. It reads
// delays as redisdelay.Publisher does. "0s" is no delay; an instant is one, even in the past.
//
// First the messages with a delay go into Redis, in one atomic step. Then the others go to the
// destination, in the order of the call. Consecutive messages of one destination topic share one
// Publish. The caller's messages are not changed; the destination receives them without IDKey.
//
// Nothing is published if a delay cannot be read or Redis refuses the step. If the destination
// fails after messages went into Redis, the error wraps ErrPartlyPublished. The caller may then
// publish the messages without delay again; the destination may already have taken some of them.
// Errors wrap redisdelay.ErrNilMessage, redisdelay.ErrInvalidDelay, the other errors of
// redisdelay.Publisher.Publish, or those of the destination.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	var delayed []*message.Message
	var direct calls
	for i, msg := range messages {
		if msg == nil {
			return fmt.Errorf("publish to topic %q: message %d: %w", topic, i, redisdelay.ErrNilMessage)
		}
		waits, err := redisdelay.Delayed(msg)
		switch {
		case err != nil:
			return fmt.Errorf("publish to topic %q: message %d (UUID %.64q): %w", topic, i, msg.UUID, err)
		case waits:
			delayed = append(delayed, msg)
		default:
			direct.add(p.config.DestinationTopic(topic, msg), withoutDelay(msg))
		}
	}
	if len(delayed) > 0 {
		if err := p.config.Delayed.Publish(topic, delayed...); err != nil {
			return err
		}
	}
	for _, c := range direct {
		err := p.config.Destination.Publish(c.topic, c.messages...)
		switch {
		case err != nil && len(delayed) > 0:
			return fmt.Errorf("publish to topic %q: %w: %w", c.topic, ErrPartlyPublished, err)
		case err != nil:
			return fmt.Errorf("publish to topic %q: %w", c.topic, err)
		}
	}
	return nil
}

// calls are the calls of the destination's Publish, in order.
type calls []call

// call has consecutive messages of one destination topic.
type call struct {
	topic    string
	messages []*message.Message
}

func (c *calls) add(topic string, msg *message.Message) {
	if last := len(*c) - 1; last >= 0 && (*c)[last].topic == topic {
		(*c)[last].messages = append((*c)[last].messages, msg)
		return
	}
	*c = append(*c, call{topic, []*message.Message{msg}})
}

// withoutDelay returns a message of zero delay without the metadata that says so, which a consumer
// could take for a delay. Watermill's duration key alone does not count as a delay, so it stays.
//
// It also removes IDKey, unless a Relay publishes through this Publisher. The ID belongs to a
// relayed message that a consumer forwards, and would make the new message look like a duplicate.
func withoutDelay(msg *message.Message) *message.Message {
	remove := []string{redisdelay.DelayKey}
	if d, ok := redisdelay.DeliveryFromContext(msg.Context()); !ok || d.ID != msg.Metadata[IDKey] {
		remove = append(remove, IDKey)
	}
	if _, stamped := msg.Metadata[delay.DelayedUntilKey]; stamped {
		remove = append(remove, delay.DelayedUntilKey, delay.DelayedForKey)
	}
	bare := msg
	for _, key := range remove {
		if _, there := msg.Metadata[key]; !there {
			continue
		}
		if bare == msg {
			bare = msg.Copy()
			bare.SetContext(msg.Context())
		}
		delete(bare.Metadata, key)
	}
	return bare
}

// Close closes the destination and the Publisher of delayed messages, as Watermill's decorators do.
// It returns the errors of both.
func (p *Publisher) Close() error {
	return errors.Join(p.config.Delayed.Close(), p.config.Destination.Close())
}
