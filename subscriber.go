package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// Subscriber is a Watermill Subscriber that emits messages from Redis when they are due. It also
// runs the scheduler of its topics. It is safe for concurrent use.
type Subscriber struct {
	config  SubscriberConfig
	client  *servers.Client
	logger  watermill.LoggerAdapter
	permits rights.Permits

	// scheduler promotes the topics that are subscribed to. It runs from the first Subscribe on.
	scheduler *scheduler.Scheduler

	mu            sync.Mutex
	closed        bool
	running       *engine                                 // nil until the first Subscribe
	subscriptions map[*consume.Subscription]chan struct{} // closed when its Run has ended
	untold        untold
}

// untold is the last error of a subscription that ended before Redis had answered all settlements.
type untold struct {
	err error // nil: there was none, or it was long ago
	at  time.Time
}

// forget forgets an error of long ago: it was logged, and its messages were delivered again since.
func (u *untold) forget(after time.Duration) {
	if time.Since(u.at) > after {
		*u = untold{}
	}
}

// engine has what all subscriptions of a Subscriber share.
type engine struct {
	mailbox      *wake.Mailbox
	closeMailbox func()
	stop         context.CancelFunc // of the scheduler
	stopped      chan struct{}
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a Subscriber. It does not talk to Redis yet. A nil logger logs nothing. If
// the logger panics, its line is lost. Errors wrap ErrInvalidConfig.
func NewSubscriber(config SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	given := config.Backoff
	config.setDefaults()
	logger = guard.Logger(logger)
	fields := watermill.LogFields{"component": "redisdelay.subscriber"}
	if !config.Broadcast { // otherwise each subscription has its own
		fields["consumer_group"] = config.ConsumerGroup
	}
	own := logger.With(fields)
	if given != nil {
		config.Backoff = guard.Backoff(given, defaultBackoff, own)
	}
	sched, err := scheduler.New(scheduler.Config{
		Client:    config.Client,
		KeyPrefix: config.KeyPrefix,
		Topics:    []string{}, // run adds each topic
	}, logger)
	if err != nil {
		return nil, err
	}
	return &Subscriber{
		config:        config,
		client:        servers.MustClient(config.Client),
		logger:        own,
		scheduler:     sched,
		subscriptions: map[*consume.Subscription]chan struct{}{},
	}, nil
}

// SubscribeInitialize makes sure that the consumer group exists, so that it gets every message of
// the topic that becomes due from now on, even before Subscribe. With Broadcast it does nothing.
// Errors wrap ErrInvalidTopic, ErrTopicMode, ErrGroupMode, ErrClosed, ErrServerFull, ErrForbidden
// or ErrLayout, or come from Redis.
func (s *Subscriber) SubscribeInitialize(topic string) error { return s.initialize(topic, nil) }

func (s *Subscriber) initialize(topic string, common *consume.Common) error {
	if err := s.check(topic); err != nil || s.config.Broadcast {
		return err
	}
	ctx := context.Background()
	if err := s.checkServer(ctx, topic, s.work(rights.Consuming)); err != nil {
		return fmt.Errorf("register consumer group %q of topic %q: %w", s.config.ConsumerGroup, topic, err)
	}
	t, err := s.register(ctx, topic, s.config.ConsumerGroup, common)
	if err == nil {
		_, err = t.Relist(ctx) // DeleteTopic may just have removed it from the registry
	}
	return err
}

// groupOf returns the group of the subscription with an ID.
func (s *Subscriber) groupOf(id string) string {
	if s.config.Broadcast {
		return "broadcast:" + id
	}
	return s.config.ConsumerGroup
}

// check returns an error that says why a topic cannot be subscribed to, or nil.
func (s *Subscriber) check(topic string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("subscriber: %w", ErrClosed)
	}
	return nil
}

func (s *Subscriber) register(ctx context.Context, topic, group string, common *consume.Common) (*queue.Topic, error) {
	if err := s.check(topic); err != nil {
		return nil, err
	}
	t := queue.NewTopic(s.client, s.config.KeyPrefix, topic)
	got, err := t.Join(ctx, group, common.GroupOptions(s.groupOptions(), true))
	if err != nil {
		return nil, fmt.Errorf("register consumer group %q of topic %q: %w", group, topic, err)
	}
	consume.LogRegistered(s.logger, got, watermill.LogFields{"topic": topic, "consumer_group": group})
	return t, nil
}

