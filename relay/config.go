package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// DefaultConsumerGroup is the group of a Relay whose configuration names none.
const DefaultConsumerGroup = "relay"

// Config configures a Relay.
type Config struct {
	// Subscriber says how messages are taken from Redis. Client is required. These are different here:
	//
	//   - ConsumerGroup is by default DefaultConsumerGroup. All processes of one relay have the same.
	//   - MaxDeliveries has by default no limit, so that an outage of the destination costs no message. A
	//     message's own limit, redisdelay.MaxDeliveriesKey, counts.
	//   - Backoff says how long a message waits that the destination did not take, by default
	//     redisdelay.ExponentialBackoff(250*time.Millisecond, time.Minute).
	//   - MaxInFlight and Broadcast are the relay's to set, and have to be zero.
	Subscriber redisdelay.SubscriberConfig

	// Topics are what is relayed. If nil, all topics under the Subscriber's KeyPrefix are, and a new one within a
	// second of its first use; let the relay then have a prefix of its own. AddHandlers needs them.
	Topics []string

	// Destination is where due messages go. Required. It stays the caller's: nothing here closes it. It must be
	// safe for concurrent use, and its Publish has to return nil only when the messages are safe.
	Destination message.Publisher

	// DestinationTopic names the topic that a message goes to. Default: the one that it was published to.
	DestinationTopic TopicFunc

	// Permanent tells which errors of the destination no further try can help, such as one about a message that
	// is too large. What is refused so is dead-lettered in Redis at once, with the error's text. It must be safe for
	// concurrent use. Default: no error is.
	Permanent func(error) bool

	// Ordered keeps the messages of a topic in order, by due time, then as their Publisher published them, as
	// long as there is one relay process. They go out one at a time, and one that the destination does not
	// take holds up those behind it, wherever they are to go, for as long as Backoff says, until it is tried again.
	// Other topics go on. A backoff of the message's own (redisdelay.BackoffKey) does not count.
	// A process that ends without having been stopped breaks the order: what it had in hand comes late. So does a
	// lease that is lost, as when Redis does not answer for longer than LeaseDuration; and a stop, if the
	// destination's Publish does not heed the message's context. docs/relay.md says more.
	// Default false: what cannot be published waits in Redis, and others pass.
	Ordered bool

	// Concurrency is how many calls of the destination's Publish may be under way at once, for each topic.
	// Default 4, at most 10,000; with Ordered it has to be 1 or 0.
	Concurrency int

	// BatchMessages is how many messages one Publish has at most. What is there when a call can be made goes with
	// it, in order. If that fails, it is a failed delivery of each. What failed before goes alone, so that one that is
	// never taken holds up no other, and so does a message that may be delivered once only. Default 100, at most
	// 100,000; with Ordered it has to be 1 or 0. AddHandlers does not use it.
	BatchMessages int

	// BatchWait is how long a message waits for others to go with it, if fewer than BatchMessages are there. One that
	// was delivered before does not wait, unless others wait already. Default 0: nothing waits.
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
	s.CloseTimeout = cmp.Or(s.CloseTimeout, 10*time.Second)
	if s.Backoff == nil {
		s.Backoff = redisdelay.ExponentialBackoff(250*time.Millisecond, time.Minute)
	}
}

// Validate reports every fault of the configuration at once, wrapping redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error {
	errs := []error{
		required("Destination", c.Destination != nil),
		notNegative("Concurrency", c.Concurrency),
		notNegative("BatchMessages", c.BatchMessages),
		notAbove("Concurrency", c.Concurrency, 10_000),
		notAbove("BatchMessages", c.BatchMessages, 100_000),
		notNegative("BatchWait", c.BatchWait),
	}
	if c.Topics != nil && len(c.Topics) == 0 {
		errs = append(errs, invalid("Topics", "is empty, so there is nothing to relay; it has to be nil for all topics"))
	}
	for i, topic := range c.Topics {
		if topic == "" || len(topic) > redisdelay.MaxTopicLength {
			errs = append(errs, invalid(fmt.Sprintf("Topics[%d]", i),
				fmt.Sprintf("has %d bytes; it needs from 1 to %d", len(topic), redisdelay.MaxTopicLength)))
		}
		if slices.Contains(c.Topics[:i], topic) {
			errs = append(errs, invalid(fmt.Sprintf("Topics[%d]", i), fmt.Sprintf("is %.64q again; name each once", topic)))
		}
	}
	if c.Ordered && c.Concurrency > 1 {
		errs = append(errs, invalid("Concurrency", "has to be 1 or 0 with Ordered"))
	}
	if c.Ordered && c.BatchMessages > 1 {
		errs = append(errs, invalid("BatchMessages", "has to be 1 or 0 with Ordered"))
	}
	if c.Subscriber.MaxInFlight != 0 {
		errs = append(errs, invalid("Subscriber.MaxInFlight", "has to be zero: Concurrency and BatchMessages say it"))
	}
	if c.Subscriber.Broadcast {
		errs = append(errs, invalid("Subscriber.Broadcast", "has to be false: each process would publish every message"))
	}
	return errors.Join(append(errs, c.Subscriber.Validate())...)
}

func notNegative[N ~int | ~int64](field string, n N) error {
	if n < 0 {
		return invalid(field, fmt.Sprintf("is %v; it has to be positive, or zero for the default", n))
	}
	return nil
}

func notAbove(field string, n, most int) error {
	if n > most {
		return invalid(field, fmt.Sprintf("is %d; it has to be %d at most", n, most))
	}
	return nil
}
