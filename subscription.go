package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// subscription is one Subscribe. Two goroutines work on it, and a third under load; what they share is under mu:
//
//	run      talks to Redis: one exchange after the other, each a pipeline of all there is to say:
//	         settle what was settled, hand back, extend leases, claim more. What comes up during an
//	         exchange goes with the next, so the batches grow with the load.
//	ahead    claims still more meanwhile, where much is ready and the order does not matter.
//	handOut  hands the claimed messages to the consumer, in order, MaxInFlight at a time.
//
// Consumers settle by Ack and Nack on the messages, which handOut notices, or await.
type subscription struct {
	config  *SubscriberConfig
	client  *queue.Client
	mailbox *wake.Mailbox
	logger  watermill.LoggerAdapter
	topic   *queue.Topic
	group   *queue.Group
	options queue.GroupOptions
	ctx     context.Context // Subscribe's
	values  context.Context // the same without its end

	// Calls to Redis go on while the subscription closes, and half a second longer than handlers may.
	calls       context.Context
	cancelCalls context.CancelFunc

	out     chan *message.Message
	closing chan struct{}
	ended   chan struct{}
	close   func()
	forget  func() bool // ends watching Subscribe's context

	endTimers []*time.Timer  // of closing
	others    sync.WaitGroup // the goroutines beside run

	kick chan struct{} // run: look again
	feed chan struct{} // handOut: something may be taken from the buffer
	look chan struct{} // handOut: what is on offer, or was taken last, may have ended

	looker *time.Timer // of lookSoon
	looks  atomic.Bool // it runs

	mu       sync.Mutex
	buffer   buffer // claimed, not handed out
	inHand   hand
	over     chan struct{} // closed, and made anew, when a delivery ends that was not settled
	settled  settlements   // to be told to Redis
	woken    bool          // something is ready
	held     bool          // nothing is handed out before a nacked message is back in its place
	trust    int           // messages that are claimed ahead at most: as many as ended since held was set
	stuck    bool          // the consumer takes nothing: claiming more would only hoard
	room     int           // how many messages the consumer seems to take at once
	handOver bool          // handOut has ended
	left     bool          // it is closing, and Redis knows
	pace     pace
	counts   queue.Counts // to be told with the next claim
	asked    []func()     // to be called when a claim was answered that is sent from now on, and all was judged by it
	unjudged []func()     // to be called when what is on offer was judged
	onOffer  bool         // a message that expires is
	gone     bool         // run has ended, so that nobody is answered any more but at once
	server   time.Time    // the server's clock, as a claim told it
	sent     time.Time    // when that claim was sent
	heard    time.Time    // when it was answered
	sequence uint64
	asking   bool        // an exchange of run is under way
	gathers  bool        // run waits for more acks to go together
	more     bool        // the last claim left something
	waits    bool        // the last claim had us noted as waiting
	refill   int         // with how many messages left in buffer more are claimed
	watched  bool        // the exchange has no answer yet, or the last one failed
	watchdog *time.Timer // runs meanwhile
	watchAt  time.Time   // until then

	main, ahead  lane      // run's, and that of what is claimed beside it
	stumbled     bool      // an exchange beside run's failed, and run has not got through since
	slow         bool      // an answer took too long for what it brought, which was said
	blocked      bool      // a suspect is next
	blockedUntil time.Time // until when it waits for the subscription to hold nothing else; zero: none has since others came
	nextExtend   time.Time // when leases are to be extended: a third of each is over then at most

	// What follows is run's alone.
	address  string
	tired    []*delivery // whose handlers ran for too long
	answered time.Time   // when the last exchange was over
	brought  int         // messages, by the last claim
	nextPoll time.Time
	outage   bool
	failures int
	fault    error // of the last exchange, nil if that did not fail

	groupGone bool // from Redis, and not known to be back
}

// settlements are what the consumer decided, and what it did not get to see.
type settlements struct {
	acks     []*queue.Leased
	releases []leased
	nacks    []queue.Failure // in the order of delivery
	deaths   []death         // that come of them
}

func (s *settlements) empty() bool {
	return len(s.acks) == 0 && len(s.releases) == 0 && len(s.nacks) == 0
}

