package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
)

// recent is for how long missed occurrences are a problem. A pause that lasts longer may have been
// forgotten.
const recent = 24 * time.Hour

// schedules adds the problems of recurring schedules.
func (d *doctor) schedules(ctx context.Context, all []found) error {
	var names []string
	for _, f := range all {
		if f.stats.Recurs {
			names = append(names, f.name)
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
}

func (a *alike) take(name string, since time.Time) {
	if a.n++; a.n == 1 || since.Before(a.since) {
		a.name, a.since = name, since
	}
}

// recurring adds the problems of the schedules of a topic, one of a kind, because a program that
// ends concerns all schedules that it has.
func (d *doctor) recurring(topic string, r operate.Recurring) {
	var stopped, asked, paused, missed, unknown alike
	var why error
	for _, record := range r.Schedules {
		s, err := readSchedule(topic, record)
		if err != nil {
			unknown.take(s.Name, s.Cursor)
			why = err
		}
		switch {
		case !s.Expected.IsZero() && r.Now.Sub(s.Expected) > d.options.Late:
			stopped.take(s.Name, s.Expected)
		case !s.Requested.IsZero() && r.Now.Sub(s.Requested) > d.options.Late:
			asked.take(s.Name, s.Requested)
		}
		if !s.Paused.IsZero() {
			paused.take(s.Name, s.Paused)
		}
		if !s.MissedAt.IsZero() && r.Now.Sub(s.MissedAt) < recent {
			missed.take(s.Name, s.MissedAt)
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
		d.add(severity, kind, Problem{Topic: topic, weight: a.n, Mend: mend, Text: fmt.Sprintf(text, what, reason)})
	}
	lasts := func(a alike) time.Duration { return round(r.Now.Sub(a.since)) }
	problem(Critical, StoppedSchedule, stopped, "show",
		"No program publishes %s, and an occurrence has been due for %s: run a program that has it, or look at its log.", lasts(stopped))
	problem(Critical, StoppedSchedule, asked, "show",
		"Somebody asked for an occurrence of %s %s ago, and no program publishes it: run a program that has it.", lasts(asked))
	problem(Notice, StoppedSchedule, unknown, "show", "It cannot be told whether a program publishes %s: %v.", why)
	forgotten := Notice
	if lasts(paused) > recent {
		forgotten = Warning
	}
	problem(forgotten, PausedSchedule, paused, "resume", "A pause of %s has lasted for %s.", lasts(paused))
	problem(Notice, MissedOccurrences, missed, "show", "Occurrences of %s were missed, which was found %s ago.", lasts(missed))
}
