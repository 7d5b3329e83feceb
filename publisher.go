package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	// Client is the connection to Redis, required. It stays the caller's: Close never closes it.
	// A *redis.Ring is refused, because its shards do not share wake-ups, and a *redis.ClusterClient that reads from
	// replicas, which may be behind. A struct that embeds a *redis.Client or a *redis.ClusterClient works as that does;
	// other types are refused. The hooks of the client must not return before the command is done, nor keep its
	// arguments, as their memory is used again.
	Client redis.UniversalClient

	// Marshaler turns messages into bytes. Default BinaryMarshaler{}; with Stream it is StreamMarshaler{}, and
	// no other can be set.
	Marshaler Marshaler

	// KeyPrefix is what all keys in Redis begin with. Default DefaultKeyPrefix. Braces are not
	// allowed.
	KeyPrefix string

	// MaxMessageBytes is the largest message, marshaled. Default 8 MiB.
	MaxMessageBytes int

	// MaxPublishMessages and MaxPublishBytes limit one Publish call, which is one atomic step of the
	// server, during which it does nothing else. Default 10,000 messages and 32 MiB. MaxPublishMessages is 100,000
	// at most: the server takes about a million arguments in a command.
	MaxPublishMessages int
	MaxPublishBytes    int

	// MaxWaiting is how many messages of a topic may wait for their delivery: for their due time, and in the
	// group that has most of them, for a subscriber or a retry. What is in a consumer's hands does not count,
	// nor do dead letters. A call that would exceed it fails with ErrTopicFull. Default 0: no limit.
	MaxWaiting int

	// Stream has messages go into Redis Streams when they are due, for subscribers of watermill-redisstream.
	// Default nil: they are for Subscribers.
	Stream *StreamConfig

	// WaitReplicas is how many replicas have to have the messages, in memory at least, before Publish returns nil:
	// Redis's WAIT. If they do not within WaitTimeout, it fails with ErrNotReplicated. On a cluster these are replicas
	// of the node that has the topic. A failover then loses nothing that was published, if it can only lead to a
	// replica that was waited for: to be sure, wait for all. Default 0: Publish does not wait, and replicas are some
	// milliseconds behind. Waiting costs a round trip and the replicas' way for each call to Redis, which many calls
	// of Publish share.
	WaitReplicas int

	// WaitTimeout is how long Publish waits for WaitReplicas, and longer only if the server does not answer.
	// Other calls for the topic wait meanwhile. Default 1s.
	WaitTimeout time.Duration

	// CloseTimeout is how long Close waits for calls of Publish under way, and for a scheduler. Default 10s.
	CloseTimeout time.Duration
}

func (c *PublisherConfig) setDefaults() {
	switch {
	case c.Stream != nil:
		c.Stream = c.Stream.withDefaults()
		c.Marshaler = StreamMarshaler{}
	case c.Marshaler == nil:
		c.Marshaler = BinaryMarshaler{}
	}
	c.KeyPrefix = cmp.Or(c.KeyPrefix, DefaultKeyPrefix)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 8<<20)
	c.MaxPublishMessages = cmp.Or(c.MaxPublishMessages, 10_000)
	c.MaxPublishBytes = cmp.Or(c.MaxPublishBytes, 32<<20)
	c.WaitTimeout = min(cmp.Or(c.WaitTimeout, time.Second), MaxDelay)
	c.CloseTimeout = min(cmp.Or(c.CloseTimeout, 10*time.Second), MaxDelay)
}

// mostPublished is how many messages a call may have at most, each with six arguments at most: ID and body, the due
// time and for how many messages it counts, ID and options. A Redis server takes 1,048,576 in a command.
const mostPublished = 100_000

