package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// DefaultConsumerGroup is the consumer group of a Relay if Config names none.
const DefaultConsumerGroup = "relay"

// Config configures a Relay.
type Config struct {
	// Subscriber configures how messages are taken from Redis. Client is required. Differences
	// here:
	//
	//   - ConsumerGroup defaults to DefaultConsumerGroup. All processes of one relay use the same.
	//   - MaxDeliveries defaults to no limit, so that an outage of the destination loses no
	//     message. A message's own limit, redisdelay.MaxDeliveriesKey, still applies.
	//   - Backoff is how long a message waits after the destination failed to take it. Default
	//     redisdelay.ExponentialBackoff(250*time.Millisecond, time.Minute).
	//   - CloseTimeout defaults to 10s. See Relay.Run for what happens within it.
	//   - Limit, Burst and AtOnce count messages, not calls of Publish. A batch has as many as they
	//     allow at that moment.
	//   - MaxInFlight and Broadcast must be zero, because the relay sets them.
	Subscriber redisdelay.SubscriberConfig

	// Topics are the topics to relay. Nil means all topics under the Subscriber's KeyPrefix; a new
	// topic is relayed within a second of its first use. Use a separate prefix for the relay then.
	// A name in the registry that has no topic is ignored, and looked for twice a minute.
	// AddHandlers requires Topics.
	Topics []string

	// Destination receives the due messages. Required. The relay never closes it. It must be safe
	// for concurrent use. Its Publish must return nil only when the messages are stored safely.
	//
	// If its error wraps a *redisdelay.PostponeError, the messages of that call wait for its Delay
	// instead of the Backoff, and the failure uses up no delivery. That is for a destination that
	// says when it takes messages again.
	Destination message.Publisher

	// DestinationTopic returns the destination's topic for a message. Default: the topic that the
	// message was published to.
	DestinationTopic TopicFunc

	// Permanent returns whether an error of the destination is permanent, so that a retry cannot
	// help, such as for a message that is too large. The message is then dead-lettered in Redis at
	// once, with the error's text. It must be safe for concurrent use. Default: no error is
	// permanent.
	Permanent func(error) bool

	// Ordered keeps the messages of a topic in order, if there is one relay process: by due time,
	// then as their Publisher published them. They are published one at a time. A message that the
	// destination fails to take blocks all later messages of its topic until it is tried again,
	// after Backoff. A message's own backoff (redisdelay.BackoffKey) is ignored.
	//
	// The order breaks if the process crashes, or if a lease is lost because Redis does not answer
	// for longer than LeaseDuration. It also breaks on a stop if the destination's Publish ignores
	// the message's context. See docs/relay.md.
	//
	// Default false: a message that cannot be published waits in Redis, and later messages overtake
	// it.
	Ordered bool

	// Concurrency is the maximum number of concurrent calls of the destination's Publish per topic.
	// Default 4, at most 10,000. With Ordered it must be 1 or 0.
	Concurrency int

	// BatchMessages is the maximum number of messages in one Publish. Default 100, at most 100,000.
	// With Ordered it must be 1 or 0. AddHandlers ignores it.
	//
	// A call takes the messages that are available, in order. If it fails, that is a failed
	// delivery of each. A message that failed before is published alone, so that it cannot fail
	// others again. So is a message with one delivery only, so that another message's error cannot
	// make it dead.
	BatchMessages int

	// BatchWait is how long a message waits for others to fill its batch. A message that was
	// delivered before does not wait, unless a batch is already waiting. Default 0: no wait.
	BatchWait time.Duration
}

func (c *Config) setDefaults() {
	if c.DestinationTopic == nil {
		c.DestinationTopic = sameTopic
	}
	if c.Permanent == nil {
		c.Permanent = func(error) bool { return false }
	}
	if c.Ordered {
		c.Concurrency, c.BatchMessages = 1, 1
	}
	c.Concurrency = cmp.Or(c.Concurrency, 4)
	c.BatchMessages = cmp.Or(c.BatchMessages, 100)

	s := &c.Subscriber
	s.KeyPrefix = cmp.Or(s.KeyPrefix, redisdelay.DefaultKeyPrefix)
	s.ConsumerGroup = cmp.Or(s.ConsumerGroup, DefaultConsumerGroup)
	s.MaxDeliveries = cmp.Or(s.MaxDeliveries, -1)
	s.LeaseDuration = cmp.Or(s.LeaseDuration, 30*time.Second)
	s.MaxExtension = cmp.Or(s.MaxExtension, time.Hour)
	s.CloseTimeout = cmp.Or(s.CloseTimeout, 10*time.Second)
	if s.Backoff == nil {
		s.Backoff = defaultBackoff
	}
}

var defaultBackoff = redisdelay.ExponentialBackoff(250*time.Millisecond, time.Minute)

// Validate reports all faults of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error {
	errs := []error{
		field.Required("Destination", c.Destination != nil),
		field.NotNegative("Concurrency", c.Concurrency),
		field.NotNegative("BatchMessages", c.BatchMessages),
		field.AtMost("Concurrency", c.Concurrency, 10_000),
		field.AtMost("BatchMessages", c.BatchMessages, 100_000),
		field.NotNegative("BatchWait", c.BatchWait),
	}
	if c.Topics != nil && len(c.Topics) == 0 {
		errs = append(errs, field.Invalid("Topics", "is empty, so there is nothing to relay; use nil for all topics"))
	}
	for i, topic := range c.Topics {
		if fault := queue.FaultOfTopic(topic); fault != "" {
			errs = append(errs, field.Invalid(fmt.Sprintf("Topics[%d]", i), "%s", fault))
		}
		if slices.Contains(c.Topics[:i], topic) {
			errs = append(errs, field.Invalid(fmt.Sprintf("Topics[%d]", i), "is %.64q again; name each topic once", topic))
		}
	}
	if c.Ordered && c.Concurrency > 1 {
		errs = append(errs, field.Invalid("Concurrency", "must be 1 or 0 with Ordered"))
	}
	if c.Ordered && c.BatchMessages > 1 {
		errs = append(errs, field.Invalid("BatchMessages", "must be 1 or 0 with Ordered"))
	}
	if c.Subscriber.MaxInFlight != 0 {
		errs = append(errs, field.Invalid("Subscriber.MaxInFlight", "must be zero: it follows from Concurrency and BatchMessages"))
	}
	if c.Subscriber.Broadcast {
		errs = append(errs, field.Invalid("Subscriber.Broadcast", "must be false: each process would publish every message"))
	}
	return errors.Join(append(errs, field.Within("Subscriber", c.Subscriber.Validate()))...)
}
