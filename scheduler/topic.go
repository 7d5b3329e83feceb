package scheduler

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// served is a topic that the scheduler serves.
type served struct {
	topic   *queue.Topic
	users   int  // Adds without their Remove; with none it is served for as long as it is there; guarded by Scheduler.mu
	listed  bool // it was found in the registry; guarded by Scheduler.mu
	opened  bool // its groups were read; of who looks
	address string
	stop    func()

	mu      sync.Mutex
	target  time.Time // when to look next
	armed   time.Time // the earliest appointment in the agenda; zero: none
	busy    bool      // a worker is looking; it makes the next appointment
	crew    *crew     // whose agenda that is; nil: the first
	removed bool
	failed  int // looks in a row that failed
	fault   string
}

// appointment is a topic to look at, at a time. A topic has several in the agenda when an event came
// up that is earlier than what was known; all but the earliest are stale and do nothing.
type appointment struct {
	served *served
	at     time.Time
}

// Timers of the runtime end up to a millisecond late where all else sleeps. So an appointment comes up a millisecond before
// its time, and an alarm waits for the rest.
const (
	early    = time.Millisecond
	together = 250 * time.Microsecond // looks that are this near to one another go together
)

// told takes a message from the mailbox: how long until an event, or "" to look at once. Who waits until
// all have looked waits for no scheduler: which of them does the work is not the matter.
func (s *Scheduler) told(t *served, argument string, done func()) {
	if done != nil {
		done()
	}
	now, wait := time.Now(), wake.ReadWait(argument)
	t.mu.Lock()
	its := s.lookers(t)
	t.mu.Unlock()
	s.look(t, now.Add(its.lead.before(wait)))
}

// look has a worker look at the topic at a time, unless it will earlier.
func (s *Scheduler) look(t *served, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target.IsZero() || at.Before(t.target) {
		t.target = at
	}
	if !t.busy {
		s.arm(t)
	}
}

// arm makes the appointment for the target, unless there is an earlier one. t.mu is held.
func (s *Scheduler) arm(t *served) {
	if t.removed || (!t.armed.IsZero() && !t.target.Before(t.armed)) {
		return
	}
	t.armed = t.target
	s.lookers(t).enter(appointment{t, t.target})
}

// lookers is the crew that looks at the topic next. t.mu is held.
func (s *Scheduler) lookers(t *served) *crew { return cmp.Or(t.crew, s.crews.first) }

// begins tells whether an appointment is to be kept; if so the topic is the worker's until done.
func (s *Scheduler) begins(a appointment) bool {
	t := a.served
	t.mu.Lock()
	defer t.mu.Unlock()
	if !a.at.Equal(t.armed) {
		return false // an earlier one replaced it
	}
	t.armed = time.Time{}
	if t.removed {
		return false
	}
	t.target = time.Time{}
	t.busy = true
	return true
}

// done makes the next appointment, or an earlier one that came up meanwhile.
func (s *Scheduler) done(t *served, at time.Time) {
	t.mu.Lock()
	if t.removed {
		t.mu.Unlock()
		s.leave(t)
		return
	}
	defer t.mu.Unlock()
	t.busy = false
	if t.target.IsZero() || at.Before(t.target) {
		t.target = at
	}
	s.arm(t)
}

// look is that of a worker at one topic.
type look struct {
	*served
	groups *queue.Groups
	call   *queue.Call
}

// promote looks at topics: what is due becomes ready, and each gets its next appointment.
func (s *Scheduler) promote(ctx context.Context, c *crew, due []*served) {
	poll := s.mailbox.Poll()
	looks := make([]look, 0, len(due))
	calls := make([]*queue.Call, 0, len(due))
	for _, t := range due {
		if its, err := s.crewOf(ctx, t); err == nil && its != c {
			s.moveTo(its, t)
			continue
		}
		groups, err := s.open(ctx, t)
		if errors.Is(err, queue.ErrNotFound) {
			err = s.gone(ctx, t, poll)
		} else if err == nil {
			call := t.topic.PromoteCall(groups, t.address, 3*poll)
			looks = append(looks, look{served: t, groups: groups, call: call})
			calls = append(calls, call)
		}
		if err != nil {
			s.retry(ctx, t, err, poll)
		}
	}
	if len(calls) == 0 {
		return
	}
	sent := time.Now()
	err := queue.Do(ctx, s.client, calls...) // each look reads its own error
	answered := time.Now()
	if err == nil && len(calls) == 1 {
		c.lead.observe(answered.Sub(sent))
	}
	var sweeps []func()
	for _, l := range looks {
		turn, stale, err := l.topic.ReadTurn(l.call, l.groups)
		if turn.Lost > 0 {
			s.logger.Error("Messages are gone from Redis, their bodies were not there when they were due", nil,
				watermill.LogFields{"topic": l.topic.Name, "messages": turn.Lost})
		}
		switch {
		case err != nil:
			s.retry(ctx, l.served, err, poll)
		case stale:
			s.done(l.served, answered)
		case turn.Expired || turn.Purge || len(turn.Unused) > 0:
			sweeps = append(sweeps, func() { s.sweep(ctx, l.served, turn, poll) })
		default:
			s.succeeded(l.served)
			// Whatever the wait, the clocks of the two machines run at different speeds.
			if turn.Wait < 0 || turn.Wait > poll {
				turn.Wait = jitter(poll)
			}
			s.done(l.served, answered.Add(c.lead.before(turn.Wait)))
		}
	}
	for _, sweep := range sweeps { // which take long, after all others have their appointments
		sweep()
	}
}

