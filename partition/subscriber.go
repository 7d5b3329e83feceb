package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
)

// SubscriberConfig configures a Subscriber.
type SubscriberConfig struct {
	// Partitions is the number of plain topics that a topic consists of: 1 to MaxPartitions.
	// Required. It is at least that of the topic's publishers.
	Partitions int

	// PartitionMaxInFlight is how many messages of one partition the consumer has at once, neither
	// acked nor nacked. Default 0: as many as Subscriber.MaxInFlight. With 1, and one subscriber in
	// the group or Subscriber.SingleActive, messages of a partition come in order. Messages with
	// the same partition key then do.
	PartitionMaxInFlight int

	// Subscriber configures the Subscriber of the plain topics. Client is required. MaxInFlight is
	// how many messages of one Subscribe the consumer has at once, of all partitions together.
	// MaxDead is a limit of each partition. The Unmarshaler gets the name of the plain topic.
	Subscriber redisdelay.SubscriberConfig
}

func (c *SubscriberConfig) setDefaults() {
	c.Subscriber.MaxInFlight = cmp.Or(c.Subscriber.MaxInFlight, 1)
	c.PartitionMaxInFlight = min(cmp.Or(c.PartitionMaxInFlight, c.Subscriber.MaxInFlight), c.Subscriber.MaxInFlight)
}

// Validate reports every fault of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. NewSubscriber calls it.
func (c SubscriberConfig) Validate() error {
	var negative error
	if n := c.PartitionMaxInFlight; n < 0 {
		negative = invalid("PartitionMaxInFlight", fmt.Sprintf("is %d; it has to be positive, or zero for the default", n))
	}
	return errors.Join(checkPartitions(c.Partitions), negative, c.Subscriber.Validate())
}

// Subscriber is a Watermill Subscriber that brings the messages of all partitions of a topic on one
// channel. It also runs the scheduler of these partitions. It is safe for concurrent use.
type Subscriber struct {
	maxInFlight int // of one Subscribe
	plain       *redisdelay.Subscriber
	inside      inside.Subscriber
	names       *names
	logger      watermill.LoggerAdapter

	mu   sync.Mutex
	open map[*subscription]bool // those whose channel is open
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a Subscriber. It does not talk to Redis yet. A nil logger logs nothing.
func NewSubscriber(config SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	ofEach := config.Subscriber
	ofEach.MaxInFlight = config.PartitionMaxInFlight
	plain, err := redisdelay.NewSubscriber(ofEach, logger)
	if err != nil {
		return nil, err
	}
	return &Subscriber{
		maxInFlight: config.Subscriber.MaxInFlight,
		plain:       plain,
		inside:      inside.OfSubscriber(plain),
		names:       newNames(config.Partitions),
		logger:      guard.Logger(logger).With(watermill.LogFields{"component": "redisdelay.partition"}),
		open:        map[*subscription]bool{},
	}, nil
}

// SubscribeInitialize makes sure that the consumer group exists in every partition, so that it gets
// every message of the topic that becomes due from now on. With Broadcast it does nothing. Errors
// are those of redisdelay.Subscriber. After an error the group may exist in some partitions.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	names, err := s.names.of(topic)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.plain.SubscribeInitialize(name); err != nil {
			return err
		}
	}
	return nil
}

// Subscribe returns the channel of the topic's messages, each when it is due. It is that of a
// redisdelay.Subscriber, with these differences:
//
//   - At most MaxInFlight messages of all partitions together are unsettled at a time. While
//     several partitions have messages, each gets its share. One without messages lends its share.
//   - Messages of different partitions are in no order.
//   - Delivery.Topic is the plain topic.
//   - With Broadcast, the subscription has a group in each partition.
//
// If one partition cannot be subscribed to, none is. If the topic has more partitions than
// SubscriberConfig.Partitions, so that messages there stay unread, it logs an error.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	names, err := s.names.of(topic)
	if err != nil {
		return nil, err
	}
	sub := newSubscription(ctx, s, topic, names)
	if err := sub.begin(); err != nil {
		sub.cancel()
		sub.run(false)
		return nil, err
	}
	s.lookForMore(sub.ctx, topic)
	s.mu.Lock()
	s.open[sub] = true
	s.mu.Unlock()
	go func() {
		sub.run(s.inside.SingleActive())
		close(sub.closed)
		s.mu.Lock()
		delete(s.open, sub)
		s.mu.Unlock()
	}()
	return sub.common.Out, nil
}

var errMore = errors.New("a publisher has, or had, more partitions")

// lookForMore logs an error if the topic has partitions that are not subscribed to.
func (s *Subscriber) lookForMore(ctx context.Context, topic string) {
	var others []string
	for i := s.names.partitions; i < MaxPartitions; i++ {
		others = append(others, name(topic, i))
	}
	more, err := s.inside.Listed(ctx, others)
	fields := watermill.LogFields{"topic": topic, "partitions": s.names.partitions}
	switch {
	case err != nil:
		s.logger.Error("Cannot look whether the topic has more partitions", err, fields)
	case len(more) > 0:
		fields["unread"] = more
		s.logger.Error("The topic has partitions that this subscriber does not read", errMore, fields)
	}
}

// Close is that of a redisdelay.Subscriber. All channels are closed when it returns without an
// error.
func (s *Subscriber) Close() error {
	err := s.plain.Close()
	late := time.NewTimer(100 * time.Millisecond) // a subscription may hang, of which err tells
	defer late.Stop()
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, sub := range open {
		sub.cancel() // it may be about to renew a subscription
	}
	for _, sub := range open {
		select {
		case <-sub.closed:
		case <-late.C:
			return err
		}
	}
	return err
}
