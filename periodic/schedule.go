package periodic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// schedule is a Schedule that was added.
type schedule struct {
	Schedule
	planner
	definition string
	periodic   *Periodic
	logger     watermill.LoggerAdapter

	// Only the topic's loop uses these.
	version int64     // that this program follows; 0: it has not looked yet
	left    int64     // version of another program's record, which this program leaves alone
	asked   time.Time // when this program last asked others to answer, by its own clock
	rest    time.Time // until when the record asks for nothing if nobody amends it; zero: look
	asks    bool      // the last look asked whether a program with the later definition lives
	expires time.Time // when that definition counts no more if none answers, by the server's clock; zero: nobody has asked
	shifted bool      // that the server's clock is behind the last occurrence was logged
	last    bool      // that MisfireAll counts as MisfireLast was logged

	mu       sync.Mutex // guards the fields below
	since    time.Time  // since when a plan is carried out; zero: none is
	unseen   bool       // a plan was carried out, and no look has seen since what became of it
	waited   bool       // a look found that a plan was carried out, and did nothing
	failures int        // in a row
	retry    time.Time  // when the next try is, after a failure
	told     time.Time  // when complain last logged; zero: not since an occurrence was published
	lateFor  time.Time  // cursor of the record when it last logged that an occurrence is late
	pace     pace
	costs    [3]time.Duration // of the last calls of Message
	sent     [2]time.Duration // that the last calls of Publish took
	sooner   bool             // a plan was given up for an earlier instant, and none was published since
}

// newSchedule checks a schedule.
func (p *Periodic) newSchedule(s Schedule) (*schedule, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.setDefaults()
	found, err := s.instants()
	if err != nil {
		return nil, err
	}
	text, err := s.define()
	if err != nil {
		return nil, err
	}
	return &schedule{
		Schedule:   s,
		definition: text,
		periodic:   p,
		logger:     p.logger.With(watermill.LogFields{"schedule": s.Name, "topic": s.Topic}),
		planner: planner{series: found, jitter: s.offset(), misfire: s.Misfire,
			within: s.MisfireWithin, ahead: p.config.Ahead},
	}, nil
}

// rests tells whether the record asks for nothing, unless somebody has amended it. Only the topic's
// loop calls it, as the methods that use rest.
func (s *schedule) rests(now time.Time) bool { return s.version != 0 && now.Before(s.rest) }

func (s *schedule) busySince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// look notes that the record was read. If a plan is under way, the loop looks again after it.
func (s *schedule) look() {
	s.rest, s.expires, s.asks = time.Time{}, time.Time{}, false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waited = !s.since.IsZero()
	s.unseen = s.waited
}

// free tells whether a new plan may be carried out: no other one is under way, and no pause after a
// failure lasts.
func (s *schedule) free(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since.IsZero() && !now.Before(s.retry)
}

// begin notes that a plan is carried out.
func (s *schedule) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.unseen = s.periodic.now(), true
}

// mostRetries is after how many failures in a row next leaves the pauses of a schedule out.
const mostRetries = 10

// next returns when the schedule has something to do, by the server's clock, or zero. now and own
// are what that and the program's own clock show. settled is false while a plan is carried out, and
// until a look has seen what became of it. Only the topic's loop calls it.
func (s *schedule) next(now, own time.Time) (next time.Time, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.unseen:
		return next, false
	case s.failures > mostRetries: // its pauses would stop a test's clock each minute
		return next, true
	case own.Before(s.retry):
		return now.Add(s.retry.Sub(own)), true
	case s.asks: // others answer when they look
		return now, true
	case !s.expires.IsZero():
		return s.expires, true
	}
	return s.rest, true
}

// backoff is how long a schedule waits after a failure.
var backoff = redisdelay.ExponentialBackoff(time.Second, time.Minute)

// end notes what became of a plan, and logs a failure and its end. again tells that a look has
// found the plan under way.
func (s *schedule) end(err error) (again bool) {
	s.mu.Lock()
	s.since = time.Time{}
	again, s.waited = s.waited, false
	failures := s.failures
	wait := time.Duration(0)
	if err == nil {
		s.failures, s.retry = 0, time.Time{}
	} else {
		s.failures++
		wait = backoff(s.failures)
		s.retry = s.periodic.now().Add(wait)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		s.logger.Error("Cannot publish the next occurrences of a schedule, trying again", err,
			watermill.LogFields{"failures": failures + 1, "wait": wait})
	case failures > 0:
		s.logger.Info("Publishing the occurrences of the schedule again", watermill.LogFields{"failures": failures})
	}
	return again
}

