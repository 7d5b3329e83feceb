package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/publish"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// PublisherConfig configures a Publisher.
type PublisherConfig struct {
	// Client is the connection to Redis, required. It stays the caller's: Close never closes it. A
	// *redis.Ring is refused, because its shards do not share wake-ups. A *redis.ClusterClient that
	// reads from replicas is refused too, because these may be behind. A struct that embeds a
	// *redis.Client or a *redis.ClusterClient works as that does. Other types are refused. A hook
	// of the client must not return before the command is done, and must not keep its arguments,
	// because their memory is used again.
	Client redis.UniversalClient

	// Marshaler turns messages into bytes. Default BinaryMarshaler{}; with Stream it is
	// StreamMarshaler{}, and no other can be set. If it panics or calls runtime.Goexit, Publish
	// returns an error, and nothing of its call is published.
	Marshaler Marshaler

	// KeyPrefix begins all keys in Redis. Default DefaultKeyPrefix. Braces are not allowed.
	KeyPrefix string

	// MaxMessageBytes is the largest message, marshaled. Default 8 MiB.
	MaxMessageBytes int

	// MaxPublishMessages and MaxPublishBytes limit one Publish call. The server runs a call as one
	// atomic step, and does nothing else meanwhile. Default 10,000 messages and 32 MiB.
	// MaxPublishMessages is 100,000 at most, because the server takes about a million arguments in
	// a command.
	MaxPublishMessages int
	MaxPublishBytes    int

	// MaxWaiting is how many messages of a topic may wait for their delivery. It counts messages
	// that wait for their due time, and in the group that has most of them, for a subscriber or a
	// retry. Messages in a consumer's hands and dead letters do not count. A call that would exceed
	// the limit fails with ErrTopicFull. Default 0: no limit.
	MaxWaiting int

	// Stream has messages go into Redis Streams when they are due, for subscribers of
	// watermill-redisstream. Default nil: they are for Subscribers.
	Stream *StreamConfig

	// WaitReplicas is how many replicas have to have the messages, in memory at least, before
	// Publish returns nil: Redis's WAIT. If they do not within WaitTimeout, Publish fails with
	// ErrNotReplicated. On a cluster these are replicas of the node that has the topic. A failover
	// to a replica that was waited for loses nothing that was published. To be sure, wait for all
	// replicas. Default 0: Publish does not wait, and replicas are some milliseconds behind. A wait
	// costs each call to Redis two more round trips, to the server and to its replicas. Many calls
	// of Publish share one call to Redis.
	WaitReplicas int

	// WaitTimeout is how long Publish waits for WaitReplicas, and longer only if the server does
	// not answer. Other calls for the topic wait meanwhile. Default 1s.
	WaitTimeout time.Duration

	// CloseTimeout is how long Close waits for calls of Publish under way, and for a scheduler.
	// Default 10s.
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

// mostPublished is how many messages a call may have at most. Each has six arguments at most: ID
// and body; due time, and for how many messages it counts; ID and options. A Redis server takes
// 1,048,576 in a command.
const mostPublished = 100_000

// Validate reports every fault of the configuration at once. Errors wrap ErrInvalidConfig.
// NewPublisher calls it.
func (c PublisherConfig) Validate() error {
	return errors.Join(
		field.Check("Client", servers.CheckClient(c.Client)),
		field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
		field.NotNegative("MaxMessageBytes", c.MaxMessageBytes),
		field.NotNegative("MaxPublishMessages", c.MaxPublishMessages),
		field.AtMost("MaxPublishMessages", c.MaxPublishMessages, mostPublished),
		field.NotNegative("MaxPublishBytes", c.MaxPublishBytes),
		field.NotNegative("MaxWaiting", c.MaxWaiting),
		field.Check("Marshaler", checkMarshaler(c.Marshaler, c.Stream)),
		c.Stream.validate(),
		field.NotNegative("WaitReplicas", c.WaitReplicas),
		field.NotNegative("WaitTimeout", c.WaitTimeout),
		field.NotNegative("CloseTimeout", c.CloseTimeout),
	)
}

// Publisher is a Watermill Publisher that keeps messages in Redis until they are due. It is safe
// for concurrent use. It remembers every topic that it has published to, in about a kilobyte each,
// until it is closed.
type Publisher struct {
	config PublisherConfig
	client *servers.Client
	logger watermill.LoggerAdapter
	given  watermill.LoggerAdapter // the logger of the user, for the scheduler
	engine *publish.Engine

	// The scheduler that a Publisher with a StreamConfig may run. Both are nil if it runs none.
	stopScheduler context.CancelFunc
	scheduled     chan struct{} // closed when the scheduler has ended
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. It does not talk to Redis yet, unless it runs a scheduler: see
// StreamConfig. A nil logger logs nothing. Errors wrap ErrInvalidConfig.
func NewPublisher(config PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	logger = guard.Logger(logger)
	p := &Publisher{
		config: config,
		client: servers.MustClient(config.Client),
		logger: logger.With(watermill.LogFields{"component": "redisdelay.publisher"}),
		given:  logger,
	}
	p.engine = publish.NewEngine(p.engineConfig())
	if err := p.schedule(); err != nil {
		return nil, err
	}
	return p, nil
}

// engineConfig returns the part of the configuration that the engine needs.
func (p *Publisher) engineConfig() publish.Config {
	work := rights.Publishing
	if p.IntoStreams() {
		work = rights.PublishingStreams
	}
	if p.config.WaitReplicas > 0 {
		work = work.AndWaits()
	}
	return publish.Config{
		Topic:        p.topic,
		Work:         work,
		Abandoned:    p.client.Abandoned,
		MaxWaiting:   p.config.MaxWaiting,
		WaitReplicas: p.config.WaitReplicas,
		WaitTimeout:  p.config.WaitTimeout,
		CloseTimeout: p.config.CloseTimeout,
		Relists:      p.client.Cluster(),
		Closed:       ErrClosed,
		Evicts:       func(policy string) { warnOfEviction(p.logger, policy) },
		RelistFailed: func(topic string, err error) {
			p.logger.Error("Cannot look whether the topic is in the registry", err, watermill.LogFields{"topic": topic})
		},
	}
}

// Publish puts messages into Redis, each to be delivered when its delay is over: see DelayKey and
// DelayUntilKey. If a message has neither, the keys of Watermill's components/delay count, and then
// a delay.WithContext in its context. Messages without delay are delivered at once.
//
// A call is one atomic step. If it returns nil, all messages are in Redis. If it returns an error
// about a message or its size, none is. After an error that wraps ErrMaybePublished the messages
// are in Redis or not, as with any server that does not answer. If the client repeats a call by
// itself after a lost reply, the messages are not doubled. Messages of one Publisher that are due
// at the same time keep their order. Messages are not changed.
//
// Concurrent calls go to Redis together. A message whose context has ended is refused. If the
// context of the first message ends while the call still waits for others, the call is taken back:
// Publish returns the context's error, and nothing of the call is in Redis. The context does not
// interrupt a call that is on its way, or waits for replicas: see PublishContext. No other error
// wraps context.Canceled or context.DeadlineExceeded, unless it is the Marshaler's.
//
// The context of a delivered message does not count, nor does any that is derived from it, with a
// deadline of its own or without. The client's timeouts alone limit a Publish with such a context.
//
// Metadata may name a message (DelayIDKey), set an end to it (ExpiresAtKey, MaxLatenessKey), and
// limit or space its deliveries (MaxDeliveriesKey, BackoffKey). Keys are case-sensitive. One that
// differs from a known key only in case is ignored, and logged once in a process.
//
// Errors wrap ErrClosed, ErrInvalidTopic, ErrTopicMode, ErrInvalidDelay, ErrInvalidMetadata,
// ErrPastExpiry, ErrNilMessage, ErrMessageTooLarge, ErrPublishTooLarge, ErrExists, ErrReserved,
// ErrTopicFull, ErrServerFull, ErrMaybePublished, ErrNotReplicated, ErrForbidden or ErrLayout, or
// come from the Marshaler, the context, or Redis.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.publish(callerContext(messages), false, topic, messages)
}

// PublishContext is Publish that returns when ctx ends, at the latest. The error then wraps that of
// ctx. If the call was sent already, it also wraps ErrMaybePublished, and the call goes on. If it
// does not, nothing of the call is in Redis. Close waits for calls that go on, too.
//
// ctx counts whatever it is derived from, also from the context of a delivered message. The
// contexts of the messages do not bound the call, but a message whose context has ended is refused,
// as by Publish. Marshaling is not interrupted.
func (p *Publisher) PublishContext(ctx context.Context, topic string, messages ...*message.Message) error {
	if ctx == nil {
		return fmt.Errorf("publish to topic %q: the context is nil: want context.Background() for no bound", topic)
	}
	return p.publish(ctx, ctx.Done() != nil, topic, messages)
}

// publish publishes. A bounded call returns when ctx ends. Else ctx takes back a call that waits.
func (p *Publisher) publish(ctx context.Context, bounded bool, topic string, messages []*message.Message) error {
	if err := p.checkTopic(topic); err != nil {
		return err
	}
	if err := p.send(ctx, bounded, topic, messages); err != nil {
		return fmt.Errorf("publish to topic %q: %w", topic, err)
	}
	return nil
}

func (p *Publisher) send(ctx context.Context, bounded bool, topic string, messages []*message.Message) error {
	if bounded && ctx.Err() != nil {
		return ctx.Err()
	}
	b, err := p.prepare(topic, messages, bounded)
	if err != nil {
		return err
	}
	defer p.engine.Free(b)
	return p.engine.Publish(ctx, topic, b)
}

// prepare returns the batch of a call, to be freed. Nothing is sent yet.
func (p *Publisher) prepare(topic string, messages []*message.Message, bounded bool) (*publish.Batch, error) {
	if n := len(messages); n > p.config.MaxPublishMessages {
		return nil, fmt.Errorf("%w: %d messages, at most %d are allowed (MaxPublishMessages)",
			ErrPublishTooLarge, n, p.config.MaxPublishMessages)
	}
	b := p.engine.NewBatch(len(messages))
	b.Bounded = bounded
	if err := p.fillGuarded(b, topic, messages); err != nil {
		p.engine.Free(b)
		return nil, err
	}
	return b, nil
}

// fillGuarded is fill, in which the Marshaler may call runtime.Goexit, unless it is one of this
// package.
func (p *Publisher) fillGuarded(b *publish.Batch, topic string, messages []*message.Message) error {
	switch p.config.Marshaler.(type) {
	case BinaryMarshaler, JSONMarshaler, StreamMarshaler:
		return p.fill(b, topic, messages)
	}
	return p.fillApart(b, topic, slices.Clone(messages))
}

// fillApart is fill in a goroutine of its own. What that uses is on the heap, so fillGuarded clones
// the slice of messages. Else the compiler would put that of every call of Publish on the heap.
func (p *Publisher) fillApart(b *publish.Batch, topic string, messages []*message.Message) (err error) {
	if exited := guard.Apart(theMarshaler, func() { err = p.fill(b, topic, messages) }); exited != nil {
		return exited
	}
	return err
}

// theMarshaler names the user's code in errors.
const theMarshaler = "the Marshaler"

// fill checks and marshals all messages into the batch, before any is sent.
func (p *Publisher) fill(b *publish.Batch, topic string, messages []*message.Message) error {
	for i, msg := range messages {
		if msg == nil {
			return fmt.Errorf("message %d: %w", i, ErrNilMessage)
		}
		m, err := p.prepareOne(topic, msg, b)
		if err != nil {
			return fmt.Errorf("message %d (UUID %.64q): %w", i, msg.UUID, err)
		}
		b.Messages[i] = m
		if b.Bytes += len(m.Body); b.Bytes > p.config.MaxPublishBytes {
			return fmt.Errorf("%w: %d bytes in %d of %d messages, at most %d are allowed (MaxPublishBytes)",
				ErrPublishTooLarge, b.Bytes, i+1, len(messages), p.config.MaxPublishBytes)
		}
	}
	return nil
}

// prepareOne returns what goes to Redis for a message. Its body may have memory of the batch.
func (p *Publisher) prepareOne(topic string, msg *message.Message, b *publish.Batch) (queue.Message, error) {
	_, delivered := DeliveryFromContext(msg.Context())
	if err := msg.Context().Err(); err != nil && !delivered {
		return queue.Message{}, err
	}
	var (
		m       queue.Message
		without []string
	)
	plain, miscased := meta.Glance(msg)
	if miscased {
		warnOfCase(p.logger, topic, msg)
	}
	if !plain {
		spec, err := meta.Read(msg, b.Now())
		if err != nil {
			return m, err
		}
		m.Due, m.Options = spec.Due, spec.Options(p.IntoStreams())
		if m.Options.DelayID != "" {
			m.Options.Guard = inside.GuardOf(msg.Context(), m.Options.DelayID)
		}
		without = meta.NotStored(p.IntoStreams(), deliveredBefore(msg))
	}
	body, err := p.marshal(topic, msg, without, b)
	if err != nil {
		return queue.Message{}, fmt.Errorf("marshal: %w", err)
	}
	if len(body) > p.config.MaxMessageBytes {
		return queue.Message{}, fmt.Errorf("%w: %d bytes marshaled, at most %d are allowed (MaxMessageBytes)",
			ErrMessageTooLarge, len(body), p.config.MaxMessageBytes)
	}
	m.Body = body
	return m, nil
}

// marshal marshals the message without some keys of its metadata.
func (p *Publisher) marshal(topic string, msg *message.Message, without []string, b *publish.Batch) (_ []byte, err error) {
	if own, ok := p.config.Marshaler.(BinaryMarshaler); ok { // it needs no copy of the metadata
		return own.marshal(msg, without, b.Take), nil
	}
	defer guard.Recover(&err, theMarshaler)
	body, err := p.config.Marshaler.Marshal(topic, withoutKeys(msg, without))
	switch p.config.Marshaler.(type) {
	case JSONMarshaler, StreamMarshaler: // they return memory of their own
	default:
		if b.Bounded { // another may return the message's payload, which is the caller's again
			body = slices.Clone(body)
		}
	}
	return body, guard.Sound(err)
}

// withoutKeys returns the message without some keys of its metadata: itself, if it has none of
// them.
func withoutKeys(msg *message.Message, without []string) *message.Message {
	metadata := meta.Without(msg.Metadata, without)
	if len(metadata) == len(msg.Metadata) {
		return msg
	}
	stored := &message.Message{UUID: msg.UUID, Metadata: metadata, Payload: msg.Payload}
	stored.SetContext(msg.Context())
	return stored
}

// callerContext returns the context whose end takes a waiting call back.
func callerContext(messages []*message.Message) context.Context {
	if len(messages) == 0 || messages[0] == nil {
		return context.Background()
	}
	ctx := messages[0].Context()
	if _, delivered := DeliveryFromContext(ctx); delivered {
		return context.Background()
	}
	return ctx
}

// Close refuses new calls of Publish. It waits until calls under way have ended, and the scheduler
// if there is one. After CloseTimeout it gives them up, and returns an error, at the latest a
// second later; the calls that it gave up return ErrClosed. It may be called more than once, and
// from several goroutines.
func (p *Publisher) Close() error {
	if p.scheduled == nil {
		return p.engine.Close()
	}
	timeout := time.NewTimer(p.config.CloseTimeout + closeGrace)
	defer timeout.Stop()
	p.stopScheduler() // others take over the due-time work at once
	err := p.engine.Close()
	select {
	case <-p.scheduled:
		return err
	case <-timeout.C:
		return errors.Join(err, fmt.Errorf("close publisher: its scheduler had no answer from Redis within %v (CloseTimeout)", p.config.CloseTimeout))
	}
}
