package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// KeyMetadata is the metadata key of a message's partition key. Messages of a topic with the same
// partition key are in the same partition. It is stored with the message.
const KeyMetadata = partitions.KeyMetadata

// SetKey sets the partition key of a message.
func SetKey(msg *message.Message, key string) { msg.Metadata.Set(KeyMetadata, key) }

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	// Partitions is the number of plain topics that a topic consists of: 1 to MaxPartitions. All
	// publishers and subscribers of a topic use the same number. A multiple of 12 spreads evenly
	// over 2, 3, 4, 6 or 12 nodes. 0: the number in Redis, as admin.SetPartitions and "redisdelay
	// partitions set" set it. The Publisher follows it within seconds.
	Partitions int

	// KeyFunc returns the partition key of a message without KeyMetadata, or "" for none. It must
	// be safe for concurrent use. If it panics or calls runtime.Goexit, Publish returns an error,
	// and nothing of its call is published. Default nil: no message has another key than that in
	// its metadata.
	KeyFunc func(topic string, msg *message.Message) string

	// Publisher configures the Publisher of the plain topics. Client is required. MaxWaiting,
	// MaxPublishMessages and MaxPublishBytes are limits of each partition. The Marshaler gets the
	// name of the plain topic. With Stream, each partition has a stream of its own.
	Publisher redisdelay.PublisherConfig
}

// Validate reports every fault of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. NewPublisher calls it.
func (c PublisherConfig) Validate() error {
	return errors.Join(checkConfigured(c.Partitions), field.Within("Publisher", c.Publisher.Validate()))
}

// Publisher is a Watermill Publisher that spreads a topic over several plain topics. It is safe for
// concurrent use. It remembers every topic that it has published to, until it is closed.
type Publisher struct {
	config  PublisherConfig
	plain   *redisdelay.Publisher
	inside  inside.Publisher
	numbers *numbers
	names   names

	mu     sync.Mutex
	sticky map[string]*sticky // by topic
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. It does not talk to Redis yet. A nil logger logs nothing.
func NewPublisher(config PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	plain, err := redisdelay.NewPublisher(config.Publisher, logger)
	if err != nil {
		return nil, err
	}
	in := inside.Of(plain)
	return &Publisher{
		config:  config,
		plain:   plain,
		inside:  in,
		numbers: &numbers{fixed: config.Partitions, ask: in.Partitioning, refresh: refreshAfter, logger: componentLogger(logger)},
		sticky:  map[string]*sticky{},
	}, nil
}

// Publish is that of a redisdelay.Publisher, on the partition of each message:
//
//   - Messages with the same partition key are in the same partition: see KeyMetadata and KeyFunc.
//   - Otherwise the delay ID (redisdelay.DelayIDKey) is the key, so that a later message replaces
//     an earlier one. A delay ID is unique in its partition. So messages with the same delay ID
//     must have the same partition key, or none.
//   - Other messages are in any partition, evenly. Those of one call are together, with the first
//     message of the call that has a key if there is one. Messages that come soon after one another
//     are together, too.
//
// A call whose messages are all in one partition is one atomic step. A call over several partitions
// is one step for each partition. All messages are checked first: an error about a message or its
// size means that none is in Redis. If a step fails, Publish returns a *PublishError, which says
// which messages are in Redis. To publish the whole call again doubles those.
//
// Messages of one Publisher in one partition that are due at the same time keep their order.
// Contexts and errors are those of redisdelay.Publisher.Publish. Of a call over several partitions,
// the first message of each partition can take its partition's part of the call back.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	number, err := p.numbers.of(topic)
	if err != nil {
		return fmt.Errorf("publish to topic %q: %w", topic, err)
	}
	names, err := p.names.of(topic, number.Most())
	if err != nil {
		return err
	}
	keys, err := p.keys(topic, messages)
	if err != nil {
		return fmt.Errorf("publish to topic %q: %w", topic, err)
	}
	places, err := p.places(names, number, keys, messages)
	if err != nil {
		return fmt.Errorf("publish to topic %q: look for delay IDs: %w", topic, err)
	}
	s := p.stickyOf(topic)
	places, leave := s.place(places, number.Count)
	defer leave()
	if len(places) == 0 {
		return p.plain.Publish(names[0])
	}
	parts := split(names, places, messages)
	if len(parts) == 1 {
		return p.plain.Publish(parts[0].Topic, messages...)
	}
	return p.publish(topic, parts, places, messages)
}

// Close is that of a redisdelay.Publisher, and returns its error.
func (p *Publisher) Close() error { return p.plain.Close() }

// anywhere is the place of a message without a key.
const anywhere = -1