// work returns a kind of work as this subscriber does it.
func (s *Subscriber) work(work rights.Work) rights.Work {
	if s.config.HistoryRetention > 0 {
		return work.AndRecords()
	}
	return work
}

func (s *Subscriber) groupOptions() queue.GroupOptions {
	options := queue.GroupOptions{MaxDeliveries: s.config.MaxDeliveries, Retention: s.config.DeadRetention,
		MaxDead: s.config.MaxDead, Expiry: s.config.GroupExpiry, SingleActive: s.config.SingleActive, WholeLeases: s.config.WholeLeases,
		Limit:   queue.GroupLimit{Rate: float64(s.config.Limit), Burst: s.config.Burst, AtOnce: s.config.AtOnce},
		History: s.config.history().WithDefaults(), Window: max(s.config.TakeoverWindow, 0)}
	if s.config.Broadcast {
		options.Expiry, options.Window = s.config.BroadcastExpiry, 0
	}
	return options
}

// Subscribe returns the channel of the topic's messages, each when it is due. Ack settles a
// message. Nack has it delivered again: see SubscriberConfig.Backoff. At most MaxInFlight messages
// are unsettled at a time.
//
// A message's context has the values of ctx and the Delivery. It ends when the message is settled,
// when its lease is lost (context.Cause wraps ErrLeaseLost), or a third of CloseTimeout after Close
// (the cause wraps ErrClosed). It does not end with ctx.
//
// When ctx ends, this subscription closes as by Close. It delivers no further message. Undelivered
// messages go back at once, in order, and do not count as delivered. The channel closes when the
// delivered messages are settled, or CloseTimeout is over. If Redis hangs, the channel closes when
// the client has given up its last call.
//
// A subscription outlasts outages of Redis. Errors wrap ErrInvalidTopic, ErrTopicMode,
// ErrGroupMode, ErrClosed, ErrServerFull, ErrForbidden or ErrLayout, or come from ctx or Redis.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, _, err := s.subscribe(ctx, topic, nil)
	if err != nil {
		return nil, err
	}
	return sub.Messages(), nil
}

// subscribe returns a subscription, and a channel that is closed when it has ended. common is nil
// if the subscription is the consumer's only one.
func (s *Subscriber) subscribe(ctx context.Context, topic string, common *consume.Common) (_ *consume.Subscription, ended <-chan struct{}, err error) {
	if err := s.check(topic); err != nil {
		return nil, nil, err
	}
	mailbox, closeMailbox := wake.Open(s.client, s.config.KeyPrefix)
	defer closeMailbox() // by then the engine keeps it open
	work := rights.Consuming
	if common != nil && s.config.SingleActive {
		work = rights.Spreading
	}
	work = s.work(work)
	err = mailbox.Permitted(ctx, queue.NewTopic(s.client, s.config.KeyPrefix, topic))
	if err == nil || errors.Is(err, ErrForbidden) { // one error names all that is missing
		err = refusal.AllForbidden(err, s.checkServer(ctx, topic, work))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	id := queue.Token()
	if common != nil {
		id = common.Member + id[len(common.Member):]
	}
	t, err := s.register(ctx, topic, s.groupOf(id), common)
	if err != nil {
		return nil, nil, err
	}
	sub, ended, err := s.run(ctx, t, id, common)
	if err != nil && s.config.Broadcast {
		err = errors.Join(err, s.unregister(ctx, t, s.groupOf(id)))
	}
	return sub, ended, err
}

// checkServer returns an error if the server cannot be used for the work. It asks each server once.
func (s *Subscriber) checkServer(ctx context.Context, topic string, work rights.Work) error {
	evicts, err := s.permits.Try(ctx, queue.NewTopic(s.client, s.config.KeyPrefix, topic), work)
	if err == nil {
		warnOfEviction(s.logger, evicts)
	}
	return err
}

// unregister removes the group of a subscription that could not start, even if ctx has ended.
func (s *Subscriber) unregister(ctx context.Context, t *queue.Topic, group string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := t.Remove(ctx, group); err != nil {
		return fmt.Errorf("remove consumer group %q of topic %q: %w", group, t.Name, err)
	}
	return nil
}

// run starts a subscription, and the engine with the first one.
func (s *Subscriber) run(ctx context.Context, t *queue.Topic, id string, common *consume.Common) (*consume.Subscription, <-chan struct{}, error) {
	fields := watermill.LogFields{"topic": t.Name}
	if s.config.Broadcast {
		fields["consumer_group"] = s.groupOf(id)
	}
	logger := s.logger.With(fields)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, fmt.Errorf("subscriber: %w", ErrClosed)
	}
	if s.running == nil {
		s.running = s.start()
	}
	sub := consume.New(ctx, consume.Config{
		Client:        s.client,
		Mailbox:       s.running.mailbox,
		Logger:        logger,
		Topic:         t,
		Name:          id,
		Group:         s.groupOf(id),
		Options:       s.groupOptions(),
		OwnsGroup:     s.config.Broadcast,
		Unmarshal:     s.config.Unmarshaler.Unmarshal,
		Backoff:       s.config.Backoff,
		MaxInFlight:   s.config.MaxInFlight,
		LeaseDuration: s.config.LeaseDuration,
		MaxExtension:  s.config.MaxExtension,
		CloseTimeout:  s.config.CloseTimeout,
		Common:        common,
	})
	ended := make(chan struct{})
	s.subscriptions[sub] = ended
	s.scheduler.Add(t.Name)
	go func() {
		err := sub.Run()
		if err != nil && ctx.Err() != nil { // Close returns the error too, but may be much later
			logger.Error("The subscription could not settle everything before it ended", err, nil)
		}
		s.scheduler.Remove(t.Name)
		s.mu.Lock()
		delete(s.subscriptions, sub)
		if err != nil {
			s.untold = untold{err, time.Now()}
		}
		s.mu.Unlock()
		close(ended)
	}()
	return sub, ended, nil
}

