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
	mailbox *queue.Mailbox
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

	endTimers []*time.Timer // of closing
	aheads    sync.WaitGroup

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
	heard    time.Time    // when that was answered
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
	handedOut := make(chan struct{})
	go func() {
		defer close(handedOut)
		s.handOut()
	}()
	defer func() {
		<-handedOut
		s.aheads.Wait()
		close(s.out)
	}()
	defer s.forget()
	address, stop := s.mailbox.Receive(func(_ string, done func()) {
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
	})
	defer s.answerAll() // after stop
	defer stop()
	s.address = address

	defer func() {
		s.mu.Lock()
		s.unwatch()
		s.mu.Unlock()
		s.cancelCalls()
		for _, timer := range s.endTimers {
			timer.Stop()
		}
	}()

	now := time.Now()
	s.nextExtend = now.Add(s.config.LeaseDuration / 3)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now = time.Now()
		x, wake := s.plan(now)
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
	return s.handOver && s.left && !s.ahead.remembered && s.main.claim == nil && s.ahead.claim == nil && s.buffer.len() == 0 && len(s.inHand) == 0 && s.settled.empty()
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
	var calls []*queue.Call
	for _, part := range [][]*queue.Call{acks, releases, nacks, extends, claims} {
		calls = append(calls, part...)
	}
	err := queue.Do(s.calls, s.config.Client, calls...)
	if !failed(nacks) {
		s.logDeaths(x.deaths, time.Now())
	}

	s.mu.Lock()
	var again settlements
	if failed(acks) {
		again.acks = x.acks
	}
	if failed(releases) {
		again.releases = x.releases
	}
	if failed(nacks) {
		again.nacks, again.deaths = x.nacks, x.deaths
	} else if len(x.nacks) > 0 && len(s.settled.nacks) == 0 {
		s.held = false
	}
	s.settled = settlements{
		acks:     append(again.acks, s.settled.acks...),
		releases: append(again.releases, s.settled.releases...),
		nacks:    append(again.nacks, s.settled.nacks...),
		deaths:   append(again.deaths, s.settled.deaths...),
	}
	if len(extends) > 0 {
		s.extended(extends, sent, x.extendTo)
	}
	s.mu.Unlock()

	judged := false // by the server's time that a claim told
	for i, call := range claims {
		failed := s.claimed(x.claims[i], call, sent)
		if s.laneOf(x.claims[i]) == &s.main {
			judged = failed == nil
			if errors.Is(failed, queue.ErrUnregistered) {
				failed = s.registerAgain()
			} else if judged && s.groupGone { // registering seemed to fail, or another did it
				s.groupIsBack()
			}
		}
		if err == nil {
			err = failed
		}
	}
	if judged {
		s.answer(x.asked)
	} else {
		s.askAgain(x)
	}
	signal(s.feed)
	return err
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

