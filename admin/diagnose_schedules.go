package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// lastKnown returns when the last occurrence was due that a schedule has published or passed over,
// as far as that was not to come at the time. It is after now if the server's clock was ahead.
func lastKnown(r queue.Recurring, now time.Time) time.Time {
	last := r.Last
	if defined, err := calendar.Read(r.Definition); err == nil {
		if series, err := defined.Series(); err == nil {
			if at := calendar.PassedOver(series, r.Passed(now), r.Cursor, r.Waiting); at.After(last) {
				last = at
			}
		}
	}
	return last.Add(r.Jitter)
}

// recent is for how long missed occurrences are a problem. A pause that lasts longer may have been
// forgotten.
const recent = 24 * time.Hour

// schedules adds the problems of recurring schedules.
func (d *doctor) schedules(ctx context.Context, all []found) error {
	var names []string
	for _, f := range all {
		if !f.stats.Recurs {
			continue
		}
		names = append(names, f.name)
		if at := time.UnixMilli(int64(f.counts.Counter("returned_at"))); f.stats.Now.Sub(at) < recent {
			d.add(Notice, Clock, Problem{Topic: f.name, Mend: tool("schedules", "ls", f.name),
				Text: fmt.Sprintf("The server's clock was ahead. Recurring schedules of topic %q have come back, the last %s ago, so occurrences may have come twice.",
					f.name, round(f.stats.Now.Sub(at)))})
		}
	}
	recurring, err := d.admin.recurring(ctx, names)
	if err != nil {
		return err
	}
	for i, r := range recurring {
		switch {
		case errors.Is(r.Err, ErrForbidden):
			if err := d.forbid(ctx, fmt.Sprintf("the recurring schedules of topic %q", names[i]), r.Err); err != nil {
				return err
			}
		case r.Err != nil:
			d.add(Critical, Unreadable, Problem{Topic: names[i], Text: fmt.Sprintf("The recurring schedules of topic %q cannot be read: %v.", names[i], r.Err)})
		default:
			d.recurring(names[i], r)
		}
	}
	return nil
}

// alike is the schedules of a topic that have the same problem, and the one that has it for the
// longest time.
type alike struct {
	n     int
	name  string
	since time.Time
	last  *ScheduleError // of that one, while it fails; nil: it does not
}

func (a *alike) take(s Schedule, since time.Time) {
	if a.n++; a.n > 1 && !since.Before(a.since) {
		return
	}
	a.name, a.since, a.last = s.Name, since, nil
	if s.LastError != nil && s.LastError.InRow > 0 {
		a.last = s.LastError
	}
}

// why says what keeps programs from publishing the schedule, "" if nothing is known.
func (a *alike) why(now time.Time) string {
	if a.last == nil {
		return ""
	}
	on := ""
	if a.last.Host != "" {
		on = " on " + a.last.Host
	}
	return fmt.Sprintf(" Its last error, %s ago%s: %q.", round(now.Sub(a.last.At)), on, a.last.Error)
}

// recurring adds the problems of the schedules of a topic, one of a kind, because a program that
// ends concerns all schedules that it has.
func (d *doctor) recurring(topic string, r operate.Recurring) {
	var stopped, asked, paused, missed, unknown, ahead alike
	var why error
	for _, record := range r.Schedules {
		s, err := readSchedule(topic, record)
		if err != nil {
			unknown.take(s, s.Cursor)
			why = err
		}
		switch {
		case !s.Expected.IsZero() && r.Now.Sub(s.Expected) > d.options.Late:
			stopped.take(s, s.Expected)
		case !s.Requested.IsZero() && r.Now.Sub(s.Requested) > d.options.Late:
			asked.take(s, s.Requested)
		}
		if last := lastKnown(record, r.Now); last.Sub(r.Now) > queue.MostAhead {
			ahead.take(s, last)
		}
		if s.Pause != nil {
			paused.take(s, s.Pause.Since)
		}
		if !s.MissedAt.IsZero() && r.Now.Sub(s.MissedAt) < recent {
			missed.take(s, s.MissedAt)
		}
	}
	// text has the schedules and the time, or the reason.
	problem := func(severity Severity, kind ProblemKind, a alike, do, text string, reason any) {
		if a.n == 0 {
			return
		}
		what, mend := fmt.Sprintf("schedule %q of topic %q", a.name, topic), tool("schedules", do, topic, a.name)
		if a.n > 1 {
			what, mend = fmt.Sprintf("%d schedules of topic %q, such as %q", a.n, topic, a.name), tool("schedules", "ls", topic)
		}
		why := ""
		if kind == StoppedSchedule && severity == Critical {
			why = a.why(r.Now)
		}
		d.add(severity, kind, Problem{Topic: topic, weight: a.n, Mend: mend, Text: fmt.Sprintf(text, what, reason) + why})
	}
	lasts := func(a alike) time.Duration { return round(r.Now.Sub(a.since)) }
	problem(Critical, StoppedSchedule, stopped, "show",
		"No program publishes %s, and an occurrence has been due for %s: run a program that has it, or look at its log.", lasts(stopped))
	problem(Critical, StoppedSchedule, asked, "show",
		"Somebody asked for an occurrence of %s %s ago, and no program publishes it: run a program that has it.", lasts(asked))
	problem(Critical, StoppedSchedule, ahead, "show", "The server's clock was ahead: the last occurrence of %s is %s after now, and until then none comes. "+
		"Run a program that has it: it has the schedule come back.", -lasts(ahead))
	problem(Notice, StoppedSchedule, unknown, "show", "It cannot be told whether a program publishes %s: %v.", why)
	forgotten := Notice
	if lasts(paused) > recent {
		forgotten = Warning
	}
	problem(forgotten, PausedSchedule, paused, "resume", "A pause of %s has lasted for %s.", lasts(paused))
	problem(Notice, MissedOccurrences, missed, "show", "Occurrences of %s were missed, which was found %s ago.", lasts(missed))
}