// moveTo has another crew look at a topic that is due.
func (s *Scheduler) moveTo(c *crew, t *served) {
	t.mu.Lock()
	t.crew = c
	t.mu.Unlock()
	s.done(t, time.Now())
}

// sweep does what a look has found to be done, and has the topic looked at again.
func (s *Scheduler) sweep(ctx context.Context, t *served, turn queue.Turn, poll time.Duration) {
	var err error
	if turn.Expired {
		err = s.repeat(ctx, t.topic.Expire)
	}
	if err == nil && turn.Purge {
		err = s.repeat(ctx, t.topic.Purge)
	}
	if left := turn.Unused; err == nil && len(left) > 0 {
		err = s.repeat(ctx, func(ctx context.Context) (more bool, err error) {
			left, err = t.topic.RemoveUnused(ctx, left...)
			return len(left) > 0, err
		})
	}
	if err != nil {
		s.retry(ctx, t, err, poll)
		return
	}
	s.succeeded(t)
	s.done(t, time.Now())
}

// open reads the groups of a topic, unless nobody could tell the scheduler of what is to come. The first time it asks
// each server whether what a scheduler does is permitted, for topics with a stream and for others. A topic that nobody
// named does not come into being by this: it may just have been deleted.
func (s *Scheduler) open(ctx context.Context, t *served) (*queue.Groups, error) {
	if err := s.mailbox.Permitted(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	named := t.users > 0
	s.mu.Unlock()
	read := t.topic.Groups  // which sees to it that the topic is in the registry, whatever was lost
	if !named || t.opened { // the registry may be on a node that does not answer
		read = t.topic.Existing
	}
	groups, err := read(ctx)
	if named && errors.Is(err, queue.ErrNotFound) {
		groups, err = t.topic.Groups(ctx)
	}
	if err != nil {
		return nil, err
	}
	t.opened = true
	work := queue.Scheduling
	if groups.Stream {
		work = queue.SchedulingStreams
	}
	if _, err := s.permits.Try(ctx, t.topic, work); err != nil {
		return nil, err
	}
	return groups, nil
}

// gone serves a topic no more that is neither there nor in the registry. While it is in there, it is just being made,
// or deleted.
func (s *Scheduler) gone(ctx context.Context, t *served, poll time.Duration) error {
	listed, err := t.topic.Listed(ctx)
	if err != nil {
		return err
	}
	if listed {
		s.later(t, poll)
		return nil
	}
	s.mu.Lock()
	if s.topics[t.topic.Name] == t && t.users == 0 {
		delete(s.topics, t.topic.Name)
		t.mu.Lock()
		t.removed = true
		t.mu.Unlock()
	}
	s.mu.Unlock()
	s.done(t, time.Now())
	// Who entered it before that announced it in vain.
	if listed, err = t.topic.Listed(ctx); err == nil && listed {
		s.found(t.topic.Name, false)
	}
	return nil
}

// repeat repeats a call that moves a bounded number of messages until none are left, or it is time
// that other topics have their turn.
func (s *Scheduler) repeat(ctx context.Context, call func(context.Context) (bool, error)) error {
	for range 20 {
		more, err := call(ctx)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// retry makes the appointment after a look that failed; one that is served no more it leaves. Each fault of a topic is
// logged once.
func (s *Scheduler) retry(ctx context.Context, t *served, err error, poll time.Duration) {
	if fault := err.Error(); fault != t.fault && ctx.Err() == nil {
		t.fault = fault
		if !s.outage.Swap(true) || !queue.Unreachable(err) {
			s.logger.Error("Cannot look for due messages, trying again", err, watermill.LogFields{"topic": t.topic.Name})
		}
	}
	s.later(t, poll)
}

// later makes the appointment after a look that came to nothing.
func (s *Scheduler) later(t *served, poll time.Duration) {
	t.failed++
	s.done(t, time.Now().Add(jitter(min(50*time.Millisecond<<min(t.failed, 10), poll))))
}

func (s *Scheduler) succeeded(t *served) {
	if t.failed > 0 {
		t.failed, t.fault = 0, ""
		if s.outage.Swap(false) {
			s.logger.Info("Looking for due messages again", watermill.LogFields{"topic": t.topic.Name})
		}
	}
}

// jitter spreads what would come at once: between 0.9 and 1.1 of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
