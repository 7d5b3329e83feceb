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

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
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
	waiting   []func() // to be called when the loop has looked
	ended     bool     // the loop has ended, and looks no more
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

// woken has the loop look at once, and calls done, unless that is nil, when it has looked.
func (t *topic) woken(_ string, done func()) {
	if done != nil {
		t.mu.Lock()
		ended := t.ended
		if !ended {
			t.waiting = append(t.waiting, done)
		}
		t.mu.Unlock()
		if ended {
			done()
		}
	}
	t.lookAgain()
}

// takeWaiting returns those who wait for a look, once.
func (t *topic) takeWaiting() []func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting
	t.waiting = nil
	return waiting
}

// run looks at the schedules until ctx ends. Without a mailbox nobody wakes it. Programs look at
// random times. The first that sees that occurrences are wanted publishes them, and the others see
// that they are there.
func (t *topic) run(ctx context.Context, mailbox *wake.Mailbox) {
	if mailbox != nil {
		t.receiver = mailbox.Receive(t.periodic.publisher.Topic(t.name), t.woken)
		defer func() {
			t.receiver.Stop()
			t.mu.Lock()
			t.ended = true
			t.mu.Unlock()
			for _, done := range t.takeWaiting() {
				done()
			}
		}()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		waiting := t.takeWaiting()
		answers := t.sayIfSilent()
		again, err := t.look(ctx)
		t.failing = !answers() || t.failing
		for _, done := range waiting {
			done()
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
		s.rest = time.Time{}
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
			t.publish(s, records[i], c)
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
// hangs delays its own schedule only. Calls of Publish go to Redis together.
func (t *topic) publish(s *schedule, r queue.Recurring, c serverClock) {
	if !s.free(t.periodic.now()) {
		s.complain(r, c.server)
		return
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
		return
	}
	s.begin()
	t.periodic.making.Go(func() {
		again, err := s.carryOut(plan, c)
		s.end(err)
		if again && err == nil {
			t.lookAgain()
		}
	})
}

// complain logs that the schedule waits for its own Message, or for another try. It does so when an
// occurrence is late for that, or after a minute, and then once a minute.
func (s *schedule) complain(r queue.Recurring, now time.Time) {
	next := s.series.Next(r.Cursor)
	late := r.Paused.IsZero() && !next.IsZero() && now.After(next.Add(s.jitter))
	own := s.periodic.now()
	s.mu.Lock()
	since, failures := s.since, s.failures
	begun := since.IsZero() || own.Sub(since) >= s.periodic.config.Poll/2 // not in a look that comes at once
	says := late && begun && !s.lateFor.Equal(r.Cursor)                   // once for each occurrence, and then once a minute
	says = says || (late && begun || !since.IsZero() && own.Sub(since) > time.Minute) && (s.told.IsZero() || own.Sub(s.told) >= time.Minute)
	if says {
		s.told = own
	}
	if says && late {
		s.lateFor = r.Cursor
	}
	s.mu.Unlock()
	switch {
	case !says:
	case !since.IsZero():
		s.logger.Error("Message or Publish has not returned, so the schedule waits", errSlow, watermill.LogFields{"since": since, "late": late})
	default:
		s.logger.Error("An occurrence of the schedule is late, because it could not be published", errFailed, watermill.LogFields{"failures": failures})
	}
}

var (
	errSlow   = errors.New("a call is under way")
	errFailed = errors.New("the next try comes after a pause")
)

// comeBack returns the change of a record whose last occurrence was due more than queue.MostAhead
// after now, because the server's clock was ahead. Otherwise the schedule would rest until that
// time. seen is the latest time that the clock has shown.
func (s *schedule) comeBack(r queue.Recurring, seen, now time.Time) (a queue.Amendment) {
	known := calendar.PassedOver(s.series, now.Add(-s.jitter), r.Cursor, r.Waiting)
	if r.Last.After(known) {
		known = r.Last
	}
	for _, at := range r.Waiting {
		if !at.Add(s.jitter).After(seen) && at.After(known) {
			known = at
		}
	}
	ahead := known.Add(s.jitter).Sub(now)
	switch {
	case ahead > queue.MostAhead:
		return queue.Amendment{What: queue.ReturnSchedule, Seen: r.Version, Known: known}
	case ahead > 0 && !s.shifted:
		s.logger.Info("The last occurrence of the schedule, or one that it left out, is after the server's clock, so the schedule waits", watermill.LogFields{"for": ahead})
	}
	s.shifted = ahead > 0
	return a
}

// cameBack logs what became of it.
func (s *schedule) cameBack(a queue.Amendment, done queue.Amended) {
	s.logger.Error("The server's clock was ahead, so the schedule counts from now on; occurrences since then may come again", errAhead,
		watermill.LogFields{"last": a.Known.Add(s.jitter), "taken_back": done.TakenBack})
}

var errAhead = errors.New("the last occurrence is after now")

// silence is how long a program of another definition has to answer.
const silence = 30 * time.Second

// follow decides which definition of the schedule counts: that of the program which began last and
// lives. It returns the change of the record that this program has to make, if any.
//
// A program that begins gives the record its definition. A program that sees a later one leaves the
// schedule to that. Once in a while it asks whether a program of the later definition lives. If
// none answers, the schedule is its own again.
func (s *schedule) follow(r queue.Recurring, now time.Time) (a queue.Amendment) {
	put := queue.Amendment{What: queue.Put, Seen: r.Version, Definition: s.definition, Jitter: s.jitter, First: s.first()}
	switch {
	case r.Removed && r.Version > 0 && s.version != 0:
		if s.left != r.Version {
			s.left = r.Version
			s.logger.Info("The schedule was removed, so this program leaves it; it begins again when a program starts that has it", nil)
		}
		return a
	case r.Damaged:
		s.logger.Error("The record of the schedule in Redis cannot be read, so the schedule begins anew", errDamaged, nil)
		return put
	case !r.Alive():
		return put
	case r.Definition == s.definition:
		switch {
		case s.left != 0:
			s.logger.Info("This program runs the schedule again", watermill.LogFields{"version": r.Version})
		case s.version == 0:
			s.logger.Debug("This program runs a schedule that was begun before", watermill.LogFields{"version": r.Version})
		}
		s.version, s.left, s.asked = r.Version, 0, time.Time{}
		if !r.Asked.IsZero() {
			return queue.Amendment{What: queue.AnswerAsSchedule, Seen: r.Version}
		}
		return a
	case s.version == 0:
		return put
	}
	if s.left != r.Version {
		s.left = r.Version
		s.logger.Info("Another program that began later has another definition of the schedule, which counts", watermill.LogFields{
			"own": s.definition, "counts": r.Definition, "version": r.Version})
	}
	asked := r.Asked
	if asked.After(now.Add(queue.MostAhead)) {
		asked = time.Time{} // the server's clock was ahead when somebody asked, so ask again
	}
	switch silent := max(silence, 4*s.periodic.config.Poll); {
	case !asked.IsZero() && now.Sub(asked) > silent:
		s.logger.Info("No program with the later definition of the schedule answers, so that of this program counts again",
			watermill.LogFields{"own": s.definition, "counted": r.Definition})
		return put
	case asked.IsZero() && s.periodic.now().Sub(s.asked) > 2*silent:
		s.asked = s.periodic.now()
		return queue.Amendment{What: queue.AskSchedule, Seen: r.Version}
	}
	return a
}

var errDamaged = errors.New("damaged record")

// first returns the instant before which there is no occurrence.
func (s *schedule) first() time.Time {
	if s.Start.IsZero() {
		return time.Time{}
	}
	return s.Start.Add(-time.Millisecond)
}

// put notes what became of this program's definition. before is what it replaced.
func (s *schedule) put(before queue.Recurring, done queue.Amended) {
	r := done.Record
	if done.Changed || r.Definition != s.definition {
		return // another program was faster, and the next look sees it
	}
	s.version, s.left = r.Version, 0
	fields := watermill.LogFields{"version": r.Version, "definition": r.Definition}
	switch {
	case r.Version == before.Version: // another program with the same definition was faster
	case before.Alive():
		fields["before"], fields["taken_back"] = before.Definition, done.TakenBack
		s.logger.Info("Replaced the definition of a schedule", fields)
	default:
		s.logger.Info("Began a schedule", fields)
	}
}
