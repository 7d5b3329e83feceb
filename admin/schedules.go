package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

	Version int       `json:"version"` // goes up with each change, and with the removal
	Cursor  time.Time `json:"cursor"`  // last instant that was published or left out; may be ahead

	// Last is when the last occurrence was due, with its jitter. It is zero if none was. It counts
	// one that somebody asked for, and one that was cancelled by hand.
	Last time.Time `json:"last"`

	Next time.Time `json:"next"` // when the next one is due, with its jitter; zero if none waits

	// Expected is when the first occurrence that is not in Redis yet is due, with its jitter.
	// Programs publish each one before it is due. So if Expected is in the past, no program runs
	// the schedule, or its Message fails. Zero: the schedule is paused until a resume, or has
	// ended, or Definition cannot be read.
	Expected time.Time `json:"expected"`

	Waiting   int       `json:"waiting"`   // occurrences in Redis that are not known to be due yet
	Requested time.Time `json:"requested"` // when one was asked for that is not published yet, or zero

	// Pause is the pause of the schedule, nil if there is none.
	Pause *Pause `json:"pause,omitempty"`

	// LastError is what last kept a program from publishing an occurrence, nil if nothing did. It
	// stays after the schedule works again: InRow is 0 then.
	LastError *ScheduleError `json:"last_error,omitempty"`

	// Missed is how many instants have passed before their occurrence was in Redis, since the
	// schedule began. A program counts them when it publishes again. MissedAt is when one last did,
	// or zero.
	Missed   int       `json:"missed"`
	MissedAt time.Time `json:"missed_at"`
}

// ScheduleError is why a program could not publish an occurrence of a recurring schedule.
type ScheduleError struct {
	At    time.Time `json:"at"`
	Host  string    `json:"host,omitempty"` // of the program, "" if it does not know its name
	Error string    `json:"error"`          // such as that of Schedule.Message, at most 512 bytes
	InRow int       `json:"in_row"`         // failures of all programs since one was last published
}

// UpcomingFrom returns from when on instants of the schedule come: later than now if a pause with
// an end lasts until then. comes is false if none do until a resume.
func (s Schedule) UpcomingFrom(now time.Time) (from time.Time, comes bool) {
	switch {
	case s.Pause == nil:
		return now, true
	case s.Pause.Until.After(now):
		return s.Pause.Until, true
	}
	return now, !s.Pause.Until.IsZero()
}

// WhyLate returns in words why an occurrence that is due is not in Redis, as far as is known.
func (s Schedule) WhyLate() string {
	if s.LastError != nil && s.LastError.InRow > 0 {
		return "the programs that run the schedule fail"
	}
	return "no program runs the schedule, or its Message has not returned"
}

// TopicSchedules is the recurring schedules of a topic.
type TopicSchedules struct {
	Topic     string     `json:"topic"`
	Err       error      `json:"error,omitempty"` // why they could not be read, else nil
	Now       time.Time  `json:"now"`             // the server's clock
	Schedules []Schedule `json:"schedules"`       // by name
}

// Schedules returns the recurring schedules of topics in few round trips, in the order of the names
// and then of the schedules. Of a partitioned topic it returns those of all partitions.
// Stats.Recurs tells which topics have some. If the schedules of a topic cannot be read,
// TopicSchedules.Err says why, such as ErrNotFound. Other errors come from ctx or Redis.
func (a *Admin) Schedules(ctx context.Context, topics ...string) ([]TopicSchedules, error) {
	all, err := a.schedules(ctx, topics)
	if err == nil {
		err = a.schedulesElsewhere(ctx, all)
	}
	if err != nil {
		return nil, fmt.Errorf("schedules: %w", err)
	}
	return all, nil
}

