package periodic

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// topic publishes the occurrences of the schedules of one topic. A topic has a loop of its own, so
// that a node of a Cluster that hangs delays its own topics only.
type topic struct {
	periodic *Periodic
	name     string
	queue    *queue.Topic
	logger   watermill.LoggerAdapter
	wake     chan struct{} // has a value when the loop is to look at once

	// Only the loop uses these.
	failing  bool           // the last look failed
	amended  string         // as the last look of all schedules found it; "": none has
	receiver *wake.Receiver // is woken when a schedule is resumed or asked to run; nil: by nobody
	told     time.Time      // when its address was last told, by the program's own clock
	seen     time.Time      // the latest time that the server's clock has shown
	shown    time.Time      // what it showed last

	mu        sync.Mutex
	schedules map[string]*schedule
	settling  []func(next time.Time) // to be called when all schedules have settled
	ended     bool                   // the loop has ended, and looks no more
}

func newTopic(p *Periodic, name string) *topic {
	return &topic{
		periodic:  p,
		name:      name,
		queue:     p.publisher.Topic(name),
		logger:    p.logger.With(watermill.LogFields{"topic": name}),
		wake:      make(chan struct{}, 1),
		schedules: map[string]*schedule{},
	}
}

func (t *topic) has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.schedules[name] != nil
}

func (t *topic) add(s *schedule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.schedules[s.Name] = s
	t.lookAgain()
}

func (t *topic) drop(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.schedules, name)
}

// all returns the schedules in order of their names.
func (t *topic) all() []*schedule {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*schedule
	for _, name := range slices.Sorted(maps.Keys(t.schedules)) {
		all = append(all, t.schedules[name])
	}
	return all
}

// lookAgain has the loop look at once.
func (t *topic) lookAgain() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// woken has the loop look at once. It calls settled, unless that is nil, when nothing is left to do
// by the present time of the server, or when a look fails.
func (t *topic) woken(_ string, settled func(next time.Time)) {
	if settled != nil {
		t.mu.Lock()
		ended := t.ended
		if !ended {
			t.settling = append(t.settling, settled)
		}
		t.mu.Unlock()
		if ended {
			settled(time.Time{})
		}
	}
	t.lookAgain()
}

// isSettling returns how many wait until all schedules have settled.
func (t *topic) isSettling() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.settling)
}

// settle tells the first n of those who wait when the topic has something to do again.
func (t *topic) settle(n int, next time.Time) {
	t.mu.Lock()
	settled := t.settling[:n]
	t.settling = t.settling[n:]
	t.mu.Unlock()
	for _, done := range settled {
		done(next)
	}
}

