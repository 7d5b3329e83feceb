package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
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

	// Next is when the next occurrence is due, with its jitter. It is zero if none waits in Redis.
	Next time.Time `json:"next"`

	// Waiting is how many occurrences were put into Redis ahead of time, and are not known to be
	// due yet.
	Waiting int `json:"waiting"`

	// Paused is since when the schedule is paused, or zero.
	Paused time.Time `json:"paused"`

	// Requested is when an occurrence was asked for that no program has published yet, or zero.
	Requested time.Time `json:"requested"`

	// Missed is how many instants have passed before their occurrence was in Redis, since the
	// schedule began.
	Missed int `json:"missed"`
}

// MarshalJSON implements json.Marshaler.
func (s Schedule) MarshalJSON() ([]byte, error) { return object(s) }

// Schedules returns the recurring schedules of a topic, in order of their names.
//
// Errors wrap ErrNotFound for a topic that does not exist, ErrInvalidTopic, ErrForbidden or
// ErrLayout, or come from ctx or Redis.
func (a *Admin) Schedules(ctx context.Context, topic string) ([]Schedule, error) {
	t, err := a.topic(ctx, topic, queue.Reviewing)
	var all []queue.Recurring
	if err == nil {
		all, err = t.AllSchedules(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("schedules: %w", err)
	}
	schedules := make([]Schedule, len(all))
	for i, r := range all {
		schedules[i] = readSchedule(topic, r)
	}
	return schedules, nil
}

func readSchedule(topic string, r queue.Recurring) Schedule {
	s := Schedule{Name: r.Name, Topic: topic, Definition: r.Definition, Version: int(r.Version), Cursor: r.Cursor, Next: r.Next,
		Waiting: len(r.Waiting), Paused: r.Paused, Requested: r.Run, Missed: int(r.Missed)}
	var definition struct{ Spec, Zone string }
	if json.Unmarshal([]byte(r.Definition), &definition) == nil { // else Definition says what is there
		s.Spec, s.Zone = definition.Spec, definition.Zone
	}
	return s
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

// ResumeSchedule ends PauseSchedule. The schedule goes on with the next instant, once a program has
// looked at it: see periodic.Config.Poll. It does nothing if the schedule is not paused. Errors
// wrap ErrNotFound, or come from ctx or Redis.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) ResumeSchedule(ctx context.Context, topic, name string) error {
	_, _, err := a.amend(ctx, topic, queue.ResumeSchedule, name)
	return err
}

// RunSchedule asks for one occurrence of a recurring schedule now, even if it is paused, and
// returns its instant. A program that runs the schedule publishes it when it next looks: see
// periodic.Config.Poll. As long as none has, further calls ask for the same one.
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
	t, err := a.topic(ctx, topic, queue.Amending)
	if err == nil {
		r, takenBack, err = t.AmendSchedule(ctx, what, name)
	}
	if err != nil {
		return r, 0, fmt.Errorf("%s schedule: %w", what, err)
	}
	return r, takenBack, nil
}