// paceNow returns what is known of Message by now.
func (s *schedule) paceNow() pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pace
	p.least = min(s.costs[0], s.costs[1], s.costs[2])
	p.cost = s.costs[2] + min(cmp.Or(s.sent[0], s.sent[1]), s.sent[1]) // one slow call of Publish is no sign
	return p
}

// took notes how long a call of Message took.
func (s *schedule) took(cost time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.costs = [3]time.Duration{s.costs[1], s.costs[2], max(cost, 1)}
}

// canSooner tells whether a plan that has left instants out is given up, because Message was much
// faster than the call before: then an earlier instant can be made in time. It does so once until
// an occurrence is published, because the next call may be slow again.
func (s *schedule) canSooner(took, expected time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	can := !s.sooner && took < expected/2
	s.sooner = s.sooner || can
	return can
}

// setBehind notes whether occurrences that cannot be made in time are left out.
func (s *schedule) setBehind(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pace.behind = is
}

const (
	// chunk is how many occurrences go into one call of Publish at most.
	chunk = 100

	// chunkFor is how long a chunk is made, at most. Its occurrences are needed in Redis.
	chunkFor = 100 * time.Millisecond
)

// serverClock is what the server's clock shows, as far as a program can tell: a little more.
type serverClock struct {
	server, read time.Time // what it showed, and when that was asked for by the program's own clock
	now          func() time.Time
}

// at returns what the server's clock shows at a time of the program's own clock.
func (c serverClock) at(own time.Time) time.Time { return c.server.Add(own.Sub(c.read)) }

// bundle is the occurrences that go to Redis next.
type bundle struct {
	messages []*message.Message
	planned  []planned
	until    time.Time // when they are sent at the latest, by the program's own clock
}

// made is an occurrence that was made, or why it could not be.
type made struct {
	planned
	msg   *message.Message
	began time.Time // when Message was called
	took  time.Duration
	err   error
}

// carryOut publishes the occurrences of a plan, as far as it comes. It ends after the interval of
// looks, because the record may be another by then. again tells that the schedule wants another
// look at once.
//
// An occurrence that was made is sent after a moment, whatever the next call of Message takes. So
// its guard finds it in time, although an earlier one of the plan was made for long.
func (s *schedule) carryOut(p plan, c serverClock) (again bool, err error) {
	next, results := s.makeAll(p.occurrences)
	defer func() {
		close(next)
		for range results { // until Message has returned
		}
	}()
	began := c.now()
	var b bundle
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for left, making := len(p.occurrences), false; ; {
		if !making && left > 0 {
			next <- struct{}{}
			making = true
		}
		select {
		case m := <-results:
			if m.err != nil {
				_, err := s.send(b)
				return false, errors.Join(fmt.Errorf("occurrence %s: %w", m.at.UTC().Format(time.RFC3339), m.err), err)
			}
			if left == len(p.occurrences) && p.left > 0 && s.canSooner(m.took, p.cost) {
				return true, nil
			}
			left, making = left-1, false
			b.add(m, c)
		case <-timer.C:
		}
		now := c.now()
		over := now.Sub(began) > s.periodic.config.Poll
		if left == 0 || over || len(b.messages) == chunk || !now.Before(b.until) {
			goes, err := s.send(b)
			if b = (bundle{}); err != nil || !goes {
				return err == nil, err
			}
		}
		switch {
		case left == 0:
			return p.more, nil
		case over && !making:
			return true, nil
		case len(b.messages) > 0:
			timer.Reset(b.until.Sub(c.now()))
		}
	}
}

// add adds an occurrence. The first one says until when more may be made: for chunkFor, or for half
// of the time in which it has to be in Redis.
func (b *bundle) add(m made, c serverClock) {
	if len(b.messages) == 0 {
		wait := chunkFor
		if time := m.latest.Sub(c.at(m.began)); time > 0 {
			wait = min(wait, time/2)
		}
		b.until = m.began.Add(wait)
	}
	b.messages, b.planned = append(b.messages, m.msg), append(b.planned, m.planned)
}

// makeAll makes occurrences one after the other, in a goroutine of its own, until one fails. It
// makes one for each element of next, and ends when that is closed and Message has returned.
func (s *schedule) makeAll(occurrences []planned) (next chan<- struct{}, results <-chan made) {
	asked, out := make(chan struct{}), make(chan made, 1)
	go func() {
		defer close(out)
		for _, o := range occurrences {
			if _, open := <-asked; !open {
				return
			}
			m := made{planned: o, began: s.periodic.now()}
			m.msg, m.err = s.make(o)
			m.took = s.periodic.now().Sub(m.began)
			s.took(m.took)
			out <- m
			if m.err != nil {
				return
			}
		}
	}()
	return asked, out
}