// start starts the engine. The caller holds s.mu.
func (s *Subscriber) start() *engine {
	r := &engine{stopped: make(chan struct{})}
	r.mailbox, r.closeMailbox = wake.Open(s.client, s.config.KeyPrefix)
	running, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.stopped)
		_ = s.scheduler.Run(running) // the only error is that it was run before
	}()
	return r
}

// Close ends all subscriptions. They deliver no further message. Undelivered messages go back at
// once, in order. Handlers under way have CloseTimeout to settle:
//
//   - After a third of it their contexts end, and context.Cause wraps ErrClosed. A Nack from then
//     on takes the message back to its place at once, and uses up no delivery. DeadOnNack and
//     Postpone count as ever.
//   - At its end, messages that are not settled are given up. They are delivered again when their
//     leases run out, even if their handlers settle them later. The log names each, and
//     admin.GroupCounters.GivenUp counts them. Close returns nil all the same.
//
// Close returns when all is done, at the latest a second after CloseTimeout. If Redis does not
// answer, Close tries so long to have the settlements answered. Once they are, it returns within
// two seconds, and undelivered messages are left to their leases. Close returns an error if Redis
// did not answer or refused, so that the last settlements may be lost. The error may be of a
// subscription whose context ended shortly before. Close may be called more than once, and from
// several goroutines, and returns the same error again. The Client stays open.
func (s *Subscriber) Close() error {
	began := time.Now()
	s.mu.Lock()
	if !s.closed {
		s.untold.forget(s.outlives())
	}
	s.closed = true
	running := s.running
	open := maps.Clone(s.subscriptions)
	for sub := range open {
		sub.Close()
	}
	s.mu.Unlock()
	if running == nil {
		return nil
	}

	running.stop() // others take over the due-time work at once
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, sub := range open {
			<-sub
		}
		<-running.stopped
		running.closeMailbox()
	}()
	for sub := range open {
		<-sub.Cut() // half a second after CloseTimeout at the latest
	}
	// The rest waits for the client only, which may not give a call up for long.
	rest := max(400*time.Millisecond, time.Until(began.Add(1900*time.Millisecond)))
	timeout := time.NewTimer(min(rest, time.Until(began.Add(s.config.CloseTimeout+closeGrace))))
	defer timeout.Stop()
	select {
	case <-ended:
	case <-timeout.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.subscriptions { // those that hang
		if sub.Owes() {
			s.untold.err = cmp.Or(s.untold.err, consume.ErrUntold)
		}
	}
	if err := s.untold.err; err != nil {
		return fmt.Errorf("close subscriber: %w (CloseTimeout is %v)", err, s.config.CloseTimeout)
	}
	return nil
}

// outlives is how long Close reports what an ended subscription has left.
func (s *Subscriber) outlives() time.Duration { return s.config.LeaseDuration + s.config.CloseTimeout }