// claimed takes in what a claim brought.
func (s *subscription) claimed(c *queue.Claim, call *queue.Call, sent time.Time) error {
	l, now := s.laneOf(c), time.Now()
	took := now.Sub(sent)
	if l.isUnanswered() { // what it brings may be leased since then
		sent = l.unanswered
	}
	deadline := sent.Add(s.config.LeaseDuration)
	lease := &lease{claimed: now, deadline: deadline}
	claimed, err := c.ReadClaimTo(func(m queue.Leased) {
		l.arrived = append(l.arrived, leased{Leased: m, lease: lease})
	}, call)
	if claimed.Orphans > 0 {
		s.logger.Error("Messages had lost their bodies in Redis and were dropped",
			errors.New("bodies are missing"), watermill.LogFields{"messages": claimed.Orphans})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer l.forgetArrived()
	if err != nil {
		return s.claimFailed(c, err, sent)
	}
	l.claims++
	l.remembered = len(l.arrived) > 0 || l.isUnanswered()
	l.claim, l.unanswered = nil, time.Time{}
	if third := sent.Add(s.config.LeaseDuration / 3); third.Before(s.nextExtend) {
		s.nextExtend = third
	}
	if c.Limit > 0 {
		s.noteBlocked(claimed.Blocked, len(l.arrived) == 1 && l.arrived[0].Suspect, now)
	}
	s.more = claimed.More
	if l == &s.main {
		s.left = c.Limit == 0 && s.isClosing()
		s.waits = claimed.Waits
		s.server, s.heard = claimed.Now, now.Add(-took)
		s.brought = len(l.arrived)
	}
	for i := range l.arrived {
		s.sequence++
		l.arrived[i].sequence = s.sequence
	}
	switch {
	case now.After(deadline): // the leases may be over, or just have begun
		s.warnOfSlowness(took, len(l.arrived))
		s.release(l.arrived)
	case len(s.settled.releases) > 0: // Redis was not reached with them, and they come before these
		s.release(l.arrived)
	case len(l.arrived) > 0:
		s.buffer.append(l.arrived)
	case c.Limit == 0: // nothing more is claimed here for now
		l.arrived = nil
	case s.buffer.len() == 0 && cap(l.arrived) > crowd: // nothing is ready, so not that many come soon
		s.buffer, l.arrived = buffer{}, nil
	}
	if s.watched && deadline.Before(s.watchAt) {
		s.watchLeases()
	}
	return nil
}

// warnOfSlowness says, once, that messages go back because an answer took longer than their leases last. If each does,
// nobody ever sees them, and the leases that run out may use up their deliveries. s.mu is held.
func (s *subscription) warnOfSlowness(took time.Duration, messages int) {
	if s.slow || messages == 0 || took <= s.config.LeaseDuration {
		return
	}
	s.slow = true
	s.logger.Error("Redis took longer to answer than LeaseDuration, so what it gave goes back; LeaseDuration has to be well above that",
		errSlow, watermill.LogFields{"took": took, "lease_duration": s.config.LeaseDuration, "messages": messages})
}

// noteBlocked notes what a claim told of suspects: whether one is next, or was brought. Those that come one after the
// other wait together, or each would keep what is behind them all for a LeaseDuration more. s.mu is held.
func (s *subscription) noteBlocked(blocked, brought bool, now time.Time) {
	switch {
	case blocked && s.blockedUntil.IsZero():
		s.blockedUntil = now.Add(s.config.LeaseDuration)
	case !blocked && !brought:
		s.blockedUntil = time.Time{}
	}
	s.blocked = blocked
}

// claimFailed notes a claim that is to be sent again as it is, because it may have brought something; or else has another made
// in its place. It returns what is to be said of it. sent is when the claim was sent first. s.mu is held.
func (s *subscription) claimFailed(c *queue.Claim, err error, sent time.Time) error {
	l := s.laneOf(c)
	switch {
	case errors.Is(err, queue.ErrUnregistered): // the group is gone, and with it what was claimed
		l.claim, l.unanswered, l.remembered = nil, time.Time{}, false
		if l == &s.ahead && c.Limit == 0 {
			return nil
		}
		s.woken = true
	case queue.Unreachable(err), l == &s.ahead, l.isUnanswered() && time.Since(sent) < s.config.LeaseDuration:
		// The server may have refused what it did before.
		l.claim, l.unanswered = c, sent
		c.Slots = 0 // it is not to wait if it is sent again
	default: // the script did nothing; or the leases that it gave are over, and nothing else need wait any longer
		if l.isUnanswered() {
			l.claims++ // the same number would bring what it brought, whose leases are over
		}
		l.claim, l.unanswered = nil, time.Time{}
		s.counts.Add(c.Counts)
		s.woken = true
	}
	return err
}

// registerAgain is called when the server has lost its data. The group is to exist as long as it is subscribed to.
func (s *subscription) registerAgain() error {
	s.groupGone = true
	if err := s.topic.Register(s.calls, s.group.Name, s.options); err != nil {
		return err
	}
	s.groupIsBack()
	return nil
}

// groupIsBack says, once for each time, that the group was gone: not before it is back, which it may never be, as where a newer
// layout has taken the topic over.
func (s *subscription) groupIsBack() {
	s.groupGone = false
	s.logger.Error("The consumer group is gone from Redis, with all that it held; it is registered again", errGroupGone, nil)
	s.mailbox.DataLost() // the sooner other groups are back, the less they miss
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