func newSubscription(s *Subscriber, ctx context.Context, topic *queue.Topic, id string) *subscription {
	sub := &subscription{
		config:  &s.config,
		client:  s.client,
		mailbox: s.running.mailbox,
		logger:  s.logger.With(watermill.LogFields{"topic": topic.Name}),
		topic:   topic,
		group:   topic.Group(s.groupOf(id)),
		options: s.groupOptions(),
		ctx:     ctx,
		values:  context.WithoutCancel(ctx),
		out:     make(chan *message.Message),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
		kick:    make(chan struct{}, 1),
		feed:    make(chan struct{}, 1),
		look:    make(chan struct{}, 1),
		over:    make(chan struct{}),
		room:    s.config.MaxInFlight,
		trust:   mostAhead,
		main:    lane{id: id, claims: 1},
		ahead:   lane{id: queue.Token(), claims: 1},
	}
	sub.calls, sub.cancelCalls = context.WithCancel(context.Background())
	sub.watchdog = time.AfterFunc(time.Hour, sub.watch)
	sub.watchdog.Stop()
	sub.looker = time.AfterFunc(time.Hour, func() {
		sub.looks.Store(false)
		signal(sub.look)
	})
	sub.looker.Stop()
	sub.close = sync.OnceFunc(func() {
		sub.endTimers = []*time.Timer{
			time.AfterFunc(sub.config.CloseTimeout, sub.endHandlers),
			time.AfterFunc(sub.config.CloseTimeout+500*time.Millisecond, sub.cancelCalls),
		}
		close(sub.closing) // which the end of run waits for
		signal(sub.kick)
		signal(sub.look)
	})
	sub.forget = context.AfterFunc(ctx, sub.close)
	return sub
}

// signal has a goroutine look again, now or when it next does.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errUntold means that Redis did not take all that it was told before the subscription had to end.
var errUntold = errors.New("what Redis was told last may not have reached it")

// run talks to Redis until the subscription is closed and everything is settled. It returns errUntold if it is not, with why.
func (s *subscription) run() error {
	s.others.Go(s.handOut)
	defer close(s.out)
	defer s.others.Wait()
	defer s.forget()
	address, stop := s.mailbox.Receive(s.told)
	defer s.answerAll() // after stop
	defer stop()
	s.address = address
	defer s.endCalls()
	return s.talk()
}

// told takes a message from the mailbox: something is ready, or is to be judged, of which done then tells.
func (s *subscription) told(_ string, done func()) {
	s.mu.Lock()
	s.woken = true
	if done != nil && len(s.inHand)+s.buffer.len()+s.coming() > 0 { // so run has set nextExtend already, which it does without mu
		s.nextExtend = time.Time{} // a test may have ended leases, of which only an extension tells
	}
	if done != nil && !s.gone {
		s.asked, done = append(s.asked, done), nil
	}
	s.mu.Unlock()
	if done != nil {
		done()
	}
	signal(s.kick)
}

func (s *subscription) endCalls() {
	s.mu.Lock()
	s.unwatch()
	s.mu.Unlock()
	s.cancelCalls()
	for _, timer := range s.endTimers {
		timer.Stop()
	}
}

// talk has one exchange after the other.
func (s *subscription) talk() error {
	s.nextExtend = time.Now().Add(s.config.LeaseDuration / 3)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		x, wake := s.plan(time.Now())
		s.failTired()
		switch {
		case x != nil:
			if s.perform(x) {
				continue
			}
			wake = time.Now().Add(s.patience())
		case s.finished():
			s.removeBroadcast()
			return nil
		}
		timer.Reset(time.Until(wake))
		select {
		case <-s.kick:
		case <-timer.C:
		case <-s.calls.Done():
			if s.fault == nil {
				return errUntold
			}
			return fmt.Errorf("%w: %w", errUntold, s.fault)
		}
	}
}

func (s *subscription) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// finished tells that the subscription is closed, and all is said.
func (s *subscription) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.left && s.main.claim == nil && s.ahead.claim == nil && !s.ahead.remembered && s.settled.empty()
	return told && s.handOver && len(s.inHand)+s.buffer.len() == 0
}

// removeBroadcast ends the group of a subscription that has one of its own.
func (s *subscription) removeBroadcast() {
	if !s.config.Broadcast {
		return
	}
	if err := s.topic.Remove(s.calls, s.group.Name); err != nil {
		s.logger.Debug("Cannot remove the subscription's group, a scheduler will", watermill.LogFields{"err": err})
	}
}

