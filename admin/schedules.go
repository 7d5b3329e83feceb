package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Schedule is a recurring schedule of package periodic, as Redis has it.
type Schedule struct {
	Name  string `json:"name"`
	Topic string `json:"topic"`

	// Spec says when, in the time zone Zone. Definition has all that the occurrences follow from,
	// as JSON. Spec and Zone are empty, and Definition is the text in Redis, if that cannot be
	// read.
	Spec       string `json:"spec"`
	Zone       string `json:"zone"`
	Definition string `json:"definition"`

	// Version goes up with each change of the definition, and when the schedule is removed.
	Version int `json:"version"`

	// Cursor is the last instant whose occurrence was published or left out. It may be ahead.
	Cursor time.Time `json:"cursor"`

	// Last is when the last occurrence was due, with its jitter. It is zero if none was. It counts
	// one that somebody asked for, and one that was cancelled by hand.
	Last time.Time `json:"last"`

	// Next is when the next occurrence is due, with its jitter. It is zero if none waits in Redis.
	Next time.Time `json:"next"`

	// Expected is when the first occurrence that is not in Redis yet is due, with its jitter.
	// Programs publish each one before it is due. So if Expected is in the past, no program runs
	// the schedule, or its Message fails. Zero: the schedule is paused or has ended, or Definition
	// cannot be read.
	Expected time.Time `json:"expected"`

	// Waiting is how many occurrences were put into Redis ahead of time, and are not known to be
	// due yet.
	Waiting int `json:"waiting"`

	// Paused is since when the schedule is paused, or zero.
	Paused time.Time `json:"paused"`

	// Requested is when an occurrence was asked for that no program has published yet, or zero.
	Requested time.Time `json:"requested"`

	// Missed is how many instants have passed before their occurrence was in Redis, since the
	// schedule began. A program counts them when it publishes again. MissedAt is when one last did,
	// or zero.
	Missed   int       `json:"missed"`
	MissedAt time.Time `json:"missed_at"`
}

// Schedules returns the recurring schedules of a topic, in order of their names. Of a partitioned
// topic it returns those of all partitions.
//
// Errors wrap ErrNotFound for a topic that does not exist, ErrInvalidTopic, ErrForbidden or
// ErrLayout, or come from ctx or Redis.
func (a *Admin) Schedules(ctx context.Context, topic string) ([]Schedule, error) {
	return over(ctx, a, topic, func(plain string) ([]Schedule, error) { return a.schedules(ctx, plain) }, appendTo)
}

func (a *Admin) schedules(ctx context.Context, topic string) ([]Schedule, error) {
	t, err := a.topic(ctx, topic, rights.Reviewing)
	var found operate.Recurring
	if err == nil {
		found, err = t.AllSchedules(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("schedules: %w", err)
	}
	return readSchedules(topic, found), nil
}

// TopicSchedules is the recurring schedules of a topic.
type TopicSchedules struct {
	Topic     string     `json:"topic"`
	Err       error      `json:"error,omitempty"` // why they could not be read, and all else is zero then; else nil
	Now       time.Time  `json:"now"`             // the server's clock
	Schedules []Schedule `json:"schedules"`       // by name
}

// SchedulesOf returns the recurring schedules of many topics in few round trips, in the order of
// the names. Stats.Recurs tells which topics have some. A topic that does not exist has none.
// Errors come from ctx or Redis.
func (a *Admin) SchedulesOf(ctx context.Context, topics ...string) ([]TopicSchedules, error) {
	found, err := a.recurring(ctx, topics)
	if err != nil {
		return nil, fmt.Errorf("schedules: %w", err)
	}
	all := make([]TopicSchedules, len(topics))
	for i, f := range found {
		all[i] = TopicSchedules{Topic: topics[i], Err: f.Err, Now: f.Now}
		if f.Err == nil {
			all[i].Schedules = readSchedules(topics[i], f)
		}
	}
	return all, nil
}

// recurring returns the schedules of each topic, or the reason why they cannot be read.
func (a *Admin) recurring(ctx context.Context, names []string) ([]operate.Recurring, error) {
	all := make([]operate.Recurring, len(names))
	topics, of, err := a.handles(ctx, names, rights.Reviewing, func(i int, err error) { all[i].Err = err })
	if err != nil {
		return nil, err
	}
	found, err := operate.SchedulesOf(ctx, topics)
	for i, f := range found {
		all[of[i]] = f
	}
	return all, err
}

func readSchedules(topic string, found operate.Recurring) []Schedule {
	schedules := make([]Schedule, len(found.Schedules))
	for i, r := range found.Schedules {
		schedules[i], _ = readSchedule(topic, r) // Definition says what is there
	}
	return schedules
}

// readSchedule returns the schedule of a record. The error says why Expected cannot be told.
func readSchedule(topic string, r queue.Recurring) (s Schedule, err error) {
	s = Schedule{Name: r.Name, Topic: topic, Definition: r.Definition, Version: int(r.Version), Cursor: r.Cursor, Next: r.Next,
		Waiting: len(r.Waiting), Paused: r.Paused, Requested: r.Run, Missed: int(r.Missed), MissedAt: r.Counted}
	if !r.Last.IsZero() {
		s.Last = r.Last.Add(r.Jitter)
	}
	defined, err := calendar.Read(r.Definition)
	if err != nil {
		return s, err
	}
	s.Spec, s.Zone = defined.Spec, defined.Zone
	instants, err := defined.Series()
	if err != nil {
		return s, err
	}
	if next := instants.Next(r.Cursor); !next.IsZero() && s.Paused.IsZero() {
		s.Expected = next.Add(r.Jitter).Local()
	}
	return s, nil
}

// PauseSchedule stops a recurring schedule in all programs, until ResumeSchedule, even after a
// restart. It takes its waiting occurrences back, and returns how many. An occurrence that is due
// already is delivered. Instants that pass meanwhile are left out, and do not count as missed.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) PauseSchedule(ctx context.Context, topic, name string) (takenBack int, err error) {
	_, takenBack, err = a.amend(ctx, topic, queue.PauseSchedule, name)
	return takenBack, err
}

// ResumeSchedule ends PauseSchedule, and wakes the programs. The schedule goes on with the next
// instant. It does nothing if the schedule is not paused.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) ResumeSchedule(ctx context.Context, topic, name string) error {
	_, _, err := a.amend(ctx, topic, queue.ResumeSchedule, name)
	return err
}

// RunSchedule asks for one occurrence of a recurring schedule now, even if it is paused, and
// returns its instant. It wakes the programs that run the schedule, and one publishes it. As long
// as none has, further calls ask for the same one.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) RunSchedule(ctx context.Context, topic, name string) (at time.Time, err error) {
	r, _, err := a.amend(ctx, topic, queue.RunSchedule, name)
	return r.Run, err
}

// RemoveSchedule removes a recurring schedule, takes its waiting occurrences back, and returns how
// many. Programs that run it leave it. It begins anew when a program starts that has it, so remove
// it from the programs first.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) RemoveSchedule(ctx context.Context, topic, name string) (takenBack int, err error) {
	_, takenBack, err = a.amend(ctx, topic, queue.RemoveSchedule, name)
	return takenBack, err
}

func (a *Admin) amend(ctx context.Context, topic string, what queue.Amend, name string) (r queue.Recurring, takenBack int, err error) {
	t, err := a.topic(ctx, topic, rights.Amending)
	if err == nil {
		r, takenBack, err = t.AmendSchedule(ctx, what, name)
	}
	if err != nil {
		return r, 0, fmt.Errorf("%s schedule: %w", what, err)
	}
	return r, takenBack, nil
}