// places returns the partition of each message, or anywhere. While the number of partitions
// changes, a message goes where its delay ID is taken, which may be the partition that its key had
// before. So it replaces that message, is left out or refused, as its mode says.
func (p *Publisher) places(names []string, n queue.Partitioning, keys []string, messages []*message.Message) ([]int, error) {
	places := make([]int, len(keys))
	moved := map[int][]int{} // the messages whose delay IDs may be in a partition from before
	for i, key := range keys {
		places[i] = anywhere
		if key == "" {
			continue
		}
		places[i] = partitions.OfKey(key, n.Count)
		if n.Before == 0 || messages[i].Metadata[redisdelay.DelayIDKey] == "" {
			continue
		}
		if before := partitions.OfKey(key, n.Before); before != places[i] {
			moved[before] = append(moved[before], i)
		}
	}
	for before, those := range moved {
		ids := make([]string, len(those))
		for j, i := range those {
			ids[j] = messages[i].Metadata[redisdelay.DelayIDKey]
		}
		ctx, cancel := context.WithTimeout(context.Background(), askFor)
		taken, err := p.inside.Topic(names[before]).Taken(ctx, ids)
		cancel()
		if err != nil {
			return nil, err
		}
		for j, i := range those {
			if taken[j] {
				places[i] = before
			}
		}
	}
	return places, nil
}

// keys returns the key of each message, or "".
func (p *Publisher) keys(topic string, messages []*message.Message) (keys []string, err error) {
	keys = make([]string, len(messages))
	find := func() {
		for i, msg := range messages {
			if msg == nil {
				err = fmt.Errorf("message %d: %w", i, redisdelay.ErrNilMessage)
				return
			}
			keys[i] = p.key(topic, msg)
		}
	}
	if p.config.KeyFunc == nil {
		find()
		return keys, err
	}
	if failed := guard.Apart("KeyFunc", find); failed != nil {
		return nil, failed
	}
	return keys, err
}

func (p *Publisher) key(topic string, msg *message.Message) string {
	if key := msg.Metadata[KeyMetadata]; key != "" {
		return key
	}
	if p.config.KeyFunc != nil {
		if key := p.config.KeyFunc(topic, msg); key != "" {
			return key
		}
	}
	return msg.Metadata[redisdelay.DelayIDKey]
}

// split divides the messages of a call, in order, by their partitions.
func split(names []string, places []int, messages []*message.Message) (parts []Part) {
	at := map[int]int{}
	for i, place := range places {
		part, known := at[place]
		if !known {
			part = len(parts)
			at[place] = part
			parts = append(parts, Part{Partition: place, Topic: names[place]})
		}
		parts[part].Messages = append(parts[part].Messages, messages[i])
	}
	return parts
}

// publish prepares all parts, and then sends them at the same time.
func (p *Publisher) publish(topic string, parts []Part, places []int, messages []*message.Message) error {
	sends, frees := make([]func() error, len(parts)), make([]func(), len(parts))
	for i := range parts {
		var err error
		sends[i], frees[i], err = p.inside.Prepare(parts[i].Topic, parts[i].Messages)
		if err != nil {
			for _, free := range frees[:i] {
				free()
			}
			return err
		}
	}
	var sending sync.WaitGroup
	for i := range parts {
		sending.Go(func() {
			err := &parts[i].Err
			// This is so until send returns.
			*err = fmt.Errorf("%w: %w", redisdelay.ErrMaybePublished, guard.Exited(theContext))
			defer guard.Recover(err, theContext)
			*err = sends[i]()
		})
	}
	sending.Wait()
	return newPublishError(topic, parts, places, messages)
}

// theContext names the user's code in errors.
const theContext = "the context of a message"

// sticky says where messages without a key go. They stay in a partition while calls are under way
// there, because calls of Publish that come at the same time share one call to Redis. Messages that
// are due soon after one another share promotions and claims, too. So they move on when no call is
// under way after a few messages, or after many.
type sticky struct {
	mu        sync.Mutex
	partition int
	moves     int // number of moves so far
	calls     int // under way that have begun since the last move
	messages  int // since the last move
}

const (
	// few is how many messages without a key stay together at least.
	few = 32

	// many is how many stay together while calls are under way. It is the most that one call to
	// Redis has of several calls of Publish.
	many = 1000
)

func (p *Publisher) stickyOf(topic string) *sticky {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sticky[topic]
	if s == nil {
		s = &sticky{partition: rand.IntN(MaxPartitions)}
		p.sticky[topic] = s
	}
	return s
}

// place gives a place to the messages that have none, among n partitions. leave ends the call.
func (s *sticky) place(places []int, n int) (_ []int, leave func()) {
	without, with := 0, anywhere
	for _, place := range places {
		switch {
		case place == anywhere:
			without++
		case with == anywhere:
			with = place
		}
	}
	leave = func() {}
	if without > 0 && with == anywhere {
		with, leave = s.enter(without, n)
	}
	for i, place := range places {
		if place == anywhere {
			places[i] = with
		}
	}
	return places, leave
}

// enter begins a call with so many messages, and returns its partition.
func (s *sticky) enter(messages, n int) (partition int, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == 0 && s.messages >= few || s.messages >= many {
		s.partition++
		s.moves++
		s.calls, s.messages = 0, 0
	}
	s.calls++
	s.messages += messages
	began := s.moves
	return s.partition % n, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.moves == began {
			s.calls--
		}
	}
}