// schedules returns the schedules of plain topics. A topic that does not exist has none.
func (a *Admin) schedules(ctx context.Context, topics []string) ([]TopicSchedules, error) {
	found, err := a.recurring(ctx, topics)
	if err != nil {
		return nil, err
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

// schedulesElsewhere completes the topics without schedules that are not in the registry: they have
// partitions, or do not exist.
func (a *Admin) schedulesElsewhere(ctx context.Context, all []TopicSchedules) error {
	var none []string
	for _, s := range all {
		if s.Err == nil && len(s.Schedules) == 0 {
			none = append(none, s.Topic)
		}
	}
	if len(none) == 0 {
		return nil
	}
	listed, err := queue.ListedOf(ctx, a.client, a.config.KeyPrefix, none)
	if err != nil && !errors.Is(err, ErrForbidden) {
		return err
	}
	for i, s := range all {
		if slices.Contains(none, s.Topic) && !slices.Contains(listed, s.Topic) {
			if all[i], err = a.unlisted(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlisted returns the schedules of a topic that is not in the registry, and has none itself.
func (a *Admin) unlisted(ctx context.Context, s TopicSchedules) (TopicSchedules, error) {
	t, err := a.handle(s.Topic)
	if err == nil {
		_, err = t.Existing(ctx)
	}
	if !errors.Is(err, ErrNotFound) {
		s.Err = err
		return s, nil
	}
	missing := err
	parts, err := a.parts(ctx, s.Topic)
	if err != nil && !errors.Is(err, ErrForbidden) {
		return s, err
	}
	found, err := a.schedules(ctx, parts)
	if err != nil {
		return s, err
	}
	if len(found) == 0 {
		return TopicSchedules{Topic: s.Topic, Err: missing}, nil
	}
	for _, part := range found {
		if part.Err != nil {
			s.Err = errors.Join(s.Err, aboutTopic(part.Topic, part.Err))
		}
		s.Schedules = append(s.Schedules, part.Schedules...)
	}
	return s, nil
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
		Waiting: len(r.Waiting), Requested: r.Run, Missed: int(r.Missed), MissedAt: r.Counted}
	if !r.Last.IsZero() {
		s.Last = r.Last.Add(r.Jitter)
	}
	if !r.Paused.IsZero() {
		s.Pause = &Pause{Since: r.Paused, By: r.By, Why: r.Why, Until: r.Until}
	}
	if f := r.Trouble; !f.At.IsZero() {
		s.LastError = &ScheduleError{At: f.At, Host: f.Host, Error: f.Error, InRow: f.InRow}
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
	if next := instants.Next(r.Cursor); !next.IsZero() && !r.IsStopped() {
		s.Expected = next.Add(r.Jitter).Local()
	}
	return s, nil
}

// PauseSchedule stops a recurring schedule in all programs, until ResumeSchedule or for
// PauseOptions.For, even after a restart. It takes its waiting occurrences back, and returns how
// many. One that is due already is delivered. Instants that pass meanwhile are left out, and do not
// count as missed. A second PauseSchedule keeps Since, and replaces all else. The topic is a plain
// one, as Schedule.Topic has it. Errors wrap ErrInvalidArgument for wrong PauseOptions: its Scope
// is for topics and groups, and has to be zero.
func (a *Admin) PauseSchedule(ctx context.Context, topic, name string, o PauseOptions) (p Pause, takenBack int, err error) {
	if err = o.check(); err == nil && o.Scope != (Scope{}) {
		err = fmt.Errorf("%w: Scope is %v, want none for a schedule", ErrInvalidArgument, o.Scope)
	}
	if err != nil {
		return p, 0, fmt.Errorf("pause schedule: %w", err)
	}
	r, takenBack, err := a.amend(ctx, topic, queue.Amendment{What: queue.PauseSchedule, Name: name, For: o.For, By: o.By, Why: o.Why})
	return Pause{Since: r.Paused, By: r.By, Why: r.Why, Until: r.Until}, takenBack, err
}

// ResumeSchedule ends PauseSchedule, and wakes the programs. The schedule goes on with the next
// instant. It does nothing if the schedule is not paused. The topic is a plain one.
func (a *Admin) ResumeSchedule(ctx context.Context, topic, name string) error {
	_, _, err := a.amend(ctx, topic, queue.Amendment{What: queue.ResumeSchedule, Name: name})
	return err
}

// RunSchedule asks for one occurrence of a recurring schedule now, even if it is paused, and
// returns its instant. It wakes the programs that run the schedule, and one publishes it. As long
// as none has, further calls ask for the same one. The topic is a plain one.
func (a *Admin) RunSchedule(ctx context.Context, topic, name string) (at time.Time, err error) {
	r, _, err := a.amend(ctx, topic, queue.Amendment{What: queue.RunSchedule, Name: name})
	return r.Run, err
}

// RemoveSchedule removes a recurring schedule, takes its waiting occurrences back, and returns how
// many. Programs that run it leave it. It begins anew when a program starts that has it, so remove
// it from the programs first. The topic is a plain one.
func (a *Admin) RemoveSchedule(ctx context.Context, topic, name string, o DeleteOptions) (takenBack int, err error) {
	if o.DryRun {
		return a.waitingOf(ctx, topic, name)
	}
	_, takenBack, err = a.amend(ctx, topic, queue.Amendment{What: queue.RemoveSchedule, Name: name})
	return takenBack, err
}

// waitingOf returns how many occurrences of a schedule wait.
func (a *Admin) waitingOf(ctx context.Context, topic, name string) (int, error) {
	t, err := a.topic(ctx, topic, rights.Reviewing)
	var found operate.Recurring
	if err == nil {
		found, err = t.AllSchedules(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("remove schedule: %w", err)
	}
	for _, r := range found.Schedules {
		if r.Name == name {
			return len(r.Waiting), nil
		}
	}
	return 0, fmt.Errorf("remove schedule: schedule %q of topic %q: %w", name, topic, ErrNotFound)
}

func (a *Admin) amend(ctx context.Context, topic string, what queue.Amendment) (r queue.Recurring, takenBack int, err error) {
	t, err := a.topic(ctx, topic, rights.Amending)
	if err == nil {
		r, takenBack, err = t.AmendSchedule(ctx, what)
	}
	if err != nil {
		return r, 0, fmt.Errorf("%s schedule: %w", what.What, err)
	}
	return r, takenBack, nil
}
