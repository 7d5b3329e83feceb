package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// StreamGroup is the group of a topic with a Redis Stream: see StreamConfig. Package admin shows
// under this name the messages that are not in the stream yet.
const StreamGroup = queue.StreamGroup

// StreamConfig has a Publisher put messages into Redis Streams, when they are due, for subscribers
// of watermill-redisstream.
//
// The stream of a topic is the key with the topic's name, on the same server. A message moves from
// the waiting ones into the stream in one atomic step: it is never in both, nor in none. The name
// of a topic may not have %, { or } (ErrInvalidTopic), so that on a cluster all keys of the topic
// are in one slot. It may not be "<KeyPrefix>:topics", which is a key of this package.
//
// The first Publish makes the topic one with a stream, and it stays one. A topic cannot become one
// if it has groups, or messages of a Publisher without a StreamConfig. A topic with a stream has no
// Subscribers of this package. The error is ErrTopicMode.
//
// MaxDeliveriesKey and BackoffKey have no effect here: deliveries from the stream are up to its
// consumers. A delay ID names a message until it is in the stream. Whether it is too late for a
// message (ExpiresAtKey, MaxLatenessKey) is judged when it moves.
type StreamConfig struct {
	// MaxLen is about how many entries a stream keeps. When one is added, the oldest are removed,
	// whether they were read or not (XTRIM MAXLEN ~). Default 0: all are kept.
	MaxLen int64

	// MaxLens is MaxLen for single topics; 0 keeps all. If Publishers of a topic differ in it, the
	// last one to begin using the topic decides.
	MaxLens map[string]int64

	// DeadRetention is how long an expired message is kept as a dead letter, if it asks for that
	// (ExpiryDead). Default 30 days; negative: for ever.
	DeadRetention time.Duration

	// MaxDead is how many dead letters a topic keeps. If there are more, a scheduler deletes the
	// oldest soon: see SubscriberConfig.MaxDead. Default 0: no limit. If Publishers of a topic
	// differ in it, the last one to begin using the topic decides.
	MaxDead int

	// DisableScheduler leaves it to others to move messages that are due. Default false: the
	// Publisher runs a scheduler.Scheduler for all topics under the KeyPrefix, from NewPublisher
	// until Close, so that nothing else is needed. Any number of processes may run one; one of them
	// does the work. With true, one has to run somewhere.
	DisableScheduler bool
}

// IntoStreams tells whether messages go into Redis Streams: see PublisherConfig.Stream.
func (p *Publisher) IntoStreams() bool { return p.config.Stream != nil }

// withDefaults returns a copy that is the Publisher's own.
func (c StreamConfig) withDefaults() *StreamConfig {
	c.MaxLens = maps.Clone(c.MaxLens)
	c.DeadRetention = cmp.Or(c.DeadRetention, defaultDeadRetention)
	return &c
}

func (c *StreamConfig) validate() error {
	if c == nil {
		return nil
	}
	errs := []error{field.NotNegative("Stream.MaxLen", c.MaxLen), field.NotNegative("Stream.MaxDead", c.MaxDead)}
	for _, topic := range slices.Sorted(maps.Keys(c.MaxLens)) {
		errs = append(errs, field.NotNegative(fmt.Sprintf("Stream.MaxLens[%q]", topic), c.MaxLens[topic]))
	}
	return errors.Join(errs...)
}

// options returns the settings of a topic's stream.
func (c *StreamConfig) options(topic string) queue.StreamOptions {
	maxLen, ok := c.MaxLens[topic]
	if !ok {
		maxLen = c.MaxLen
	}
	return queue.StreamOptions{MaxLen: maxLen, Retention: c.DeadRetention, MaxDead: c.MaxDead}
}

func checkMarshaler(m Marshaler, c *StreamConfig) error {
	if _, same := m.(StreamMarshaler); m == nil || c == nil || same {
		return nil
	}
	return fmt.Errorf("is a %T, but with Stream it is StreamMarshaler that subscribers of watermill-redisstream read; leave it nil", m)
}

// checkTopic returns an error if the topic cannot be published to.
func (p *Publisher) checkTopic(topic string) error {
	if err := checkTopic(topic); err != nil || p.config.Stream == nil {
		return err
	}
	if err := queue.CheckStreamTopic(p.config.KeyPrefix, topic); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	return nil
}

// topic returns a new handle on a topic.
func (p *Publisher) topic(name string) *queue.Topic {
	if c := p.config.Stream; c != nil {
		return queue.NewStreamTopic(p.client, p.config.KeyPrefix, name, c.options(name))
	}
	return queue.NewTopic(p.client, p.config.KeyPrefix, name)
}

// schedule runs a scheduler until Close, if there is to be one.
func (p *Publisher) schedule() error {
	if p.config.Stream == nil || p.config.Stream.DisableScheduler {
		return nil
	}
	s, err := scheduler.New(scheduler.Config{Client: p.config.Client, KeyPrefix: p.config.KeyPrefix}, p.given)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stopScheduler, p.scheduled = stop, make(chan struct{})
	go func() {
		defer close(p.scheduled)
		_ = s.Run(ctx) // the only error is that it was run before
	}()
	return nil
}

// poisonedKey is the metadata key by which Watermill's PoisonQueue says why a handler failed
// (middleware.ReasonForPoisonedKey).
const poisonedKey = "reason_poisoned"

// deliveredBefore tells whether msg was delivered before. A handler of this package's Subscriber
// may have it, or it failed in a handler of another subscriber.
func deliveredBefore(msg *message.Message) bool {
	_, poisoned := msg.Metadata[poisonedKey]
	return poisoned || consume.Of(msg) != nil
}
