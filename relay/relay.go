package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// ErrStuck means that Run returned while calls of the destination's Publish had not returned.
var ErrStuck = errors.New("the destination's Publish does not return")

// Relay publishes due messages to a destination. Several may run at once, in one process or in
// many, and share the messages. Its methods are safe for concurrent use.
type Relay struct {
	config Config
	client *servers.Client
	logger watermill.LoggerAdapter
	given  watermill.LoggerAdapter // the caller's logger, without the relay's fields
	outage outages

	backoff func(delivery int) time.Duration // the Subscriber's, for Ordered
	held    sync.Map                         // held by topic, for Ordered

	mu   sync.Mutex
	runs map[*run]struct{} // the calls of Run that are under way
}

// errStopped means that a message was not published in time after a stop. errUntried means that it
// was not even tried.
var (
	errStopped = fmt.Errorf("the relay is stopped: %w", redisdelay.ErrClosed)
	errUntried = fmt.Errorf("not tried: %w", errStopped)
)

// New returns a Relay. It does not connect to Redis yet. A nil logger logs nothing. Errors wrap
// redisdelay.ErrInvalidConfig.
func New(config Config, logger watermill.LoggerAdapter) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	logger = guard.Logger(logger)
	own := logger.With(watermill.LogFields{"component": "redisdelay.relay"})
	return &Relay{
		config:  config,
		client:  servers.MustClient(config.Subscriber.Client),
		logger:  own,
		given:   logger,
		backoff: guard.Backoff(config.Subscriber.Backoff, defaultBackoff, own),
		outage:  outages{logger: own},
	}, nil
}

// Run relays messages until ctx ends. Then it takes no more messages, publishes and settles those
// it holds, and returns after the Subscriber's CloseTimeout at the latest, plus a second.
//
// The CloseTimeout is 10s by default, and a stop has two ends within it. After a third, the
// Subscriber ends the contexts of its messages. Run goes on, but a failure does not count from then
// on: the message is back in its place at once, and no delivery is used up. Before the
// CloseTimeout, by a quarter of it but at most a second, comes Run's own end. It ends the contexts
// of messages that are still with the destination, and tries no others. A Publish that respects its
// context returns then, and its messages are given back.
//
// Messages whose Publish returns later than the CloseTimeout are left to their leases, and come to
// another relay when these expire. The Subscriber logs each, and counts it as given up. If a
// Publish has not returned a second after CloseTimeout, Run returns an error that wraps ErrStuck.
//
// An outage of Redis does not end Run, even at the start: it logs the outage and continues when
// Redis is back. An error that does not wrap ErrStuck means that Redis did not answer at the end.
// Run may be called again, and concurrently.
func (r *Relay) Run(ctx context.Context) error {
	subscriber, err := r.subscriber(r.config.BatchMessages * (r.config.Concurrency + 1))
	if err != nil {
		return err
	}
	run := &run{Relay: r, subscriber: subscriber, stop: r.stopWith(ctx), missing: map[string]error{}}
	run.discovery = newDiscovery(run)
	run.begin()
	defer run.end()
	var watching sync.WaitGroup
	for _, topic := range r.config.Topics {
		run.serve(ctx, topic, nil)
	}
	if r.config.Topics == nil {
		c := r.config.Subscriber
		watching.Go(func() {
			wake.WatchTopics(ctx, r.client, c.KeyPrefix, func(topic string, announced bool) {
				run.discovery.found(ctx, topic, announced)
			}, run.registryRead)
		})
	}
	<-ctx.Done()
	watching.Wait() // so that no topic is added after this
	return errors.Join(subscriber.Close(), run.await())
}

// registryRead records the result of reading the registry of topics. It logs when reading begins to
// fail and when it works again.
func (r *run) registryRead(err error) {
	if news := r.news.Of(err); news != "" && err == nil {
		r.logger.Info(news, nil)
	} else if news != "" {
		r.logger.Error(news, err, nil)
	}
	switch {
	case errors.Is(err, wake.ErrNotHeard):
	case err == nil, errors.Is(err, wake.ErrNotEntered): // the registry was read
		r.discovery.registryRead()
		r.subscribed(registry, nil)
	default:
		r.subscribed(registry, err)
	}
}

// subscriber returns a new Subscriber for Run or for a router.
func (r *Relay) subscriber(inFlight int) (*redisdelay.Subscriber, error) {
	config := r.config.Subscriber
	config.MaxInFlight = inFlight
	if r.config.Ordered {
		// holdUp waits instead, while it holds the message, so that the message keeps its place.
		config.MaxInFlight = 1
		config.Backoff = func(int) time.Duration { return 0 }
	}
	return redisdelay.NewSubscriber(config, r.given)
}

// stop has the two steps of stopping a Run, or a handler on a router.
type stop struct {
	stopping context.Context // ends when no more messages are taken
	late     context.Context // ends when unpublished messages are given back
}

// stopWith returns the stop that begins when stopping ends. It becomes late before the
// CloseTimeout, by a quarter of it but at most a second. In that time messages can be given back,
// so that their leases need not expire. By then the Subscriber has ended the contexts of its
// messages, so giving them back uses up no delivery.
func (r *Relay) stopWith(stopping context.Context) stop {
	late, end := context.WithCancelCause(context.Background())
	timeout := r.config.Subscriber.CloseTimeout
	context.AfterFunc(stopping, func() {
		time.AfterFunc(timeout-min(timeout/4, time.Second), func() { end(errStopped) })
	})
	return stop{stopping, late}
}

