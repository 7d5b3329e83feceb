package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// topicPage is the page of one topic.
type topicPage struct {
	admin.Stats
	Problems   []problem
	Rates      admin.Rates // of the last seconds
	Workers    []admin.Worker
	WorkersErr error // the user of Redis may not see them
	Charts     []chart
	Range      string
	Since      time.Time  // of the history
	Finding    findPage   // the form
	LastCheck  *jobView   // nil: none in this process
	Jobs       []jobView  // under way
	Parts      []topicRow // of a partitioned topic: its partitions
}

// RatesOf returns the rates of a group.
func (p topicPage) RatesOf(group string) admin.GroupRates {
	for _, g := range p.Rates.Groups {
		if g.Group == group {
			return g
		}
	}
	return admin.GroupRates{}
}

// listed is how many groups and consumers the page lists at most.
const listed = 200

// ShownGroups are the groups that the page lists.
func (p topicPage) ShownGroups() []admin.GroupStats { return p.Groups[:min(listed, len(p.Groups))] }

// ShownWorkers are the consumers that the page lists.
func (p topicPage) ShownWorkers() []admin.Worker { return p.Workers[:min(listed, len(p.Workers))] }

// loads are the intervals of the chart of what is to come.
var loads = []struct {
	Name    string
	buckets int
	width   time.Duration
}{{"hour", 60, time.Minute}, {"day", 48, 30 * time.Minute}, {"month", 60, 12 * time.Hour}}

// Ranges are the names of the intervals, for the template.
func (topicPage) Ranges() []string { return []string{"hour", "day", "month"} }

func (d *Dashboard) topic(c *call) (*view, error) {
	name := c.q("t")
	stats, err := d.read(c.ctx, name)
	if err != nil {
		return nil, err
	}
	found, err := d.problems(c.ctx, stats)
	if err != nil {
		return nil, err
	}
	workers, err := d.workersOf(c.ctx, name)
	if err != nil && !errors.Is(err, admin.ErrForbidden) {
		return nil, err
	}
	p := &topicPage{Stats: stats, Problems: found, Workers: workers, WorkersErr: err, Range: c.q("range"), Since: d.sweep.since, Finding: findPage{Contents: c.user.Contents}}
	p.Rates = d.sweep.rates(stats)
	p.Parts = d.sweep.rows(stats.Partitions)
	i := max(0, slices.Index(p.Ranges(), p.Range))
	p.Range = loads[i].Name
	upcoming, err := cached(c.ctx, &d.reads, "upcoming:"+p.Range+":"+name, func(ctx context.Context) (load, error) {
		return d.upcoming(ctx, stats, loads[i].buckets, loads[i].width)
	})
	if err != nil {
		return nil, err
	}
	p.Charts = append(p.Charts, upcomingChart(p.Range, upcoming))
	p.Jobs = d.jobs.running(name)
	if last, ok := d.jobs.lastCheck(name); ok {
		p.LastCheck = &last
	}
	p.Charts = append(p.Charts, historyCharts(seriesOf(d.sweep.past(name)))...)
	return &view{Title: name, Crumbs: []crumb{{"Topics", d.address("/")}}, Now: d.sweep.now(), Live: true, Data: p}, nil
}

// rows returns the rows of plain topics that were just read.
func (s *sweep) rows(plain []admin.Stats) (rows []topicRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stats := range plain {
		rows = append(rows, *s.knownOf(stats).row())
	}
	return rows
}

// groupsOfLoad is of how many groups the chart counts retries, those with the most.
const groupsOfLoad = 20

// load is what becomes due in each interval: first deliveries, and retries of all groups.
type load struct {
	buckets []admin.Bucket
	left    int // groups whose retries are not counted
	retries int // of those groups, whenever they are due
}