// next returns the earliest time by the server's clock at which a schedule has something to do.
// settled is false if the next look finds more to do now.
func (t *topic) next() (next time.Time, settled bool) {
	own := t.periodic.now()
	for _, s := range t.all() {
		at, settled := s.next(t.shown, own)
		if !settled {
			return time.Time{}, false
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, true
}

// run looks at the schedules until ctx ends. Without a mailbox nobody wakes it. Programs look at
// random times. The first that sees that occurrences are wanted publishes them, and the others see
// that they are there.
func (t *topic) run(ctx context.Context, mailbox *wake.Mailbox) {
	if mailbox != nil {
		t.receiver = mailbox.ReceiveTimed(t.periodic.publisher.Topic(t.name), t.woken)
		defer func() {
			t.receiver.Stop()
			t.mu.Lock()
			t.ended = true
			t.mu.Unlock()
			t.settle(t.isSettling(), time.Time{})
		}()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		settling := t.isSettling()
		answers := t.sayIfSilent()
		again, err := t.look(ctx)
		t.failing = !answers() || t.failing
		if next, settled := t.next(); err != nil || settled && !again {
			t.settle(settling, next)
		}
		if err != nil && ctx.Err() != nil {
			return
		}
		if err != nil && !t.failing {
			t.logger.Error("Cannot look at the schedules in Redis, trying again", err, nil)
		} else if err == nil && t.failing {
			t.logger.Info("Looking at the schedules in Redis again", nil)
		}
		t.failing = err != nil
		t.sayIfDeaf()
		poll := t.periodic.config.Poll
		wait := poll/2 + rand.N(poll)
		if again && err == nil {
			wait = 0
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// sayIfSilent logs if a look lasts longer than Poll, and then once a minute: a client may have no
// timeout. answers ends that, and tells that nothing was logged.
func (t *topic) sayIfSilent() (answers func() bool) {
	began := t.periodic.now()
	var lines atomic.Int64
	stopped := make(chan struct{})
	go func() {
		timer := time.NewTimer(max(t.periodic.config.Poll, time.Second))
		defer timer.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-timer.C:
			}
			lines.Add(1)
			t.logger.Error("Redis has not answered a look at the schedules yet, so they wait", errSlow, watermill.LogFields{"since": began})
			timer.Reset(time.Minute)
		}
	}()
	return func() bool {
		close(stopped)
		return lines.Load() == 0
	}
}

// sayIfDeaf logs once for all topics that nobody can wake the program.
func (t *topic) sayIfDeaf() {
	if t.receiver == nil {
		return
	}
	if err := t.receiver.Denied(); err != nil {
		t.periodic.deaf.Do(func() {
			t.periodic.logger.Info("The Redis user may not subscribe to channels, so a resume of a schedule and a request to run it count after Poll",
				watermill.LogFields{"poll": t.periodic.config.Poll, "err": err.Error()})
		})
	}
}

// looked is how many schedules one call looks at.
const looked = 500

// look looks at the schedules of which the records may ask for something: those that want
// occurrences by now, and all if somebody has amended a schedule. It begins to publish what is
// wanted. again tells that another look may find more to do at once.
func (t *topic) look(ctx context.Context) (again bool, err error) {
	all := t.all()
	if len(all) == 0 {
		return false, nil
	}
	work := rights.Recurrence
	if t.periodic.plain.IntoStreams() {
		work = rights.RecurrenceStreams
	}
	if _, err := t.periodic.permits.Try(ctx, t.queue, work); err != nil {
		return false, err
	}
	now, amended, _, err := t.queue.Schedules(ctx, t.address(ctx), nil)
	if err != nil {
		return false, err
	}
	back := now.Before(t.seen) // then the time for which schedules rest may be longer than they know
	if went := t.shown.Sub(now); went > time.Second {
		t.logger.Info("The server's clock has gone back, and schedules wait for it", watermill.LogFields{"by": went})
	}
	t.shown = now
	if amended == t.amended && !back {
		all = slices.DeleteFunc(all, func(s *schedule) bool { return s.rests(now) })
	}
	for some := range slices.Chunk(all, looked) {
		names := make([]string, len(some))
		for i, s := range some {
			names[i] = s.Name
		}
		read := t.periodic.now()
		now, _, records, err := t.queue.Schedules(ctx, "", names)
		if err != nil {
			return false, err
		}
		if len(records) != len(some) {
			return false, errors.New("schedules: the reply has another number of records")
		}
		amends, err := t.consider(ctx, some, records, serverClock{now, read, t.periodic.now})
		if err != nil {
			return false, err
		}
		again = again || amends
	}
	t.amended = amended
	if now.After(t.seen) || now.Before(t.seen.Add(-queue.MostAhead)) {
		t.seen = now
	}
	return again, nil
}

// address returns the address of the program, if it is to be told now, else "".
func (t *topic) address(ctx context.Context) string {
	if now := t.periodic.now(); t.receiver != nil && now.Sub(t.told) >= queue.ProgramsFor/3 {
		t.told = now
		return t.receiver.Address(ctx)
	}
	return ""
}

// consider does what the records of some schedules ask for.
func (t *topic) consider(ctx context.Context, some []*schedule, records []queue.Recurring, c serverClock) (again bool, err error) {
	var amendments []queue.Amendment
	var theirs []*schedule
	for i, s := range some {
		s.look()
		a := s.follow(records[i], c.server)
		follows := records[i].Alive() && s.version == records[i].Version
		if a.What == "" && follows {
			a = s.comeBack(records[i], t.seen, c.server)
		}
		if a.What != "" {
			a.Name = s.Name
			amendments, theirs = append(amendments, a), append(theirs, s)
		}
		if follows && a.What != queue.ReturnSchedule {
			if stuck := t.publish(s, records[i], c); stuck != nil && a.What == "" {
				amendments, theirs = append(amendments, failed(records[i], stuck)), append(theirs, s)
			}
		}
	}
	if len(amendments) == 0 {
		return false, nil
	}
	done, err := t.queue.AmendNew(ctx, amendments...)
	if err != nil {
		return false, err
	}
	for i, s := range theirs {
		before := records[slices.Index(some, s)]
		switch amendments[i].What {
		case queue.Put:
			s.put(before, done[i])
			again = true
		case queue.ReturnSchedule:
			s.cameBack(amendments[i], done[i])
			again = true
		}
	}
	return again, nil
}

// publish begins to publish what is wanted of a schedule, in a goroutine of its own: a Message that
// hangs delays its own schedule only. Calls of Publish go to Redis together. The error of
// one that hangs is for the record.
func (t *topic) publish(s *schedule, r queue.Recurring, c serverClock) (stuck error) {
	if !s.free(t.periodic.now()) {
		return s.complain(r, c.server)
	}
	pace := s.paceNow()
	plan := s.plan(r, c.server, pace)
	if plan.last != s.last {
		s.last = plan.last
		if plan.last {
			s.logger.Error("Message is slower than the schedule, so only the last of the missed occurrences is published", errLate,
				watermill.LogFields{"message_took": pace.cost})
		}
	}
	if pace.behind && plan.left == 0 {
		s.setBehind(false) // Message is fast enough again
	}
	if len(plan.occurrences) == 0 {
		s.rest = s.restsUntil(r)
		return nil
	}
	s.begin()
	t.periodic.making.Go(func() {
		again, err := s.carryOut(plan, c)
		if waited := s.end(err); waited || again && err == nil || t.isSettling() > 0 {
			t.lookAgain()
		}
		if err != nil {
			t.note(s, failed(r, err))
		}
	})
	return nil
}

// failed is a note in the record of a schedule that this program could not publish an occurrence.
func failed(r queue.Recurring, err error) queue.Amendment {
	return queue.Amendment{What: queue.FailSchedule, Name: r.Name, Seen: r.Version, Error: err.Error()}
}

// noteTimeout is how long a program tries to note a failure. The log has it too.
const noteTimeout = 5 * time.Second

// note writes a failure into the record of its schedule. Redis may be what has failed.
func (t *topic) note(s *schedule, failure queue.Amendment) {
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	if _, err := t.queue.AmendNew(ctx, failure); err != nil {
		s.logger.Debug("Cannot note a failure in the record of the schedule", watermill.LogFields{"err": err.Error()})
	}
}
