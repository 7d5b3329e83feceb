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
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// ErrStuck is wrapped by the error of a Run that had to leave calls of the destination's Publish behind, which did
// not return.
var ErrStuck = errors.New("the destination's Publish does not return")

// Relay publishes due messages to a destination. It has no state of its own: several may run at once, in one
// process or in many, and share the messages.
type Relay struct {
	config Config
	client *queue.Client
	logger watermill.LoggerAdapter
	given  watermill.LoggerAdapter // the same without what it adds
	outage outages

	mu   sync.Mutex
	runs map[*run]struct{} // those that have begun and not ended
}

// errStopped is why what did not go out in time after a stop comes back, and errUntried why it was not tried.
var (
	errStopped = fmt.Errorf("the relay is stopped: %w", redisdelay.ErrClosed)
	errUntried = fmt.Errorf("not tried: %w", errStopped)
)

// New returns a Relay. It does not talk to Redis yet. A nil logger logs nothing. Errors wrap
// redisdelay.ErrInvalidConfig.
func New(config Config, logger watermill.LoggerAdapter) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	own := logger.With(watermill.LogFields{"component": "redisdelay.relay"})
	return &Relay{config: config, client: queue.MustClient(config.Subscriber.Client), logger: own, given: logger, outage: outages{logger: own}}, nil
}

// Run relays until ctx ends. Then nothing more is taken, and what is in hand is published and settled, for the
// Subscriber's CloseTimeout at most. A tenth of that before, a second at most, the contexts of what is with the destination
// end, and with them every Publish that heeds them: so that what did not go out is given back, as after any failure. A
// message of which a failure would be the last is not, nor what a Publish has that ends too late: another relay has it when its
// lease is over, and Run logs how many there are. A Publish that does not return within a second after CloseTimeout is left
// behind, and Run returns an error that wraps ErrStuck.
//
// Losing Redis does not end a Run, not at its beginning either: it logs that, and goes on when Redis is there. An
// error that does not wrap ErrStuck says that Redis did not answer at the end; else Run returns nil. It may be
// called again, and several times at once.
func (r *Relay) Run(ctx context.Context) error {
	subscriber, err := r.subscriber(r.config.BatchMessages * (r.config.Concurrency + 1))
	if err != nil {
		return err
	}
	run := &run{Relay: r, subscriber: subscriber, stop: r.stopWith(ctx), lacking: map[string]error{}}
	run.begin()
	defer run.end()
	var watching sync.WaitGroup
	for _, topic := range r.config.Topics {
		run.serve(ctx, topic)
	}
	if r.config.Topics == nil {
		c := r.config.Subscriber
		watching.Go(func() {
			wake.WatchTopics(ctx, r.client, c.KeyPrefix, func(topic string, _ bool) { run.serve(ctx, topic) }, run.registryRead)
		})
	}
	<-ctx.Done()
	watching.Wait() // no topic is added any more
	return errors.Join(subscriber.Close(), run.await())
}

// registryRead notes what came of reading the registry of topics, and logs what is new of it.
func (r *run) registryRead(err error) {
	if news := r.news.Of(err); news != "" && err == nil {
		r.logger.Info(news, nil)
	} else if news != "" {
		r.logger.Error(news, err, nil)
	}
	switch {
	case errors.Is(err, wake.ErrNotHeard):
	case errors.Is(err, wake.ErrNotEntered): // it was read
		r.subscribed(registry, nil)
	default:
		r.subscribed(registry, err)
	}
}

// subscriber is what a Run, or a router, takes messages from.
func (r *Relay) subscriber(inFlight int) (*redisdelay.Subscriber, error) {
	config := r.config.Subscriber
	config.MaxInFlight = inFlight
	if r.config.Ordered {
		// The relay waits itself, with the message in hand, so that it keeps its place.
		config.MaxInFlight = 1
		config.Backoff = func(int) time.Duration { return 0 }
	}
	return redisdelay.NewSubscriber(config, r.given)
}

// stop is the end of a Run, or of a handler on a router.
type stop struct {
	begun context.Context // ends when nothing more is taken
	late  context.Context // ends when what is not out by then is to be given back
}

// stopWith is the stop that begins when begun ends. The destination has all of CloseTimeout but a tenth, or a second:
// what it does not take can be given back in that, before the messages' own contexts end, and their leases have to run out.
func (r *Relay) stopWith(begun context.Context) stop {
	late, end := context.WithCancelCause(context.Background())
	timeout := r.config.Subscriber.CloseTimeout
	context.AfterFunc(begun, func() {
		time.AfterFunc(timeout-min(timeout/10, time.Second), func() { end(errStopped) })
	})
	return stop{begun, late}
}

// run is one Run.
type run struct {
	*Relay
	subscriber *redisdelay.Subscriber
	stop       stop

	served     sync.Map // topics; false: it was, and is not for a relay
	serving    sync.WaitGroup
	publishing atomic.Int32 // batches that are with the destination
	left       atomic.Int64 // messages that are neither out nor given back at the end

	news wake.RegistryNews

	lacking map[string]error // what is not subscribed to, and why not; guarded by Relay.mu
}

