package scheduler

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// served is a topic that the scheduler serves.
type served struct {
	topic   *queue.Topic
	users   int    // calls of Add without a Remove; guarded by Scheduler.mu
	listed  bool   // found in the registry, so served while it exists; guarded by Scheduler.mu
	opened  bool   // its groups were read; owned by the busy worker
	address string // where wake-ups for the topic are sent; "" before the first look; owned by the busy worker

	receiver *wake.Receiver // of wake-ups; nil before Run
	stop     func()         // stops the receiver; nil before Run

	mu         sync.Mutex // guards the fields up to watchFault
	target     time.Time  // the next promotion; zero: none is known
	armed      time.Time  // the earliest task in the queue; zero: none
	busy       bool       // a worker runs its promotion and will queue the next task
	pool       *pool      // whose queue has its tasks; nil: the first pool
	removed    bool       // no longer served
	watchFault string     // why the last look for processes that are gone failed; "": it did not

	full   time.Time // the last full promotion; owned by the busy worker
	failed int       // promotions that failed in a row; owned by the busy worker
	fault  error     // the last failure; nil: none since a success; owned by the busy worker
}

// task is a topic to promote at a time. If a wake-up brings an earlier event, a topic has
// several tasks; all but the earliest are stale and do nothing.
type task struct {
	served *served
	at     time.Time
}

// Timers of the runtime fire up to a millisecond late in an idle process. So a task leaves the
// queue a millisecond early, and an alarm waits for the rest.
const (
	early    = time.Millisecond
	together = 250 * time.Microsecond // tasks within this time share a round trip
)

// woken handles a wake-up: how long until an event, or "" for a promotion at once. It has settled
// at once, because a test that moves the clock promotes by itself.
func (s *Scheduler) woken(t *served, argument string, settled func(next time.Time)) {
	if settled != nil {
		settled(time.Time{})
	}
	now, wait := time.Now(), wake.ReadWait(argument)
	t.mu.Lock()
	p := s.poolOf(t)
	t.mu.Unlock()
	s.promoteAt(t, now.Add(p.lead.startIn(wait)))
}

// promoteAt plans a promotion of the topic at a time, unless an earlier one is planned.
func (s *Scheduler) promoteAt(t *served, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.target.IsZero() || at.Before(t.target) {
		t.target = at
	}
	if !t.busy {
		s.arm(t)
	}
}

// arm queues a task for the target, unless an earlier task is queued. t.mu is held.
func (s *Scheduler) arm(t *served) {
	if t.removed || (!t.armed.IsZero() && !t.target.Before(t.armed)) {
		return
	}
	t.armed = t.target
	s.poolOf(t).add(task{t, t.target})
}

// poolOf returns the pool that promotes the topic next. t.mu is held.
func (s *Scheduler) poolOf(t *served) *pool { return cmp.Or(t.pool, s.pools.first) }

// begins returns whether a task is still valid. If so, the worker owns the topic until done.
func (s *Scheduler) begins(next task) bool {
	t := next.served
	t.mu.Lock()
	defer t.mu.Unlock()
	if !next.at.Equal(t.armed) {
		return false // an earlier task replaced it
	}
	t.armed = time.Time{}
	if t.removed {
		return false
	}
	t.target = time.Time{}
	t.busy = true
	return true
}

// done ends a worker's ownership of a topic. The next promotion is at the given time, or at an
// earlier one that a wake-up asked for meanwhile. A removed topic is left instead.
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

// promotion is the call that promotes one topic.
type promotion struct {
	*served
	groups *queue.Groups
	by     string // the scheduler's address
	call   *queue.Call
}

