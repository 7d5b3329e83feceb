package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func (a *app) schedulesCommand() *cobra.Command {
	list := &cobra.Command{Use: "ls [TOPIC...]", Short: "the recurring schedules of topics", ValidArgsFunction: a.completeTopic,
		Example: "  redisdelay schedules ls reports", RunE: a.runs(a.listSchedules)}
	next := 0
	show := a.scheduleCommandOn("show", "a schedule, and its next occurrences", "", "reports daily-report --next 10",
		func(ctx context.Context, o *admin.Admin, topic, name string) error {
			return a.showSchedule(ctx, o, topic, name, next)
		})
	show.Flags().IntVar(&next, "next", 5, "how many occurrences are shown, at most 1000")

	var o admin.PauseOptions
	pause := a.scheduleCommandOn("pause", "stop a schedule in all programs", `Stops a schedule in all programs, until resume or for a time, and takes back its occurrences that wait. What passes meanwhile is left out.`,
		"reports daily-report --why stock-taking --for 2h", func(ctx context.Context, operator *admin.Admin, topic, name string) error {
			return a.pauseSchedule(ctx, operator, topic, name, o)
		})
	pauseFlags(pause.Flags(), &o)
	resume := a.scheduleCommandOn("resume", "end a pause of a schedule", `Ends a pause, and wakes the programs. The schedule goes on with the next instant.`,
		"reports daily-report", a.resumeSchedule)
	wait := 10 * time.Second
	runNow := a.scheduleCommandOn("run", "ask for one occurrence now, and say whether it came",
		`Asks for one occurrence now, even of a paused schedule, and wakes the programs. One that has the schedule publishes it. The command waits for that, and says what it found. It fails if no program published the occurrence in time.`,
		"reports daily-report --yes", func(ctx context.Context, operator *admin.Admin, topic, name string) error {
			return a.runSchedule(ctx, operator, topic, name, wait)
		})
	runNow.Flags().DurationVar(&wait, "wait", wait, "how long to wait for a program; 0: not at all")
	remove := a.scheduleCommandOn("rm", "remove a schedule, and its occurrences that wait", effectOf("remove-schedule"), "reports daily-report --dry-run", a.removeSchedule)
	for _, c := range []*cobra.Command{runNow, remove} {
		a.consentFlags(c.Flags())
	}
	family := a.family("schedules", "recurring messages", list, show, pause, resume, runNow, remove)
	for _, c := range family.Commands() {
		a.jsonFlag(c.Flags())
	}
	return family
}

// scheduleCommandOn returns a command on one schedule.
func (a *app) scheduleCommandOn(name, short, long, example string, do func(ctx context.Context, o *admin.Admin, topic, name string) error) *cobra.Command {
	return &cobra.Command{Use: name + " TOPIC SCHEDULE", Short: short, Long: long, Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeSchedule,
		Example: "  redisdelay schedules " + name + " " + example,
		RunE: a.runs(func(ctx context.Context, args []string) error {
			operator, err := a.admin()
			if err != nil {
				return err
			}
			return do(ctx, operator, args[0], args[1])
		})}
}

// completeSchedule completes the name of a topic, and then that of a schedule.
func (a *app) completeSchedule(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeTopic(cmd, args, prefix)
	}
	return a.completed(cmd, prefix, func(ctx context.Context) (names []string, err error) {
		if len(args) > 1 {
			return nil, nil
		}
		return names, a.schedulesOf(ctx, args[:1], func(s admin.Schedule) { names = append(names, s.Name) })
	})
}

// schedulesOf calls do with the schedules of the topics that are named, or else of all.
func (a *app) schedulesOf(ctx context.Context, named []string, do func(admin.Schedule)) error {
	return a.eachTopic(ctx, named, func(operator *admin.Admin, topic string) error {
		schedules, err := schedulesOf(ctx, operator, topic)
		for _, s := range schedules {
			do(s)
		}
		return err
	})
}