// upcoming counts what becomes due. Each group takes a step of Redis of its own, so the counts of
// groups are of slightly different times.
func (d *Dashboard) upcoming(ctx context.Context, stats admin.Stats, buckets int, width time.Duration) (l load, err error) {
	groups := slices.DeleteFunc(slices.Clone(stats.Groups), func(g admin.GroupStats) bool { return g.Retrying == 0 })
	slices.SortStableFunc(groups, func(a, b admin.GroupStats) int { return b.Retrying - a.Retrying })
	for _, g := range groups[min(groupsOfLoad, len(groups)):] {
		l.left++
		l.retries += g.Retrying
	}
	asked := admin.Load{Width: width, Buckets: buckets}
	for _, g := range groups[:min(groupsOfLoad, len(groups))] {
		asked.Group = g.Group
		counted, err := d.admin.Upcoming(ctx, stats.Topic, asked)
		switch {
		case errors.Is(err, admin.ErrNotFound): // the group was removed meanwhile
		case err != nil:
			return l, err
		case l.buckets == nil:
			l.buckets, asked.From = counted, counted[0].From
		default:
			for i := range counted {
				l.buckets[i].Retrying += counted[i].Retrying
			}
		}
	}
	if l.buckets == nil {
		asked.Group = ""
		l.buckets, err = d.admin.Upcoming(ctx, stats.Topic, asked)
	}
	return l, err
}

// workersOf returns who subscribes to a topic.
func (d *Dashboard) workersOf(ctx context.Context, topic string) ([]admin.Worker, error) {
	return cached(ctx, &d.reads, "workers:"+topic, func(ctx context.Context) ([]admin.Worker, error) {
		return d.admin.Workers(ctx, topic)
	})
}

// chart is drawn by the browser. Said is the same in words.
type chart struct {
	ID, Title, Said string
	Kind            string // "bars" or "lines"
	Unit            string // "": a number; "ms" or "/s"
	Names           []string
	X               []int64 // Unix seconds
	Y               [][]float64
}

// JSON returns the chart for the browser.
func (c chart) JSON() (string, error) {
	data := [][]any{make([]any, len(c.X))}
	for i, x := range c.X {
		data[0][i] = x
	}
	for _, line := range c.Y {
		points := make([]any, len(line))
		for i, y := range line {
			if !math.IsNaN(y) { // else null, which is a gap
				points[i] = y
			}
		}
		data = append(data, points)
	}
	text, err := json.Marshal(map[string]any{"kind": c.Kind, "unit": c.Unit, "names": c.Names, "data": data})
	return string(text), err
}

// latesSaid says how late messages were. What nobody got counts, too.
func latesSaid(s series) string {
	said := "Nothing was delivered."
	last, most := -1.0, -1.0
	for _, m := range s.Most {
		if !math.IsNaN(m) {
			last, most = m, max(most, m)
		}
	}
	if last >= 0 {
		said = "99 % last within " + lateWords(last) + ", at most " + lateWords(most) + "."
	}
	if waits := s.Waits[len(s.Waits)-1]; waits >= 1000 {
		said += " The next ready message has waited for " + milliseconds(waits) + "."
	}
	return said
}

// lateWords returns a lateness of a chart in words.
func lateWords(ms float64) string {
	if ms > float64(longestLate/time.Millisecond) {
		return "more than " + duration(longestLate)
	}
	return milliseconds(ms)
}

func upcomingChart(name string, l load) chart {
	c := barsOf("Becomes due in the next "+name, l.buckets)
	c.Said = strings.Replace(c.Said, "these intervals", "the next "+name, 1)
	if l.left > 0 {
		c.Said += fmt.Sprintf(" Not counted: %s of %s.", texts.Many(l.retries, "retry"), texts.Many(l.left, "further group"))
	}
	return c
}

func historyCharts(s series) []chart {
	rates := chart{ID: "chart-rate", Title: "Published and delivered", Kind: "lines", Unit: "/s", Names: []string{"Delivered", "Published"},
		Y: [][]float64{s.Delivered, s.Published}, Said: "Not enough was seen yet."}
	lates := chart{ID: "chart-late", Title: "Lateness", Kind: "lines", Unit: "ms", Names: []string{"Half of them within", "99 % within", "The next one waits"},
		Y: [][]float64{s.Half, s.Most, s.Waits}, Said: rates.Said}
	for _, at := range s.At {
		rates.X = append(rates.X, at.Unix())
	}
	lates.X = rates.X
	if n := len(s.At); n > 0 {
		rates.Said = "Delivered last " + rate(s.Delivered[n-1]) + ", at most " + rate(slices.Max(s.Delivered)) + "."
		lates.Said = latesSaid(s)
	}
	return []chart{rates, lates}
}