// promote moves the due messages of the topics to ready, and queues each topic's next task.
func (s *Scheduler) promote(ctx context.Context, p *pool, due []*served) {
	poll := s.mailbox.Poll()
	promotions := make([]promotion, 0, len(due))
	calls := make([]*queue.Call, 0, len(due))
	for _, t := range due {
		if own, err := s.findPool(ctx, t); err == nil && own != p {
			s.moveTo(own, t)
			continue
		}
		groups, err := s.open(ctx, t)
		if errors.Is(err, queue.ErrNotFound) {
			s.pools.running.Go(func() { s.missing(ctx, t, poll) }) // the registry's node may hang
			continue
		}
		if err == nil {
			before := t.address
			if t.address = t.receiver.Address(ctx); before != "" && before != t.address { // its role goes with it
				calls = append(calls, t.topic.ResignCall(before))
			}
			call := t.topic.PromoteCall(groups, t.address, 3*poll, time.Since(t.full) >= poll)
			promotions = append(promotions, promotion{served: t, groups: groups, by: t.address, call: call})
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
	err := queue.Do(ctx, s.client, calls...) // each promotion reads its own error
	answered := time.Now()
	if err == nil && len(calls) == 1 {
		p.lead.observe(answered.Sub(sent))
	}
	var sweeps []func()
	var watches []promotion
	for _, each := range promotions {
		t := each.served
		turn, stale, err := t.topic.ReadTurn(each.call, each.groups)
		if turn.Watch {
			watches = append(watches, each)
		}
		if err == nil && !stale && !turn.Partial {
			t.full = answered
		}
		if turn.Lost > 0 {
			s.logger.Error("Messages are gone from Redis, their bodies were not there when they were due", nil,
				watermill.LogFields{"topic": t.topic.Name, "messages": turn.Lost})
		}
		if turn.Dropped > 0 {
			s.logger.Info("Messages had expired and were dropped", watermill.LogFields{"topic": t.topic.Name, "messages": turn.Dropped})
		}
		switch {
		case err != nil:
			s.retry(ctx, t, err, poll)
		case stale: // the set of groups has changed since it was read
			s.done(t, answered)
		case turn.Expired || turn.Purge || turn.Resume || len(turn.Failed) > 0 || len(turn.Unused) > 0:
			sweeps = append(sweeps, func() { s.sweep(ctx, t, turn, poll) })
		default:
			s.succeeded(t)
			s.done(t, answered.Add(p.lead.startIn(untilNext(turn.Wait, poll))))
		}
	}
	s.watch(ctx, watches)
	for _, sweep := range sweeps { // last, because they may take long
		sweep()
	}
}

// moveTo passes a topic that is due to the pool of its server.
func (s *Scheduler) moveTo(p *pool, t *served) {
	t.mu.Lock()
	t.pool = p
	t.mu.Unlock()
	s.done(t, time.Now())
}

// sweep does the bounded extra work that a promotion has found: it ends pauses, takes back expired
// leases, has standbys take over, purges dead letters, and removes unused groups. Then the topic is
// promoted again.
func (s *Scheduler) sweep(ctx context.Context, t *served, turn queue.Turn, poll time.Duration) {
	var err error
	if turn.Resume {
		err = s.resume(ctx, t)
	}
	if err == nil && turn.Expired {
		err = s.repeat(ctx, t.topic.Expire)
	}
	if err == nil && len(turn.Failed) > 0 {
		err = s.succeed(ctx, t, turn.Failed)
	}
	if err == nil && turn.Purge {
		err = s.purge(ctx, t)
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

// succeed has standbys take the place of active subscriptions that failed, and logs each.
func (s *Scheduler) succeed(ctx context.Context, t *served, groups []string) error {
	failed, err := t.topic.Succeed(ctx, groups...)
	for _, group := range slices.Sorted(maps.Keys(failed)) {
		s.logger.Info("The active subscription did not claim in time: another takes its place", watermill.LogFields{
			"topic": t.topic.Name, "consumer_group": group, "subscription": failed[group]})
	}
	return err
}

// resume ends the pauses whose time is over, and logs each.
func (s *Scheduler) resume(ctx context.Context, t *served) error {
	return s.repeat(ctx, func(ctx context.Context) (more bool, err error) {
		ended, more, err := t.topic.EndPauses(ctx)
		for _, group := range ended {
			fields := watermill.LogFields{"topic": t.topic.Name}
			if group != "" {
				fields["consumer_group"] = group
			}
			s.logger.Info("A pause is over: messages are delivered again", fields)
		}
		return more, err
	})
}

// purge deletes dead letters, and logs how many it deleted because their group had too many.
func (s *Scheduler) purge(ctx context.Context, t *served) error {
	purged := map[string]int{}
	err := s.repeat(ctx, func(ctx context.Context) (more bool, err error) {
		excess, more, err := t.topic.Purge(ctx)
		for group, n := range excess {
			purged[group] += n
		}
		return more, err
	})
	for _, group := range slices.Sorted(maps.Keys(purged)) {
		s.logger.Error("The oldest dead letters were deleted, because the group had more than MaxDead", nil,
			watermill.LogFields{"topic": t.topic.Name, "consumer_group": group, "messages": purged[group]})
	}
	return err
}

// open reads the groups of a topic. It fails if the server does not permit what the scheduler
// needs: to receive wake-ups, and the commands for topics with or without a stream. Each server is
// asked once. open does not create a topic that nobody named, because it may just have been
// deleted.
func (s *Scheduler) open(ctx context.Context, t *served) (*queue.Groups, error) {
	err := s.mailbox.Permitted(ctx, t.topic)
	if errors.Is(err, refusal.ErrForbidden) { // one error names all that is missing
		if groups, _ := t.topic.Existing(ctx); groups != nil {
			err = refusal.AllForbidden(err, s.permit(ctx, t, groups))
		}
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	named := t.users > 0
	s.mu.Unlock()
	read := t.topic.Groups  // this also enters the topic in the registry, in case it was lost there
	if !named || t.opened { // avoid the registry, which may be on a node that does not answer
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
	if err := s.permit(ctx, t, groups); err != nil {
		return nil, err
	}
	return groups, nil
}

// permit fails if the server does not permit the commands for the topic.
func (s *Scheduler) permit(ctx context.Context, t *served, groups *queue.Groups) error {
	work := rights.Scheduling
	if groups.Stream {
		work = rights.SchedulingStreams
	}
	_, err := s.permits.Try(ctx, t.topic, work)
	return err
}

// missing handles a topic that does not exist. If the registry does not list it either, it is no
// longer served. If it is listed, it is just being created or deleted, and is tried again later.
func (s *Scheduler) missing(ctx context.Context, t *served, poll time.Duration) {
	listed, err := t.topic.Listed(ctx)
	if err != nil {
		s.retry(ctx, t, err, poll)
		return
	}
	if listed {
		s.doneLater(t, poll)
		return
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
	// Its announcement had no effect if it was entered again before the topic was dropped here.
	if listed, err = t.topic.Listed(ctx); err == nil && listed {
		s.found(t.topic.Name, false)
	}
}

// repeat repeats a call that moves a bounded number of messages, until none are left. It stops
// after 20 calls, so that other topics are served too.
func (s *Scheduler) repeat(ctx context.Context, call func(context.Context) (bool, error)) error {
	for range 20 {
		more, err := call(ctx)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// untilNext returns how long to wait for the next promotion: until the next event, but about the
// poll at most, because the clocks of the two machines drift apart. A negative wait means no event.
func untilNext(wait, poll time.Duration) time.Duration {
	if wait < 0 {
		return wake.Jitter(poll)
	}
	if wait > poll {
		return min(wait, wake.Jitter(poll))
	}
	return wait
}

// retry plans the next promotion after a failed one. A topic logs an error if it differs from the
// last one. If Redis cannot be reached, only the first topic logs that. Else the error is noted in
// the topic, for operators: each time, because another scheduler may have deleted the note.
func (s *Scheduler) retry(ctx context.Context, t *served, err error, poll time.Duration) {
	if ctx.Err() == nil && (t.fault == nil || t.fault.Error() != err.Error()) {
		t.fault = err
		if !servers.Unreachable(err) || !s.outage.Swap(true) {
			s.logger.Error("Cannot promote due messages, trying again", err, watermill.LogFields{"topic": t.topic.Name})
		}
	}
	if ctx.Err() == nil && !servers.Unreachable(err) {
		if err := t.topic.NoteFault(ctx, err); err != nil {
			s.logger.Debug("Cannot note in the topic why its due messages are not promoted", watermill.LogFields{
				"topic": t.topic.Name, "err": err})
		}
	}
	s.doneLater(t, poll)
}

// doneLater plans the next promotion of a topic that failed or is missing: in 100 ms, and twice as
// long after each further failure, up to the poll interval.
func (s *Scheduler) doneLater(t *served, poll time.Duration) {
	t.failed++
	s.done(t, time.Now().Add(wake.Jitter(min(50*time.Millisecond<<min(t.failed, 10), poll))))
}

// succeeded resets the failures of a topic, and logs their end, or that of an outage.
func (s *Scheduler) succeeded(t *served) {
	if t.failed > 0 {
		own := t.fault != nil && !servers.Unreachable(t.fault)
		t.failed, t.fault = 0, nil
		if s.outage.Swap(false) || own {
			s.logger.Info("Promoting due messages again", watermill.LogFields{"topic": t.topic.Name})
		}
	}
}
