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
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// SubscriberConfig configures a Subscriber.
type SubscriberConfig struct {
	// Partitions is the number of plain topics that a topic consists of: 1 to MaxPartitions. It is
	// at least that of the topic's publishers. 0: the number in Redis, as admin.SetPartitions and
	// "redisdelay partitions set" set it. A Subscribe looks for another one every 15 seconds. If
	// the topic grows, it takes new partitions in. If it has shrunk, it leaves those that it lacks.
	Partitions int

	// PartitionMaxInFlight is how many messages of one partition the consumer has at once, neither
	// acked nor nacked. Default 0: as many as Subscriber.MaxInFlight. With 1, and one subscriber in
	// the group or SingleActive, messages of a partition come in order. Messages with the same
	// partition key then do.
	PartitionMaxInFlight int

	// Subscriber configures the Subscriber of the plain topics. Client is required. MaxInFlight is
	// how many messages of one Subscribe the consumer has at once, of all partitions together.
	// MaxDead and MaxHistory are limits of each partition. Limit, Burst and AtOnce are limits of
	// all partitions together. Each partition gets an equal share of them, and does not lend it to
	// others. Burst and AtOnce have to be at least the number of partitions, and Burst is by
	// default. While the number changes, or a topic has partitions that this subscriber does not
	// read, the higher number counts. The Unmarshaler gets the name of the plain topic.
	Subscriber redisdelay.SubscriberConfig
}

func (c *SubscriberConfig) setDefaults() {
	c.Subscriber.MaxInFlight = cmp.Or(c.Subscriber.MaxInFlight, 1)
	c.PartitionMaxInFlight = min(cmp.Or(c.PartitionMaxInFlight, c.Subscriber.MaxInFlight), c.Subscriber.MaxInFlight)
}

// Validate reports every fault of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. NewSubscriber calls it.
func (c SubscriberConfig) Validate() error {
	return errors.Join(checkConfigured(c.Partitions), field.NotNegative("PartitionMaxInFlight", c.PartitionMaxInFlight), field.Within("Subscriber", c.Subscriber.Validate()))
}

// Subscriber is a Watermill Subscriber that brings the messages of all partitions of a topic on one
// channel. It also runs the scheduler of these partitions. It is safe for concurrent use.
type Subscriber struct {
	maxInFlight int              // of one Subscribe
	limit       queue.GroupLimit // of all partitions together; Burst is 0 for the default
	plain       *redisdelay.Subscriber
	inside      inside.Subscriber
	fixed       int // how many partitions a topic has; 0: as many as Redis says
	follow      time.Duration
	look        time.Duration // see lookEvery
	take        time.Duration // see takeFor
	names       names
	logger      watermill.LoggerAdapter

	mu   sync.Mutex
	open map[*reading]bool // of each channel that is open; closed after it
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
	ofEach.Limit, ofEach.Burst, ofEach.AtOnce = 0, 0, 0 // each partition gets a share
	plain, err := redisdelay.NewSubscriber(ofEach, logger)
	if err != nil {
		return nil, err
	}
	return &Subscriber{
		maxInFlight: config.Subscriber.MaxInFlight,
		limit:       queue.GroupLimit{Rate: float64(config.Subscriber.Limit), Burst: config.Subscriber.Burst, AtOnce: config.Subscriber.AtOnce},
		plain:       plain,
		inside:      inside.OfSubscriber(plain),
		fixed:       config.Partitions,
		follow:      followEvery,
		look:        lookEvery,
		take:        takeFor,
		logger:      componentLogger(logger),
		open:        map[*reading]bool{},
	}, nil
}

// SubscribeInitialize makes sure that the consumer group exists in every partition, so that it gets
// every message of the topic that becomes due from now on. With Broadcast it does nothing. Errors
// are those of redisdelay.Subscriber. After an error the group may exist in some partitions.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	names, err := s.partitions(context.Background(), topic)
	if err != nil {
		return err
	}
	r := newReading(context.Background(), s, topic)
	defer r.end()
	if err := r.divide(r.ctx, names); err != nil {
		return fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	for _, name := range names {
		if err := s.inside.InitializeIn(name, r.common); err != nil {
			return err
		}
	}
	return nil
}

// partitions returns the plain topics to read.
func (s *Subscriber) partitions(ctx context.Context, topic string) ([]string, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	n := s.fixed
	if n == 0 {
		one := numbers{ask: func(_ context.Context, topic string) (queue.Partitioning, error) {
			return s.inside.Partitioning(ctx, topic)
		}}
		read, err := one.of(topic)
		if err != nil {
			return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
		}
		n = read.Most()
	}
	return s.names.of(topic, n)
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
// If one partition cannot be subscribed to, none is. Errors wrap redisdelay.ErrInvalidConfig if
// Burst or AtOnce is less than the number of partitions. If the topic has more partitions than
// SubscriberConfig.Partitions, so that messages there stay unread, it logs an error.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	names, err := s.partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	r := newReading(ctx, s, topic)
	if err := r.begin(names); err != nil {
		r.end()
		return nil, err
	}
	s.lookForMore(r.ctx, topic, len(r.parts))
	s.mu.Lock()
	s.open[r] = true
	s.mu.Unlock()
	go func() {
		r.run()
		r.end()
		s.mu.Lock()
		delete(s.open, r)
		s.mu.Unlock()
	}()
	return r.common.Out, nil
}

var errMore = errors.New("a publisher has, or had, more partitions")

// lookForMore logs an error if the topic has partitions that are not subscribed to.
func (s *Subscriber) lookForMore(ctx context.Context, topic string, n int) {
	more, err := s.unread(ctx, topic, n)
	fields := watermill.LogFields{"topic": topic, "partitions": n}
	switch {
	case err != nil:
		s.logger.Error("Cannot look whether the topic has more partitions", err, fields)
	case len(more) > 0:
		fields["unread"] = more
		s.logger.Error("The topic has partitions that this subscriber does not read", errMore, fields)
	}
}

// Close is that of a redisdelay.Subscriber, and takes no longer. All channels are closed when it
// returns without an error. If one is open up to a second after its subscriptions have ended,
// because Redis does not answer, an error names its topic.
func (s *Subscriber) Close() error {
	end := time.Now().Add(s.inside.CloseWithin())
	err := s.plain.Close()
	rest := max(100*time.Millisecond, min(time.Second, time.Until(end))) // for a call of Redis that the client does not give up
	if err != nil {
		rest = 100 * time.Millisecond // a subscription hangs
	}
	late := time.NewTimer(rest)
	defer late.Stop()
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, r := range open {
		r.cancel() // it may be about to renew a subscription
	}
	for _, r := range open {
		select {
		case <-r.closed:
		case <-late.C:
			return cmp.Or(err, fmt.Errorf("close subscriber: topic %q: its channel is still open %v after its subscriptions have ended", r.topic, rest))
		}
	}
	return err
}
