package periodic

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// complain logs that the schedule waits for its own Message, or for another try. It does so when an
// occurrence is late for that, or after a minute, and then once a minute. If a call has not
// returned, the error is for the record too.
func (s *schedule) complain(r queue.Recurring, now time.Time) (stuck error) {
	next := s.series.Next(r.Cursor)
	late := !r.IsStopped() && !next.IsZero() && now.After(next.Add(s.jitter))
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
		return fmt.Errorf("a call of Message or Publish has not returned after %v", own.Sub(since).Round(time.Second))
	default:
		s.logger.Error("An occurrence of the schedule is late, because it could not be published", errFailed, watermill.LogFields{"failures": failures})
	}
	return nil
}

var (
	errSlow   = errors.New("a call is under way")
	errFailed = errors.New("the next try comes after a pause")
)

// comeBack returns the change of a record whose last occurrence was due more than queue.MostAhead
// after now, because the server's clock was ahead. Otherwise the schedule would rest until that
// time. seen is the latest time that the clock has shown.
func (s *schedule) comeBack(r queue.Recurring, seen, now time.Time) (a queue.Amendment) {
	known := calendar.PassedOver(s.series, r.Passed(now), r.Cursor, r.Waiting)
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
	silent := max(silence, 4*s.periodic.config.Poll)
	if !asked.IsZero() {
		s.expires = asked.Add(silent + time.Millisecond)
	}
	switch {
	case !asked.IsZero() && now.Sub(asked) > silent:
		s.logger.Info("No program with the later definition of the schedule answers, so that of this program counts again",
			watermill.LogFields{"own": s.definition, "counted": r.Definition})
		return put
	case asked.IsZero() && s.periodic.now().Sub(s.asked) > 2*silent:
		s.asked, s.asks = s.periodic.now(), true
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