// Validate reports every fault of the configuration at once. NewPublisher calls it.
func (c PublisherConfig) Validate() error {
	return errors.Join(
		invalid("Client", queue.CheckClient(c.Client)),
		invalid("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
		invalid("MaxMessageBytes", notNegative(c.MaxMessageBytes)),
		invalid("MaxPublishMessages", errors.Join(notNegative(c.MaxPublishMessages), atMost(c.MaxPublishMessages, mostPublished))),
		invalid("MaxPublishBytes", notNegative(c.MaxPublishBytes)),
		invalid("MaxWaiting", notNegative(c.MaxWaiting)),
		invalid("Marshaler", checkMarshaler(c.Marshaler, c.Stream)),
		c.Stream.validate(),
		invalid("WaitReplicas", notNegative(c.WaitReplicas)),
		invalid("WaitTimeout", notNegative(c.WaitTimeout)),
		invalid("CloseTimeout", notNegative(c.CloseTimeout)),
	)
}

// Publisher is a Watermill Publisher that keeps messages in Redis until they are due.
// It is safe for concurrent use. It remembers every topic that it has published to, in about a kilobyte
// each, until it is closed.
type Publisher struct {
	config PublisherConfig
	client *queue.Client
	logger watermill.LoggerAdapter
	given  watermill.LoggerAdapter // the same without what it adds
	id     string
	ids    *queue.IDs

	// ctx is what calls to Redis run under: a caller's context ends its own wait only.
	ctx    context.Context
	cancel context.CancelFunc

	// What keepListed begins. Close ends it, and waits for it no longer than for calls of Publish.
	listing    context.Context
	endListing context.CancelFunc
	listings   sync.WaitGroup

	work    queue.Work
	permits queue.Permits
	batches sync.Pool // of *batch

	mu       sync.Mutex
	closed   bool
	underWay sync.WaitGroup
	lines    map[string]*line

	stopScheduler context.CancelFunc // with Stream, as what follows
	scheduled     chan struct{}      // closed when the scheduler has ended; nil if there is none
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. It does not talk to Redis yet, unless it runs a scheduler: see StreamConfig. A
// nil logger logs nothing.
func NewPublisher(config PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	p := &Publisher{
		config: config,
		client: queue.MustClient(config.Client),
		logger: logger.With(watermill.LogFields{"component": "redisdelay.publisher"}),
		given:  logger,
		id:     queue.Token(),
		ids:    queue.NewIDs(),
		lines:  map[string]*line{},
		work:   queue.Publishing,
	}
	if config.Stream != nil {
		p.work = queue.PublishingStreams
	}
	if config.WaitReplicas > 0 {
		p.work = p.work.AndWaits()
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.listing, p.endListing = context.WithCancel(p.ctx)
	if err := p.schedule(); err != nil {
		return nil, err
	}
	return p, nil
}

// Publish puts messages into Redis, each to be delivered when its delay is over: see DelayKey and
// DelayUntilKey; the keys of Watermill's components/delay count too, as does a delay.WithContext in a
// message's context. Messages without delay are delivered at once.
//
// A call is one atomic step: if it returns nil, all messages are in Redis; if it returns an error
// about a message or its size, none is. An error from the network leaves open whether they are, as
// it does with any server; what the client repeats by itself after a lost reply is not doubled.
// Messages of one Publisher that are due at the same time keep their order. Messages are not changed.
//
// Concurrent calls go to Redis together. A message whose context has ended is refused. The context of the
// first message, if it ends while the call still waits for others, takes the call back; it does not interrupt
// what is on its way, or waits for replicas. Publish returns the context's error then, and nothing of the call
// is in Redis; no other error wraps context.Canceled or context.DeadlineExceeded, unless it is the Marshaler's.
// The context of a delivered message does not count, nor does any that is derived from it, with a deadline of its own
// or without: a publish with such a context is limited by the client's timeouts alone.
//
// Metadata may name a message (DelayIDKey), set an end to it (ExpiresAtKey, MaxLatenessKey), and limit or
// space its deliveries (MaxDeliveriesKey, BackoffKey).
//
// Errors wrap ErrClosed, ErrInvalidTopic, ErrTopicMode, ErrInvalidDelay, ErrInvalidMetadata, ErrNilMessage,
// ErrMessageTooLarge, ErrPublishTooLarge, ErrExists, ErrTopicFull, ErrNotReplicated, ErrForbidden or ErrLayout, or come
// from the Marshaler, the context, or Redis.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.checkTopic(topic); err != nil {
		return err
	}
	waiting, err := p.prepare(topic, messages)
	if err != nil {
		return fmt.Errorf("publish to topic %q: %w", topic, err)
	}
	defer p.free(waiting)
	l, err := p.begin(topic)
	if err != nil {
		return err
	}
	defer p.underWay.Done()
	if len(messages) == 0 {
		return nil
	}
	if err := l.publish(callerContext(messages), waiting); err != nil {
		return fmt.Errorf("publish to topic %q: %w", topic, err)
	}
	return nil
}

// begin counts a call as under way, unless the publisher is closed, and returns the topic's line.
func (p *Publisher) begin(topic string) (*line, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("publisher: %w", ErrClosed)
	}
	p.underWay.Add(1)
	l := p.lines[topic]
	if l == nil {
		l = &line{publisher: p, topic: p.topic(topic)}
		p.lines[topic] = l
	}
	return l, nil
}

// checkServer tells, once for each server, whether it can be used.
func (p *Publisher) checkServer(topic *queue.Topic) error {
	evicts, err := p.permits.Try(p.ctx, topic, p.work)
	if err == nil {
		warnOfEviction(p.logger, evicts)
	}
	return err
}

// prepare checks and marshals all messages, so that a bad one keeps the whole call from being sent.
func (p *Publisher) prepare(topic string, messages []*message.Message) (*batch, error) {
	if n := len(messages); n > p.config.MaxPublishMessages {
		return nil, fmt.Errorf("%w: %d messages, at most %d are allowed (MaxPublishMessages)",
			ErrPublishTooLarge, n, p.config.MaxPublishMessages)
	}
	b := p.newBatch(len(messages))
	if err := p.fill(b, topic, messages); err != nil {
		p.free(b)
		return nil, err
	}
	return b, nil
}

