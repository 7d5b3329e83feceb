package periodic

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	mostWaiting = 1000   // occurrences of a schedule that wait in Redis, at most
	mostPlanned = 1000   // occurrences of one plan, at most
	mostCounted = 10_000 // missed instants that are counted one by one
)

// planned is an occurrence that is to be published now.
type planned struct {
	at, due, previous time.Time
	latest            time.Time // when the guard takes it at the latest
	missed            int64     // instants that count as missed if the guard takes it
	guard             *queue.Guard
}

// plan is what is to be published now, in order.
type plan struct {
	occurrences []planned
	more        bool          // another plan follows at once
	left        int64         // instants left out because Message takes too long for them
	cost        time.Duration // that an occurrence was expected to take
	last        bool          // MisfireAll counts as MisfireLast, because Message is slower than the period
}

// pace is what is known of how long an occurrence takes to be made and sent.
type pace struct {
	cost   time.Duration // of the last Message, and the faster of the last two calls of Publish
	least  time.Duration // the shortest of the last three; 0: there were fewer
	behind bool          // an occurrence came too late: those that cannot be made in time are left out
}

// reach returns the first time at which an occurrence can be in Redis. Some time is added to what
// the last one took.
func (p pace) reach(now time.Time) time.Time {
	return now.Add(p.cost + p.cost/4 + 20*time.Millisecond)
}

// planner makes plans for a schedule. It is pure.
type planner struct {
	series  calendar.Series
	jitter  time.Duration
	misfire Misfire
	within  time.Duration // 0: no limit
	ahead   time.Duration
}

// plan returns which occurrences are to be published next, in order, when the record of the
// schedule is r and the server's clock shows now. Each one's guard follows from the one before, so
// all programs make the same plan or fail at a guard.
func (p planner) plan(r queue.Recurring, now time.Time, pace pace) (found plan) {
	found.cost = pace.cost
	add := func(o planned) { found.occurrences = append(found.occurrences, o) }
	if !r.Run.IsZero() {
		add(planned{at: r.Run, due: now, latest: now, previous: p.before(r), guard: queue.AskedFor(r.Version)})
	}
	waits := 0
	for _, at := range r.Waiting {
		if at.Add(p.jitter).After(now) {
			waits++
		}
	}
	if r.IsStopped() || waits > mostWaiting/2 || waits > 0 && r.Cursor.Add(p.jitter).After(now.Add(p.ahead/2)) {
		return found
	}
	after, missed := r.Cursor, int64(0)
	previous := time.Time{}
	if p.isInstant(r.Cursor) {
		previous = r.Cursor
	}
	follow := func(at, latest time.Time) {
		add(planned{at: at, due: at.Add(p.jitter), latest: latest, previous: previous, missed: missed,
			guard: queue.Follows(r.Version, now, after, latest, missed)})
		after, previous, missed = at, at, 0
	}

	// Occurrences whose due time has passed were missed.
	passed, reach := now.Add(-p.jitter), pace.reach(now)
	at, late := p.missed(r.Cursor, passed)
	if p.misfire == MisfireAll && late.slower(pace.least) {
		p.misfire, found.last = MisfireLast, true
		at, late = p.missed(r.Cursor, passed)
	}
	missed = late.dropped
	for _, instant := range late.instants {
		if len(found.occurrences) >= mostPlanned {
			found.more = true
			return found
		}
		missed++
		if latest := p.valid(instant); pace.behind && latest.Before(reach) {
			found.left++
		} else {
			follow(instant, latest)
		}
	}
	if pace.behind {
		reach = reach.Add(time.Duration(len(found.occurrences)) * reach.Sub(now)) // those come first
		left := int64(0)
		at, left = p.leave(at, reach.Add(-p.jitter))
		found.left, missed = found.left+left, missed+left
	}
	for first := len(found.occurrences); !at.IsZero(); at = p.series.Next(at) {
		due := at.Add(p.jitter)
		if published := len(found.occurrences) - first; published > 0 && due.After(now.Add(p.ahead)) || waits+published >= mostWaiting {
			break
		}
		if len(found.occurrences) >= mostPlanned {
			found.more = true
			return found
		}
		follow(at, due)
	}
	return found
}

