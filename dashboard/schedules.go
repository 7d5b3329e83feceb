package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// Limits of the pages of recurring schedules.
const (
	topicsOfSchedules = 200 // topics of a page
	schedulesOfTopic  = 20  // schedules of a topic, on the page of many topics
	schedulesOfPage   = 100 // schedules of a topic, on its own page
	dueNext           = 10  // occurrences of one schedule
)

// schedulesPage is a page of the recurring schedules of one topic, or of many.
type schedulesPage struct {
	Topic       string // "": many
	Rows        []scheduleRow
	More        []moreSchedules
	Page, Pages int
	All         int  // schedules of the topic, or topics, of all pages
	Reading     bool // not all topics were read yet
	Unread      int  // topics whose schedules could not be read
	Why         string
}

// moreSchedules is a topic with more schedules than a page shows.
type moreSchedules struct {
	Topic        string
	Shown, Count int
}

// scheduleRow is a schedule in a list.
type scheduleRow struct {
	admin.Schedule
	Defined periodic.Schedule
	Err     error // why the definition cannot be read
	Late    bool  // an occurrence is due, and no program has published it
}

// Zoned returns a time in the zone of the schedule.
func (r scheduleRow) Zoned(t time.Time) string {
	if r.Defined.Location == nil {
		return ""
	}
	return t.In(r.Defined.Location).Format("Mon 15:04:05 MST")
}