// fill has the batch hold what goes to Redis for the messages.
func (p *Publisher) fill(b *batch, topic string, messages []*message.Message) error {
	for i, msg := range messages {
		if msg == nil {
			return fmt.Errorf("message %d: %w", i, ErrNilMessage)
		}
		m, err := p.prepareOne(topic, msg, b)
		if err != nil {
			return fmt.Errorf("message %d (UUID %.64q): %w", i, msg.UUID, err)
		}
		b.messages[i] = m
		if b.bytes += len(m.Body); b.bytes > p.config.MaxPublishBytes {
			return fmt.Errorf("%w: %d bytes in %d of %d messages, at most %d are allowed (MaxPublishBytes)",
				ErrPublishTooLarge, b.bytes, i+1, len(messages), p.config.MaxPublishBytes)
		}
	}
	return nil
}

// prepareOne makes of a message what goes to Redis with the batch.
func (p *Publisher) prepareOne(topic string, msg *message.Message, b *batch) (queue.Message, error) {
	_, delivered := DeliveryFromContext(msg.Context())
	if err := msg.Context().Err(); err != nil && !delivered {
		return queue.Message{}, err
	}
	var (
		due     due
		options queue.Options
		without []string // keys that consumers are not to see
		err     error
	)
	if _, delayed := contextDelay(msg.Context()); delayed || !isPlain(msg.Metadata) {
		if due, err = publishDue(msg, b.now()); err == nil {
			options, err = readOptions(msg.Metadata)
		}
		without = delayingKeys(deliveryOf(msg) != nil)
		if p.config.Stream != nil {
			e, _ := readExpiry(msg.Metadata) // readOptions has refused what cannot be read
			options.Expiry = e.queued()
			without = notInStream(msg)
		}
	}
	if err != nil {
		return queue.Message{}, err
	}
	body, err := p.marshal(topic, msg, without, b)
	if err != nil {
		return queue.Message{}, fmt.Errorf("marshal: %w", err)
	}
	if len(body) > p.config.MaxMessageBytes {
		return queue.Message{}, fmt.Errorf("%w: %d bytes marshaled, at most %d are allowed (MaxMessageBytes)",
			ErrMessageTooLarge, len(body), p.config.MaxMessageBytes)
	}
	return queue.Message{Due: due.queued(), Options: options, Body: body}, nil
}

// marshal marshals the message for the batch as consumers are to see it, without those keys.
func (p *Publisher) marshal(topic string, msg *message.Message, without []string, b *batch) ([]byte, error) {
	if own, ok := p.config.Marshaler.(BinaryMarshaler); ok { // which needs no copy of the metadata, nor memory of its own
		return own.marshal(msg, without, b.take), nil
	}
	return p.config.Marshaler.Marshal(topic, withoutKeys(msg, without))
}

// withoutKeys returns the message without some keys of its metadata: itself, if it has none of them.
func withoutKeys(msg *message.Message, without []string) *message.Message {
	metadata := strip(msg.Metadata, without)
	if len(metadata) == len(msg.Metadata) {
		return msg
	}
	stored := &message.Message{UUID: msg.UUID, Metadata: metadata, Payload: msg.Payload} // nobody acks it
	stored.SetContext(msg.Context())
	return stored
}

// callerContext is the context that may take a waiting call back.
func callerContext(messages []*message.Message) context.Context {
	ctx := messages[0].Context()
	if _, delivered := DeliveryFromContext(ctx); delivered {
		return context.Background()
	}
	return ctx
}

// Close refuses new calls of Publish, and waits for CloseTimeout until those under way, and the scheduler if there is
// one, have ended. Then it gives them up, and returns an error, at the latest a second after CloseTimeout. It may be
// called more than once, and from several goroutines.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.endListing()
	if p.scheduled == nil {
		return p.awaitCalls()
	}
	timeout := time.NewTimer(p.config.CloseTimeout + 900*time.Millisecond)
	defer timeout.Stop()
	p.stopScheduler() // others take over the due-time work at once
	err := p.awaitCalls()
	select {
	case <-p.scheduled:
		return err
	case <-timeout.C:
		return errors.Join(err, fmt.Errorf("close publisher: its scheduler had no answer from Redis within %v (CloseTimeout)", p.config.CloseTimeout))
	}
}

// awaitCalls waits for the end of calls of Publish, and of what keepListed has begun, and gives them up if that takes too
// long.
func (p *Publisher) awaitCalls() error {
	called, listed := make(chan struct{}), make(chan struct{})
	go func() {
		p.underWay.Wait()
		close(called)
		p.listings.Wait() // one that has no answer ends when the client gives it up
		close(listed)
	}()
	timeout := time.NewTimer(p.config.CloseTimeout)
	defer timeout.Stop()
	select {
	case <-called:
		p.cancel()
		select {
		case <-listed:
		case <-timeout.C:
		}
		return nil
	case <-timeout.C:
	}
	p.cancel()
	select {
	case <-called:
	case <-time.After(time.Second / 2):
		// The client does not give up the connection before its own timeout.
	}
	return fmt.Errorf("close publisher: calls of Publish were under way after %v (CloseTimeout) and are given up", p.config.CloseTimeout)
}