func (a *app) listSchedules(ctx context.Context, named []string) error {
	t := a.out.table("TOPIC", "SCHEDULE", "SPEC", "ZONE", "NEXT DUE", "WAITING", "MISSED", "PAUSED SINCE", "FAILS WITH")
	err := a.schedulesOf(ctx, named, func(s admin.Schedule) {
		next := any(s.Next)
		if s.Next.IsZero() {
			next = doubtful.in(s.Expected, !s.Expected.IsZero())
		}
		since, failed := time.Time{}, ""
		if s.Pause != nil {
			since = s.Pause.Since
		}
		if s.LastError != nil && s.LastError.InRow > 0 {
			failed = cut(s.LastError.Error, 60)
		}
		t.row(s, s.Topic, s.Name, cut(s.Spec, 40), s.Zone, next, s.Waiting, s.Missed, doubtful.in(since, s.Pause != nil), doubtful.in(failed, failed != ""))
	})
	return t.flush("There is no schedule."+a.where(), err)
}

// schedulesOf returns the schedules of one topic.
func schedulesOf(ctx context.Context, operator *admin.Admin, topic string) ([]admin.Schedule, error) {
	all, err := operator.Schedules(ctx, topic)
	if err != nil {
		return nil, err
	}
	return all[0].Schedules, all[0].Err
}

// oneSchedule returns the schedule of a name.
func oneSchedule(ctx context.Context, operator *admin.Admin, topic, name string) (admin.Schedule, error) {
	all, err := schedulesOf(ctx, operator, topic)
	if err != nil {
		return admin.Schedule{}, err
	}
	if i := slices.IndexFunc(all, func(s admin.Schedule) bool { return s.Name == name }); i >= 0 {
		return all[i], nil
	}
	return admin.Schedule{}, fmt.Errorf("schedule %q of topic %q: %w", name, topic, admin.ErrNotFound)
}

// shownSchedule is the object of the command schedules show.
type shownSchedule struct {
	Schedule admin.Schedule `json:"schedule"`
	Upcoming []time.Time    `json:"upcoming"`          // when the next occurrences are due
	Further  bool           `json:"-"`                 // more of them follow
	Problem  string         `json:"problem,omitempty"` // why that cannot be told
	Counters countedOfTopic `json:"topic_counters"`
	now      time.Time      // the server's clock
}

// countedOfTopic is what a topic has counted of all its schedules.
type countedOfTopic struct {
	Refused  int `json:"refused_occurrences"` // admin.Counters.RefusedOccurrences
	Skipped  int `json:"skipped"`             // admin.GroupCounters.Skipped of all groups
	Returned int `json:"returned"`            // admin.Counters.Returned
}

func countedOf(s admin.Stats) countedOfTopic {
	c := countedOfTopic{Refused: s.Counters.RefusedOccurrences, Returned: s.Counters.Returned}
	for _, g := range s.Groups {
		c.Skipped += g.Counters.Skipped
	}
	return c
}