func (d *Dashboard) schedules(c *call) (*view, error) {
	topic := c.q("t")
	page := 1
	if text := c.q("page"); text != "" {
		page, _ = strconv.Atoi(text)
	}
	if topic == "" {
		if err := d.awaitTopics(c, liveWait); err != nil {
			return nil, err
		}
	}
	key := fmt.Sprintf("schedules\x00%d\x00%s", page, topic)
	p, err := cached(c.ctx, &d.reads, key, func(ctx context.Context) (*schedulesPage, error) {
		p, now := &schedulesPage{Topic: topic}, d.sweep.now()
		read := d.schedulesOfMany
		if topic != "" {
			read = d.schedulesOfOne
		}
		if err := read(ctx, p, page); err != nil {
			return nil, err
		}
		for i := range p.Rows {
			p.Rows[i] = newScheduleRow(p.Rows[i].Schedule, now)
		}
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	v := &view{Title: "Recurring schedules", Now: d.sweep.now(), Live: true, Data: p, Crumbs: []crumb{{"Topics", d.address("/")}}}
	if p.Topic != "" {
		v.Crumbs = append(v.Crumbs, crumb{p.Topic, d.address("/topic", "t", p.Topic)})
	}
	return v, nil
}

// schedulesOfOne fills in a page of the schedules of one topic.
func (d *Dashboard) schedulesOfOne(ctx context.Context, p *schedulesPage, page int) error {
	all, err := d.schedulesOf(ctx, p.Topic)
	if err != nil {
		return err
	}
	if err := p.paged(page, len(all), schedulesOfPage); err != nil {
		return err
	}
	for _, s := range all[(p.Page-1)*schedulesOfPage : min(p.Page*schedulesOfPage, len(all))] {
		p.Rows = append(p.Rows, scheduleRow{Schedule: s})
	}
	return nil
}

// paged sets the number of the page. A page that is not there has no content that could be kept.
func (p *schedulesPage) paged(page, all, size int) error {
	p.Page, p.Pages, p.All = page, max(1, (all+size-1)/size), all
	if page < 1 || page > p.Pages {
		return errNoPage
	}
	return nil
}

// Before is the number of the page before.
func (p *schedulesPage) Before() string { return strconv.Itoa(p.Page - 1) }

// After is the number of the next page.
func (p *schedulesPage) After() string { return strconv.Itoa(p.Page + 1) }

// schedulesOfMany fills in a page of topics.
func (d *Dashboard) schedulesOfMany(ctx context.Context, p *schedulesPage, page int) error {
	known, _, ended, err := d.sweep.all()
	if err != nil && len(known) == 0 {
		return err
	}
	p.Reading = ended.IsZero()
	var topics []string
	for _, k := range known {
		if k.stats.Recurs || k.stats.Err != nil { // of those that cannot be read, it is not known
			topics = append(topics, k.stats.Topic)
		}
	}
	slices.Sort(topics)
	if err := p.paged(page, len(topics), topicsOfSchedules); err != nil {
		return err
	}
	topics = topics[(p.Page-1)*topicsOfSchedules : min(p.Page*topicsOfSchedules, len(topics))]
	found, err := d.admin.Schedules(ctx, topics...)
	if err != nil {
		return err
	}
	for _, t := range found {
		switch {
		case errors.Is(t.Err, admin.ErrNotFound): // it was removed meanwhile
		case t.Err != nil:
			p.Unread++
			p.Why = cmp.Or(p.Why, t.Err.Error())
		case len(t.Schedules) > schedulesOfTopic:
			p.More = append(p.More, moreSchedules{t.Topic, schedulesOfTopic, len(t.Schedules)})
		}
		for _, s := range t.Schedules[:min(len(t.Schedules), schedulesOfTopic)] {
			p.Rows = append(p.Rows, scheduleRow{Schedule: s})
		}
	}
	return nil
}

// schedulesOf returns the schedules of a topic.
func (d *Dashboard) schedulesOf(ctx context.Context, topic string) ([]admin.Schedule, error) {
	return cached(ctx, &d.reads, "schedules:"+topic, func(ctx context.Context) ([]admin.Schedule, error) {
		all, err := d.admin.Schedules(ctx, topic)
		if err != nil {
			return nil, err
		}
		return all[0].Schedules, all[0].Err
	})
}

// scheduleOf returns one schedule of a topic.
func (d *Dashboard) scheduleOf(ctx context.Context, topic, name string) (admin.Schedule, error) {
	all, err := d.schedulesOf(ctx, topic)
	if err != nil {
		return admin.Schedule{}, err
	}
	return findSchedule(all, topic, name)
}

func findSchedule(all []admin.Schedule, topic, name string) (admin.Schedule, error) {
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return admin.Schedule{}, fmt.Errorf("schedule %q of topic %q: %w", name, topic, admin.ErrNotFound)
}

// newScheduleRow returns what a page shows of a schedule.
func newScheduleRow(s admin.Schedule, now time.Time) scheduleRow {
	row := scheduleRow{Schedule: s, Late: !s.Expected.IsZero() && s.Expected.Before(now)}
	row.Defined, row.Err = periodic.FromDefinition(s.Name, s.Definition)
	return row
}

// schedulePage is the page of one schedule.
type schedulePage struct {
	scheduleRow
	Dues    []time.Time     // when the next occurrences are due; none while it is paused without an end
	Further bool            // there are more
	Counted *countedOfTopic // nil: unknown
}

// countedOfTopic is what a topic has counted of all its schedules: admin.Counters, and
// admin.GroupCounters of all groups.
type countedOfTopic struct{ Refused, Skipped, Returned int }

func countedOf(s admin.Stats) *countedOfTopic {
	c := &countedOfTopic{Refused: s.Counters.RefusedOccurrences, Returned: s.Counters.Returned}
	for _, g := range s.Groups {
		c.Skipped += g.Counters.Skipped
	}
	return c
}

// Misfire returns in words what becomes of missed occurrences.
func (p schedulePage) Misfire() string {
	said := map[periodic.Misfire]string{periodic.MisfireLast: "the last one is published", periodic.MisfireAll: "all are published",
		periodic.MisfireSkip: "none is published"}[p.Defined.Misfire]
	if p.Defined.MisfireWithin > 0 {
		said += ", within " + duration(p.Defined.MisfireWithin)
	}
	return said
}

func (d *Dashboard) schedule(c *call) (*view, error) {
	topic, name := c.q("t"), c.q("s")
	p, err := cached(c.ctx, &d.reads, fmt.Sprintf("schedule:%q:%s", name, topic), func(ctx context.Context) (*schedulePage, error) {
		s, err := d.scheduleOf(ctx, topic, name)
		if err != nil {
			return nil, err
		}
		now := d.sweep.now()
		p := &schedulePage{scheduleRow: newScheduleRow(s, now)}
		if from, comes := s.UpcomingFrom(now); p.Err == nil && comes {
			p.Dues, p.Err = p.Defined.Upcoming(from, dueNext+1)
			if p.Further = len(p.Dues) > dueNext; p.Further {
				p.Dues = p.Dues[:dueNext]
			}
		}
		if stats, err := d.read(ctx, topic); err == nil {
			p.Counted = countedOf(stats)
		}
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {topic, d.address("/topic", "t", topic)}, {"Schedules", d.address("/schedules", "t", topic)}}
	return &view{Title: name, Crumbs: crumbs, Now: d.sweep.now(), Live: true, Data: p}, nil
}

// Actions on schedules in the audit log.
const (
	actPauseSchedule  = "pause-schedule"
	actResumeSchedule = "resume-schedule"
	actRunSchedule    = "run-schedule"
)

// amend changes one schedule.
func (d *Dashboard) amend(c *call) (string, error) {
	topic, name := c.q("t"), c.q("s")
	act := admin.Act{By: c.user.Name, Topic: topic, Schedule: name}
	said := ""
	var err error
	switch c.PathValue("do") {
	case "pause":
		act.Action = actPauseSchedule
		o := admin.PauseOptions{By: c.user.Name, Why: strings.TrimSpace(c.q("why"))}
		if o.For, err = spanOrNone(c.q("for")); err != nil {
			return "", err
		}
		n := 0
		if _, n, err = d.admin.PauseSchedule(c.ctx, topic, name, o); err == nil {
			taken := texts.Many(n, "waiting occurrence") + " taken back"
			act.Detail, said = o.Lasts()+"; "+taken, "Paused, and "+taken+"."
		}
	case "resume":
		act.Action, said = actResumeSchedule, "Resumed. It goes on with its next instant, if a program runs it."
		err = d.admin.ResumeSchedule(c.ctx, topic, name)
	case "run":
		act.Action, said = actRunSchedule, "One occurrence is asked for. A program that runs the schedule publishes it."
		_, err = d.admin.RunSchedule(c.ctx, topic, name)
	default:
		return "", errNoPage
	}
	d.record(c.ctx, act, err)
	return d.back("/schedule", said, "t", topic, "s", name), err
}