// send publishes a bundle, and says what became of it. goes tells that the rest of the plan may
// follow.
func (s *schedule) send(b bundle) (goes bool, err error) {
	if len(b.messages) == 0 {
		return true, nil
	}
	began := s.periodic.now()
	err = s.publish(b.messages)
	s.mu.Lock()
	s.sent = [2]time.Duration{s.sent[1], max(s.periodic.now().Sub(began), 1)}
	s.mu.Unlock()
	// An occurrence that is known to be there counts, even if a later part has failed.
	passed, missed := 0, int64(0)
	by := map[queue.Verdict]int{}
	for _, o := range b.planned {
		by[o.guard.Verdict]++
		if v := o.guard.Verdict; v == queue.Passed || v == queue.Cancelled {
			passed++
			missed += o.missed
		}
	}
	if passed+by[queue.Repeated]+by[queue.Faster] > 0 {
		s.mu.Lock()
		s.told, s.sooner = time.Time{}, false
		s.mu.Unlock()
	}
	if missed > 0 {
		s.logger.Info("Occurrences of the schedule were missed: their times passed before they were in Redis", watermill.LogFields{
			"missed": missed, "misfire": s.Misfire})
	}
	if err != nil {
		return false, err
	}
	return s.judge(b.planned, by)
}

// judge logs what the guards of a call have left out.
func (s *schedule) judge(occurrences []planned, by map[queue.Verdict]int) (goes bool, err error) {
	refused := by[queue.Changed] + by[queue.IsPaused] + by[queue.Apart] + by[queue.Early] + by[queue.Late]
	fields := watermill.LogFields{"refused": refused, "first": occurrences[0].at.UTC().Format(time.RFC3339Nano), "message_took": s.paceNow().cost}
	switch {
	case by[queue.Undecided] > 0:
		return false, errLostGuard
	case by[queue.Late] > 0:
		s.setBehind(true)
		s.logger.Error("Occurrences of the schedule came too late, so it goes on with the first that can be made in time", errLate, fields)
	case by[queue.Changed]+by[queue.IsPaused] > 0:
		s.logger.Info("The schedule was paused or changed while its occurrences were made, so they are left out", fields)
	case by[queue.Early] > 0:
		s.logger.Info("The server's clock has gone back while occurrences of the schedule were made, so they are made anew", fields)
	case by[queue.Apart] > 0:
		s.logger.Info("The record of the schedule has changed while its occurrences were made, so they are made anew", fields)
	case by[queue.Faster] > 0:
		s.logger.Debug("Another program was faster with occurrences of the schedule", watermill.LogFields{"occurrences": by[queue.Faster]})
	}
	return refused == 0, nil
}

var (
	errLate      = errors.New("a call of Message or Publish took too long")
	errLostGuard = errors.New("publish: a message has come to Redis without the context that it had when it was given to Config.Publisher," +
		" or not at all: a decorator has to pass on each message with its context")
)

// dividing are the errors of a call of Publish that need not concern all of its messages.
var dividing = []error{redisdelay.ErrPublishTooLarge, redisdelay.ErrTopicFull,
	redisdelay.ErrInvalidMetadata, redisdelay.ErrPastExpiry, redisdelay.ErrMessageTooLarge}

// publish publishes messages. If they are too many or too large for one call, or for the room in
// the topic, or one of them is refused, it publishes the first half before the others. So what is
// due next comes first, and one that is refused keeps none that comes before it.
func (s *schedule) publish(messages []*message.Message) (err error) {
	if exited := guard.Apart("Publisher", func() { err = s.periodic.config.Publisher.Publish(s.Topic, messages...) }); exited != nil {
		return exited
	}
	half := len(messages) / 2
	divides := func(why error) bool { return errors.Is(err, why) }
	if half == 0 || !slices.ContainsFunc(dividing, divides) {
		return guard.Sound(err)
	}
	if err := s.publish(messages[:half]); err != nil {
		return err
	}
	return s.publish(messages[half:])
}

// make returns the message of an occurrence.
func (s *schedule) make(o planned) (*message.Message, error) {
	occurrence := Occurrence{Schedule: s.Name, Topic: s.Topic, At: o.at.In(s.Location)}
	if !o.previous.IsZero() {
		occurrence.Previous = o.previous.In(s.Location)
	}
	var msg *message.Message
	var err error
	if exited := guard.Apart("Message", func() { msg, err = s.Message(occurrence) }); exited != nil {
		return nil, exited
	}
	if err = guard.Sound(err); err != nil {
		return nil, fmt.Errorf("make message: %w", err)
	}
	if msg == nil {
		return nil, errors.New("make message: neither a message nor an error")
	}
	stamped := occurrence.stamp(msg, o.due)
	stamped.SetContext(inside.WithGuard(context.Background(), occurrence.ID(), o.guard))
	return stamped, nil
}