func (a *app) showSchedule(ctx context.Context, operator *admin.Admin, topic, name string, next int) error {
	if next < 0 || next > 1000 {
		return refuse("--next is %d; it must be from 0 to 1000", next)
	}
	s, err := oneSchedule(ctx, operator, topic, name)
	if err != nil {
		return err
	}
	stats, err := operator.Stats(ctx, topic)
	if err != nil {
		return err
	}
	shown := shownSchedule{Schedule: s, Upcoming: []time.Time{}, Counters: countedOf(stats), now: stats.Now}
	defined, err := periodic.FromDefinition(name, s.Definition)
	if from, comes := s.UpcomingFrom(stats.Now); err == nil && comes {
		var dues []time.Time
		dues, err = defined.Upcoming(from, next+1)
		if shown.Further = len(dues) > next; shown.Further {
			dues = dues[:next]
		}
		for _, due := range dues {
			shown.Upcoming = append(shown.Upcoming, due.UTC())
		}
	}
	if err != nil {
		shown.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if a.out.json {
		a.out.object(shown)
		return nil
	}
	a.sayDefinition(shown, defined)
	a.saySchedule(shown, defined.Location)
	if shown.Further && next > 0 {
		a.out.note("Others follow; --next says how many are shown.")
	}
	return nil
}

// sayPart prints a part of a schedule, unless it is empty.
func (a *app) sayPart(name, text string) {
	if text != "" {
		a.out.say(nil, "%-12s %s", name, text)
	}
}

func (a *app) sayDefinition(shown shownSchedule, defined periodic.Schedule) {
	s := shown.Schedule
	a.sayPart("topic", s.Topic)
	a.sayPart("schedule", s.Name)
	a.sayPart("spec", s.Spec)
	a.sayPart("zone", s.Zone)
	if shown.Problem != "" {
		a.sayPart("definition", s.Definition)
		return
	}
	part := func(name, text string, is bool) {
		if is {
			a.sayPart(name, text)
		}
	}
	part("jitter", defined.Jitter.String(), defined.Jitter > 0)
	part("start", stamp(defined.Start), !defined.Start.IsZero())
	part("end", stamp(defined.End), !defined.End.IsZero())
	part("misfire", string(defined.Misfire), defined.MisfireWithin == 0)
	part("misfire", fmt.Sprintf("%s, within %s", defined.Misfire, defined.MisfireWithin), defined.MisfireWithin > 0)
}

func (a *app) saySchedule(shown shownSchedule, zone *time.Location) {
	s := shown.Schedule
	a.sayPart("version", fmt.Sprint(s.Version))
	a.sayPart("cursor", stamp(s.Cursor))
	a.sayPart("waiting", texts.Many(s.Waiting, "occurrence"))
	missed := texts.Many(s.Missed, "occurrence")
	if !s.MissedAt.IsZero() {
		missed += ", found at " + stamp(s.MissedAt)
	}
	a.sayPart("missed", missed)
	a.sayPart("refused", texts.Many(shown.Counters.Refused, "occurrence")+" (all schedules of the topic)")
	a.sayPart("skipped", texts.Many(shown.Counters.Skipped, "occurrence")+" (all schedules of the topic)")
	a.sayPart("returned", texts.Many(shown.Counters.Returned, "time")+" (all schedules of the topic)")
	if !s.Last.IsZero() {
		a.sayPart("last due", stamp(s.Last))
	}
	if !s.Requested.IsZero() {
		a.sayPart("requested", stamp(s.Requested)+", and no program has published it yet")
	}
	if s.Pause != nil {
		a.sayPart("paused", strings.TrimPrefix(pausedText(*s.Pause), "paused "))
	}
	a.sayPart("last error", errorText(s.LastError))
	switch {
	case s.Next.IsZero() && s.Expected.After(shown.now) && (s.LastError == nil || s.LastError.InRow == 0): // such as after a cancel of the one before
		a.sayPart("next due", stamp(s.Expected)+", and it is not in Redis yet")
	case s.Next.IsZero() && !s.Expected.IsZero():
		a.sayPart("next due", stamp(s.Expected)+", and it is not in Redis: "+s.WhyLate())
	case s.Pause != nil:
	case s.Next.IsZero() && shown.Problem == "":
		a.sayPart("next due", "never: the schedule has ended")
	}
	if shown.Problem != "" {
		a.sayPart("upcoming", "unknown: "+shown.Problem)
	}
	for i, due := range shown.Upcoming {
		text := stamp(due)
		if s.Zone != "UTC" {
			text += due.In(zone).Format(", there Mon 15:04:05 MST")
		}
		a.sayPart(map[bool]string{true: "upcoming"}[i == 0], text)
	}
}

// errorText says when and where a schedule last failed, and whether it still does.
func errorText(e *admin.ScheduleError) string {
	if e == nil {
		return ""
	}
	text := stamp(e.At)
	if e.Host != "" {
		text += " on " + e.Host
	}
	if text += ": " + e.Error; e.InRow == 0 {
		return text + "; an occurrence was published after it"
	}
	return text + "; " + texts.Many(e.InRow, "failure") + " since an occurrence was last published"
}

// amended is the object of the commands schedules pause and resume.
type amended struct {
	Topic     string       `json:"topic"`
	Schedule  string       `json:"schedule"`
	Paused    bool         `json:"paused"`
	Pause     *admin.Pause `json:"pause,omitempty"`      // nil after a resume
	TakenBack int          `json:"taken_back,omitempty"` // occurrences that waited
}

func (a *app) pauseSchedule(ctx context.Context, operator *admin.Admin, topic, name string, o admin.PauseOptions) error {
	if err := forward(o); err != nil {
		return err
	}
	o.By = a.who()
	pause, n, err := operator.PauseSchedule(context.WithoutCancel(ctx), topic, name, o)
	taken := texts.Many(n, "waiting occurrence") + " taken back"
	a.record(ctx, operator, admin.Act{Action: "pause-schedule", Topic: topic, Schedule: name, Detail: o.Lasts() + "; " + taken}, err)
	if err == nil {
		a.out.say(amended{topic, name, true, &pause, n}, "Schedule %q of topic %q is %s. %s.", name, topic, pausedText(pause), taken)
	}
	return err
}

func (a *app) resumeSchedule(ctx context.Context, operator *admin.Admin, topic, name string) error {
	err := operator.ResumeSchedule(context.WithoutCancel(ctx), topic, name)
	a.record(ctx, operator, admin.Act{Action: "resume-schedule", Topic: topic, Schedule: name}, err)
	if err == nil {
		a.out.say(amended{Topic: topic, Schedule: name}, "Schedule %q of topic %q goes on with its next instant, if a program runs it.", name, topic)
	}
	return err
}

func (a *app) runSchedule(ctx context.Context, operator *admin.Admin, topic, name string, wait time.Duration) error {
	before, err := oneSchedule(ctx, operator, topic, name)
	if err != nil {
		return err
	}
	w := act{Action: "run-schedule", verb: "ask for", Topic: topic, Schedule: name, Count: 1, Unit: "occurrence"}
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	at, err := operator.RunSchedule(context.WithoutCancel(ctx), topic, name)
	a.record(ctx, operator, admin.Act{Action: "run-schedule", Topic: topic, Schedule: name}, err)
	if err != nil {
		return err
	}
	w.ID = periodic.Occurrence{Schedule: name, At: at}.ID()
	return a.awaitRun(ctx, operator, ran{act: w, At: at}, before.LastError, wait)
}

// ran is the object of the command schedules run.
type ran struct {
	act
	At        time.Time            `json:"at"` // instant of the occurrence
	Published bool                 `json:"published"`
	LastError *admin.ScheduleError `json:"last_error,omitempty"` // that kept a program from it
}

// awaitRun waits until a program has published an occurrence that was asked for, and says whether
// one has. before is the error that the schedule had then.
func (a *app) awaitRun(ctx context.Context, operator *admin.Admin, r ran, before *admin.ScheduleError, wait time.Duration) error {
	s, began := admin.Schedule{}, time.Now()
	for {
		var err error
		if s, err = oneSchedule(ctx, operator, r.Topic, r.Schedule); err != nil {
			return err
		}
		r.Published = !s.Requested.Equal(r.At)
		if e := s.LastError; e != nil && !r.Published && (before == nil || !e.At.Equal(before.At)) {
			r.LastError = s.LastError
		}
		left := wait - time.Since(began)
		if r.Published || r.LastError != nil || left <= 0 {
			break
		}
		if sleep(ctx, min(left, 100*time.Millisecond)) != nil {
			break
		}
	}
	what := fmt.Sprintf("occurrence %s of schedule %q of topic %q", r.ID, r.Schedule, r.Topic)
	switch {
	case r.Published:
		a.out.say(r, "A program has published %s.", what)
		return nil
	case wait == 0:
		a.out.say(r, "Asked for %s. A program that runs the schedule publishes it.", what)
		return nil
	case r.LastError != nil:
		a.out.say(r, "Asked for %s, but a program failed to publish it: %s. It tries again.", what, errorText(r.LastError))
	default:
		a.out.say(r, "Asked for %s, but no program has published it within %v: start one that has the schedule. It does so then.", what, wait)
	}
	return errSaid
}

func (a *app) removeSchedule(ctx context.Context, operator *admin.Admin, topic, name string) error {
	w := a.removal(ctx, operator, "remove-schedule", topic)
	w.Schedule = name
	var err error
	if w.Count, err = operator.RemoveSchedule(ctx, topic, name, admin.DeleteOptions{DryRun: true}); err != nil {
		return err
	}
	if ok, err := a.agreed(ctx, w); !ok {
		return err
	}
	w.Count, err = operator.RemoveSchedule(context.WithoutCancel(ctx), topic, name, admin.DeleteOptions{})
	a.record(ctx, operator, w.noted(), err)
	if err == nil {
		a.done(w)
	}
	return err
}
