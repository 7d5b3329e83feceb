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

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// StreamGroup is the group of a topic with a Redis Stream: see StreamConfig. Package admin knows by this name what
// has not come into the stream.
const StreamGroup = queue.StreamGroup

// StreamConfig has a Publisher put messages into Redis Streams, when they are due, for subscribers of
// watermill-redisstream.
//
// The stream of a topic is the key with the topic's name, on the same server. In one atomic step a message leaves
// what waits and is in the stream: it is never in both, nor in none. Topics may not have %, { or } in their names
// (ErrInvalidTopic), so that on a cluster too that is one slot, nor be the key "<KeyPrefix>:topics" of this package.
//
// The first Publish makes the topic one with a stream, and it stays one. A topic that has groups, or messages of a
// Publisher without a StreamConfig, cannot be one, and a topic with a stream has no Subscribers of this package:
// ErrTopicMode says so.
//
// What is no longer this package's when a message is in the stream has no effect: MaxDeliveriesKey and BackoffKey are
// left to the consumer. Delay IDs name what waits. Whether it is too late for a message (ExpiresAtKey,
// MaxLatenessKey) is judged when it moves.
type StreamConfig struct {
	// MaxLen is about how many entries a stream keeps: when something is added, the oldest are removed, whether
	// they were read or not (XTRIM MAXLEN ~). Default 0: all are kept.
	MaxLen int64

	// MaxLens is MaxLen for single topics; 0 keeps all. If Publishers of a topic differ in it, the last one
	// to begin using the topic decides.
	MaxLens map[string]int64

	// DeadRetention is how long a message is kept that expired and is to be a dead letter then. Default 30 days;
	// negative: for ever.
	DeadRetention time.Duration

	// DisableScheduler has the Publisher leave it to others to move what is due. Default false: it runs a
	// scheduler.Scheduler for all topics under the KeyPrefix, from NewPublisher until Close, so that nothing else
	// is needed. Any number of processes may; one does the work. With true, one has to run somewhere.
	DisableScheduler bool
}

// IntoStreams tells whether the messages go into Redis Streams, by PublisherConfig.Stream.
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
	errs := []error{invalid("Stream.MaxLen", notNegative(c.MaxLen))}
	for _, topic := range slices.Sorted(maps.Keys(c.MaxLens)) {
		errs = append(errs, invalid(fmt.Sprintf("Stream.MaxLens[%q]", topic), notNegative(c.MaxLens[topic])))
	}
	return errors.Join(errs...)
}

// options are the pipeline's for a topic.
func (c *StreamConfig) options(topic string) queue.StreamOptions {
	maxLen, ok := c.MaxLens[topic]
	if !ok {
		maxLen = c.MaxLen
	}
	return queue.StreamOptions{MaxLen: maxLen, Retention: c.DeadRetention}
}

func checkMarshaler(m Marshaler, c *StreamConfig) error {
	if _, same := m.(StreamMarshaler); m == nil || c == nil || same {
		return nil
	}
	return fmt.Errorf("is a %T, but with Stream it is StreamMarshaler that subscribers of watermill-redisstream read; leave it nil", m)
}

// checkTopic tells why a topic cannot be published to.
func (p *Publisher) checkTopic(topic string) error {
	if err := checkTopic(topic); err != nil || p.config.Stream == nil {
		return err
	}
	if err := queue.CheckStreamTopic(p.config.KeyPrefix, topic); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	return nil
}

// topic returns a handle on a topic.
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

// notInStream are the keys that the entry of a stream does not have: those that are for Publish. Watermill's duration stays on a
// message that has failed in a handler, since DelayOnError counts on from it.
func notInStream(msg *message.Message) []string {
	if _, poisoned := msg.Metadata[poisonedKey]; poisoned || deliveryOf(msg) != nil {
		return streamKeys[1:]
	}
	return streamKeys
}

// streamKeys are all keys that are for Publish to a topic with a stream, DelayedForKey first.
var streamKeys = slices.Concat(publishKeys, expiryKeys, []string{DelayIDKey})

// queued is the expiry in the pipeline's terms.
func (e expiry) queued() queue.Expiry {
	return queue.Expiry{At: e.at, Lateness: e.lateness, Dead: e.then == ExpiryDead}
}
