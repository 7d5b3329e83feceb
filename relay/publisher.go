package relay

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// ErrPartlyPublished is wrapped by the error of a Publish that kept the messages with a delay in Redis, and could
// not publish all of those without. To publish the call again would double those with a delay.
var ErrPartlyPublished = errors.New("the messages with a delay are published, those without are not")

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	// Destination gets the messages without delay. Required. Publisher.Close closes it, and a router closes the
	// Publishers of its handlers: so give a Relay in the same program a Destination of its own.
	Destination message.Publisher

	// Delayed gets those with one. Required. A Relay with its KeyPrefix and Client has to run somewhere. One with a
	// StreamConfig is refused: its messages go into Redis Streams, and no Relay could have them.
	Delayed *redisdelay.Publisher

	// DestinationTopic names the topics of messages that go straight to the destination; Config.DestinationTopic
	// should do the same. Default: the topic that they are published to.
	DestinationTopic TopicFunc
}

// Validate reports every fault of the configuration at once, wrapping redisdelay.ErrInvalidConfig. NewPublisher
// calls it.
func (c PublisherConfig) Validate() error {
	return errors.Join(
		required("Destination", c.Destination != nil),
		required("Delayed", c.Delayed != nil),
		c.checkDelayed(),
	)
}

func (c PublisherConfig) checkDelayed() error {
	if c.Delayed == nil || !c.Delayed.IntoStreams() {
		return nil
	}
	return invalid("Delayed", "has a Stream, so that its messages go into Redis Streams and not to the Destination; leave Stream nil")
}

func required(field string, there bool) error {
	if there {
		return nil
	}
	return invalid(field, "is required")
}

func invalid(field, why string) error {
	return fmt.Errorf("%w: %s %s", redisdelay.ErrInvalidConfig, field, why)
}

// Publisher publishes messages without delay to a destination, and has those with one wait in Redis until a Relay
// publishes them there. It is safe for concurrent use if the destination is.
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

// Publish publishes messages to the destination, those with a delay when it is over. What counts as a delay is
// what redisdelay.Publisher takes for one; "0s" does not, and an instant does, even if it is past.
//
// First the messages with a delay go into Redis, in one atomic step. Then those without go to the destination, in
// the order of the call: in one Publish if they have one destination topic, else in one for each stretch of
// messages that have the same. Messages are not changed; what goes to the destination is without IDKey.
//
// If the delay of any message cannot be read, or Redis refuses the step, nothing is published. If the destination
// fails then, the error wraps ErrPartlyPublished, provided that there were messages with a delay: they are in
// Redis, and to try again with those without is up to the caller. Of these the destination may have taken some.
// Errors wrap those of redisdelay.Publisher, or the destination's.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	var delayed []*message.Message
	var direct stretches
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
	for _, s := range direct {
		err := p.config.Destination.Publish(s.topic, s.messages...)
		switch {
		case err != nil && len(delayed) > 0:
			return fmt.Errorf("publish to topic %q: %w: %w", s.topic, ErrPartlyPublished, err)
		case err != nil:
			return fmt.Errorf("publish to topic %q: %w", s.topic, err)
		}
	}
	return nil
}

// stretches are messages in order, with those that go to the same topic together.
type stretches []stretch

type stretch struct {
	topic    string
	messages []*message.Message
}

func (s *stretches) add(topic string, msg *message.Message) {
	if last := len(*s) - 1; last >= 0 && (*s)[last].topic == topic {
		(*s)[last].messages = append((*s)[last].messages, msg)
		return
	}
	*s = append(*s, stretch{topic, []*message.Message{msg}})
}

// withoutDelay returns a message that has no delay without the keys that say so, for consumers that would take
// them for one. Watermill's duration alone is not about this message's delay. And without the ID of another: of a message
// that was relayed, and that a consumer hands on, as who has seen that would take this one for a duplicate. What a Relay
// sends by a Publisher has its own.
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
func (p *Publisher) Close() error {
	return errors.Join(p.config.Delayed.Close(), p.config.Destination.Close())
}