// endHandlers gives up what is not settled in time when the subscription closes. The leases run out.
func (s *subscription) endHandlers() {
	var decided []*delivery // in time, which handOut has not noticed: it may be in the Unmarshaler
	s.mu.Lock()
	for _, d := range slices.Clone(s.inHand) {
		if !d.handed.IsZero() && d.decided() {
			decided = append(decided, d)
		} else {
			s.abandon(d, ErrClosed)
		}
	}
	s.mu.Unlock()
	for _, d := range decided {
		s.settledNow(d)
	}
	signal(s.kick)
}

// perform has an exchange of run. It returns false if something failed and is to be said again after a while.
func (s *subscription) perform(x *exchange) bool {
	err := s.tell(x)
	s.mu.Lock()
	s.asking = false
	if err == nil {
		s.stumbled = false
		s.unwatch()
	} else {
		s.watchLeases()
	}
	s.mu.Unlock()
	s.report(err)
	s.answered = time.Now()
	return err == nil
}

// tell tells Redis what was planned, and takes in what it answers.
func (s *subscription) tell(x *exchange) error {
	sent := time.Now()
	acks := s.group.AckCalls(x.acks)
	releases := s.group.ReleaseCalls(inOrder(x.releases))
	nacks := s.group.NackCalls(x.nacks, s.options.Retention)
	extends := s.group.ExtendCalls(x.extend, s.config.LeaseDuration)
	var claims []*queue.Call
	for _, c := range x.claims {
		claims = append(claims, s.group.ClaimCall(*c))
	}
	// What goes to the front of ready goes last to first: nacked messages are older than those handed
	// back. And what is settled makes room before more is claimed.
	err := queue.Do(s.calls, s.client, slices.Concat(acks, releases, nacks, extends, claims)...)
	if !failed(nacks) {
		s.logDeaths(x.deaths, time.Now())
	}

	s.mu.Lock()
	s.tellAgain(x.settlements, failed(acks), failed(releases), failed(nacks))
	if len(x.nacks) > 0 && len(s.settled.nacks) == 0 {
		s.held = false
	}
	if len(extends) > 0 {
		s.extended(extends, sent, x.extendTo)
	}
	s.mu.Unlock()

	unclaimed := s.takeClaims(x, claims, sent)
	signal(s.feed)
	return cmp.Or(err, unclaimed)
}

// tellAgain has those parts of what was told that failed told once more, before what was settled since. s.mu is held.
func (s *subscription) tellAgain(told settlements, acks, releases, nacks bool) {
	if acks {
		s.settled.acks = append(told.acks, s.settled.acks...)
	}
	if releases {
		s.settled.releases = append(told.releases, s.settled.releases...)
	}
	if nacks {
		s.settled.nacks = append(told.nacks, s.settled.nacks...)
		s.settled.deaths = append(told.deaths, s.settled.deaths...)
	}
}

func failed(calls []*queue.Call) bool {
	for _, c := range calls {
		if c.Err() != nil {
			return true
		}
	}
	return false
}

// inOrder puts messages in the order in which they were claimed.
func inOrder(messages []leased) (sorted []*queue.Leased) {
	slices.SortFunc(messages, func(a, b leased) int { return cmp.Compare(a.sequence, b.sequence) })
	for i := range messages {
		sorted = append(sorted, &messages[i].Leased)
	}
	return sorted
}

// report logs the beginning and the end of an outage, once each.
func (s *subscription) report(err error) {
	switch {
	case err == nil && s.outage:
		s.outage, s.failures, s.fault = false, 0, nil
		s.logger.Info("Redis answers again", nil)
	case err != nil && s.calls.Err() == nil:
		s.failures++
		s.fault = err
		if !s.outage {
			s.outage = true
			s.logger.Error("Redis does not answer as it should, trying again", err, nil)
		}
	}
}

// patience is how long to wait after a failure.
func (s *subscription) patience() time.Duration {
	return jitter(min(25*time.Millisecond<<min(s.failures, 10), 5*time.Second))
}

// jitter spreads what would come at once: between 0.9 and 1.1 of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
