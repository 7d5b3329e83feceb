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
	guard             queue.Guard
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
// all programs make the same plan or fail at a guard. more tells that another plan follows at once.
func (p planner) plan(r queue.Recurring, now time.Time) (plan []planned, more bool) {
	if !r.Run.IsZero() {
		plan = append(plan, planned{at: r.Run, due: now, previous: p.before(r), guard: queue.AskedFor(r.Version)})
	}
	waits := 0
	for _, at := range r.Waiting {
		if at.Add(p.jitter).After(now) {
			waits++
		}
	}
	if !r.Paused.IsZero() || waits > mostWaiting/2 || waits > 0 && r.Cursor.Add(p.jitter).After(now.Add(p.ahead/2)) {
		return plan, false
	}
	after, missed := r.Cursor, int64(0)
	previous := time.Time{}
	if p.isInstant(r.Cursor) {
		previous = r.Cursor
	}
	add := func(at, latest time.Time) {
		plan = append(plan, planned{at: at, due: at.Add(p.jitter), previous: previous,
			guard: queue.Follows(r.Version, after, latest, missed)})
		after, previous, missed = at, at, 0
	}

	// Occurrences whose due time has passed were missed.
	passed := now.Add(-p.jitter)
	at, late := p.missed(r.Cursor, passed)
	missed = late.dropped
	for _, instant := range late.instants {
		if len(plan) >= mostPlanned {
			return plan, true
		}
		missed++
		add(instant, p.valid(instant))
	}
	for first := len(plan); !at.IsZero(); at = p.series.Next(at) {
		due := at.Add(p.jitter)
		if published := len(plan) - first; published > 0 && due.After(now.Add(p.ahead)) || waits+published >= mostWaiting {
			break
		}
		if len(plan) >= mostPlanned {
			return plan, true
		}
		add(at, due)
	}
	return plan, false
}

// restsUntil returns until when the plan for a record is empty, as it is now.
func (p planner) restsUntil(r queue.Recurring) time.Time {
	if !r.Paused.IsZero() || p.series.Next(r.Cursor).IsZero() {
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