// leave returns the first instant from at on that is not before a time, and how many come before
// it. About 10,000 are counted.
func (p planner) leave(at, before time.Time) (first time.Time, left int64) {
	for ; !at.IsZero() && at.Before(before); at = p.series.Next(at) {
		if left++; left == mostCounted {
			return p.series.Next(before.Add(-time.Millisecond)), left
		}
	}
	return at, left
}

// restsUntil returns until when the plan for a record is empty, as it is now.
func (p planner) restsUntil(r queue.Recurring) time.Time {
	if r.IsStopped() || p.series.Next(r.Cursor).IsZero() {
		return r.Cursor.AddDate(1000, 0, 0)
	}
	rest := r.Cursor.Add(-p.ahead / 2)
	if enough := len(r.Waiting) - mostWaiting/2; enough > 0 && r.Waiting[enough-1].After(rest) {
		rest = r.Waiting[enough-1]
	}
	return rest.Add(p.jitter)
}

// late is what was missed.
type late struct {
	instants []time.Time // to be published
	dropped  int64       // others, before those
}

// slower tells whether a Message that takes so long can never catch up with missed occurrences that
// are all published.
func (l late) slower(cost time.Duration) bool {
	n := len(l.instants) - 1
	return n > 0 && cost > l.instants[n].Sub(l.instants[0])/time.Duration(n)
}

// missed returns what was missed after the cursor and until now, and the first instant after it.
func (p planner) missed(cursor, passed time.Time) (next time.Time, l late) {
	oldest := time.Time{} // instants up to this one do not count any more
	if p.within > 0 {
		oldest = passed.Add(-p.within)
	}
	at := p.series.Next(cursor)
	for ; !at.IsZero() && !at.After(passed) && len(l.instants) <= mostPlanned; at = p.series.Next(at) {
		if l.dropped >= mostCounted {
			if at = p.jump(at, passed, oldest); at.IsZero() || at.After(passed) {
				break
			}
		}
		l.add(p.misfire, at, oldest)
	}
	return at, l
}

// jump returns the first missed instant, from at on, that may be published. It is for a schedule of
// which so many were dropped that the rest is not counted one by one.
func (p planner) jump(at, passed, oldest time.Time) time.Time {
	from := at.Add(-time.Millisecond)
	switch {
	case p.misfire == MisfireSkip:
		from = passed
	case p.misfire == MisfireLast:
		return calendar.Last(p.series, from, passed)
	case from.Before(oldest):
		from = oldest
	}
	return p.series.Next(from)
}

// add takes one missed instant in.
func (l *late) add(misfire Misfire, at, oldest time.Time) {
	switch {
	case misfire == MisfireSkip || !at.After(oldest):
		l.dropped++
	case misfire == MisfireLast:
		l.dropped += int64(len(l.instants))
		l.instants = []time.Time{at}
	default:
		l.instants = append(l.instants, at)
	}
}

// valid returns until when a missed instant is to be published as such. Later, another plan would
// differ.
func (p planner) valid(instant time.Time) time.Time {
	if p.misfire == MisfireLast {
		if next := p.series.Next(instant); !next.IsZero() {
			return next.Add(p.jitter)
		}
	}
	if p.within > 0 {
		return instant.Add(p.jitter).Add(p.within)
	}
	return instant.AddDate(100, 0, 0)
}

// isInstant tells whether the series has an instant.
func (p planner) isInstant(t time.Time) bool {
	return p.series.Next(t.Add(-time.Millisecond)).Equal(t)
}

// before returns the last occurrence that was published and whose instant was before a request to
// run, or zero if that is not known.
func (p planner) before(r queue.Recurring) (found time.Time) {
	for _, at := range append(r.Waiting, r.Cursor) {
		if at.Before(r.Run) && at.After(found) && p.isInstant(at) {
			found = at
		}
	}
	return found
}