// serve relays a topic, from now until ctx ends. It may be called again for the same.
func (r *run) serve(ctx context.Context, topic string) {
	served, known := r.served.Swap(topic, true)
	if served == true {
		return
	}
	if !known { // else it was not for the relay before, and most likely is not now
		r.subscribed(topic, errNotYet)
	}
	r.serving.Go(func() {
		if messages := r.subscribe(ctx, topic); messages != nil {
			r.relay(ctx, topic, messages)
		}
	})
}

// subscribe tries until it has the topic's messages, and returns nil if ctx ends before, or if the topic, which nobody named,
// is not for a relay.
func (r *run) subscribe(ctx context.Context, topic string) <-chan *message.Message {
	patience := redisdelay.ExponentialBackoff(25*time.Millisecond, 5*time.Second)
	fields := watermill.LogFields{"topic": topic}
	var said error
	for try := 1; ctx.Err() == nil; try++ {
		var messages <-chan *message.Message
		err := r.look(ctx, topic)
		if err == nil {
			messages, err = r.subscriber.Subscribe(ctx, topic)
		}
		switch {
		case err == nil:
			r.subscribed(topic, nil)
			if said != nil {
				r.logger.Info("Subscribed", fields)
			}
			return messages
		case ctx.Err() != nil:
			return nil
		case r.others(err):
			r.subscribed(topic, nil)
			if errors.Is(err, redisdelay.ErrTopicMode) || try > 10 && r.unlisted(ctx, topic) {
				r.served.Store(topic, false) // it is looked at again when it is found the next time
				return nil
			}
		default:
			r.subscribed(topic, err)
			if said == nil || said.Error() != err.Error() && !(queue.Unreachable(said) && queue.Unreachable(err)) {
				r.logger.Error("Cannot subscribe, trying again", err, fields)
				said = err
			}
		}
		pause(ctx, patience(try))
	}
	return nil
}

// others tells that a topic that nobody named is not for a relay, by what a try to subscribe to it came to: it has a
// stream; or it is only in the registry, as one that is just being made, or that somebody did not come to delete.
func (r *run) others(err error) bool {
	return r.config.Topics == nil && (errors.Is(err, redisdelay.ErrTopicMode) || errors.Is(err, queue.ErrNotFound))
}

// unlisted tells that the topic is not in the registry any more.
func (r *run) unlisted(ctx context.Context, topic string) bool {
	listed, err := queue.NewTopic(r.client, r.config.Subscriber.KeyPrefix, topic).Listed(ctx)
	return err == nil && !listed
}

// look sees what a topic is that nobody named, before a subscription would make it one without a stream.
func (r *run) look(ctx context.Context, topic string) error {
	if r.config.Topics != nil {
		return nil
	}
	groups, err := queue.NewTopic(r.client, r.config.Subscriber.KeyPrefix, topic).Existing(ctx)
	if err == nil && groups.Stream {
		err = redisdelay.ErrTopicMode
	}
	return err
}

// relay publishes messages until there are no more.
func (r *run) relay(ctx context.Context, topic string, messages <-chan *message.Message) {
	inHand := make(chan *message.Message, r.config.BatchMessages)
	var workers sync.WaitGroup
	for range r.config.Concurrency {
		workers.Go(func() {
			for {
				batch := r.collect(ctx, inHand)
				if len(batch) == 0 {
					return
				}
				r.publishing.Add(1)
				r.publishBatch(r.stop, topic, batch)
				r.publishing.Add(-1)
				if ctx.Err() != nil {
					r.left.Add(left(batch))
				}
			}
		})
	}
	for msg := range messages {
		inHand <- msg
	}
	close(inHand)
	workers.Wait()
}

// left counts the messages that were neither published nor given back in time.
func left(batch []*message.Message) (n int64) {
	for _, msg := range batch {
		if cause := context.Cause(msg.Context()); cause != nil {
			if errors.Is(cause, redisdelay.ErrClosed) {
				n++
			}
			continue
		}
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
		default:
			n++
		}
	}
	return n
}

// collect waits for a message, and returns it with those that are there to go with it; none when there will be
// no more.
func (r *run) collect(ctx context.Context, inHand <-chan *message.Message) []*message.Message {
	first, open := <-inHand
	if !open {
		return nil
	}
	batch := []*message.Message{first}
	var full <-chan time.Time
	delivery, _ := redisdelay.DeliveryFromContext(first.Context())
	if r.config.BatchWait > 0 && !delivery.Redelivered { // else it goes alone, and none may come before it is settled
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

// await waits for the end of what the run has begun. The subscriber is closed.
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
		if n := r.left.Load(); n > 0 {
			r.logger.Info("Messages are left to their leases, and come again when those are over", watermill.LogFields{"messages": n})
		}
		return nil
	case <-timeout.C:
		if r.publishing.Load() == 0 {
			return errors.New("relay: Redis does not answer: a call is left behind")
		}
		return fmt.Errorf("relay: %w: it is left behind, a second after the Subscriber's CloseTimeout", ErrStuck)
	}
}

// pause waits, until ctx ends at the latest.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