// run is one call of Run.
type run struct {
	*Relay
	subscriber *redisdelay.Subscriber
	stop       stop

	discovery  *discovery
	served     sync.Map       // topics that are served
	serving    sync.WaitGroup // one goroutine per served topic, and those of discovery
	publishing atomic.Int32   // batches that the destination has

	news wake.RegistryNews

	missing map[string]error // topics not subscribed to, and why; guarded by Relay.mu
}

// serve starts to relay a topic, until ctx ends. Further calls for the same topic do nothing.
// logged is an error that a check of the topic has logged, or nil.
func (r *run) serve(ctx context.Context, topic string, logged error) {
	if _, served := r.served.LoadOrStore(topic, true); served {
		return
	}
	r.subscribed(topic, errNotYet)
	r.serving.Go(func() {
		if messages := r.subscribe(ctx, topic, logged); messages != nil {
			r.relay(ctx, topic, messages)
		}
	})
}

// subscribe subscribes to a topic and retries until it succeeds. It returns nil if ctx ends, or if
// the topic came from the registry and is not for a relay any more.
func (r *run) subscribe(ctx context.Context, topic string, logged error) <-chan *message.Message {
	fields := watermill.LogFields{"topic": topic}
	for try := 1; ctx.Err() == nil; try++ {
		var messages <-chan *message.Message
		err := r.checkMode(ctx, topic)
		if err == nil {
			messages, err = r.subscriber.Subscribe(ctx, topic)
		}
		switch {
		case err == nil:
			r.subscribed(topic, nil)
			if logged != nil {
				r.logger.Info("Subscribed", fields)
			}
			return messages
		case ctx.Err() != nil:
			return nil
		case r.notForRelay(err): // it was deleted since it was found, and may be made anew
			r.subscribed(topic, nil)
			r.served.Delete(topic)
			r.discovery.found(ctx, topic, true)
			return nil
		default:
			r.subscribed(topic, err)
			if logged == nil || logged.Error() != err.Error() && !(servers.Unreachable(logged) && servers.Unreachable(err)) {
				r.logger.Error("Cannot subscribe, trying again", err, fields)
				logged = err
			}
		}
		pause(ctx, untilNext(try))
	}
	return nil
}

// notForRelay returns whether the error means that a topic of the registry is not for a relay.
// Either it has a stream, or it does not exist: it is just being created, or its deletion was not
// completed.
func (r *run) notForRelay(err error) bool {
	return r.config.Topics == nil && (errors.Is(err, redisdelay.ErrTopicMode) || errors.Is(err, queue.ErrNotFound))
}

// checkMode returns ErrTopicMode for a topic of the registry that has a stream. It runs before
// Subscribe, which would create a missing topic as one without a stream.
func (r *run) checkMode(ctx context.Context, topic string) error {
	if r.config.Topics != nil {
		return nil
	}
	groups, err := queue.NewTopic(r.client, r.config.Subscriber.KeyPrefix, topic).Existing(ctx)
	if err == nil && groups.Stream {
		err = redisdelay.ErrTopicMode
	}
	return err
}

// relay publishes messages until the channel is closed.
func (r *run) relay(ctx context.Context, topic string, messages <-chan *message.Message) {
	inHand := make(chan *message.Message, r.config.BatchMessages)
	var workers sync.WaitGroup
	for range r.config.Concurrency {
		workers.Add(1)
		go r.work(ctx, topic, inHand, workers.Done)
	}
	for msg := range messages {
		inHand <- msg
	}
	close(inHand)
	workers.Wait()
}

// work publishes batches until the channel is closed. If the destination ends its goroutine,
// another one goes on.
func (r *run) work(ctx context.Context, topic string, inHand <-chan *message.Message, ended func()) {
	var batch []*message.Message
	returned := false
	defer guard.OnExit(&returned, func() {
		go func() {
			r.exited(topic, batch)
			r.publishing.Add(-1)
			r.work(ctx, topic, inHand, ended)
		}()
	})
	for {
		if batch = r.collect(ctx, inHand); len(batch) == 0 {
			break
		}
		r.publishing.Add(1)
		r.publishBatch(r.stop, topic, batch)
		r.publishing.Add(-1)
	}
	ended()
	returned = true
}

// collect waits for a message, and returns it with others that are available, as one batch. It
// returns none when the channel is closed.
func (r *run) collect(ctx context.Context, inHand <-chan *message.Message) []*message.Message {
	first, open := <-inHand
	if !open {
		return nil
	}
	batch := []*message.Message{first}
	var full <-chan time.Time
	delivery, _ := redisdelay.DeliveryFromContext(first.Context())
	if r.config.BatchWait > 0 && !delivery.Redelivered { // others may come only after a redelivered one is settled
		timer := time.NewTimer(r.config.BatchWait)
		defer timer.Stop()
		full = timer.C
	}
	for len(batch) < r.config.BatchMessages {
		select {
		case msg, open := <-inHand:
			if !open {
				return batch
			}
			batch = append(batch, msg)
			continue
		default:
		}
		if full == nil {
			return batch
		}
		select {
		case msg, open := <-inHand:
			if !open {
				return batch
			}
			batch = append(batch, msg)
		case <-full:
			return batch
		case <-ctx.Done():
			full = nil
		}
	}
	return batch
}

// await waits up to a second for the goroutines of the run. The subscriber is closed by then.
func (r *run) await() error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.serving.Wait()
	}()
	timeout := time.NewTimer(time.Second)
	defer timeout.Stop()
	select {
	case <-ended:
		return nil
	case <-timeout.C:
		if r.publishing.Load() == 0 {
			return errors.New("relay: Redis does not answer: a call has not returned")
		}
		return fmt.Errorf("relay: %w, a second after the Subscriber's CloseTimeout", ErrStuck)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
