package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

const (
	rowsOfPage   = 50
	problemsShow = 8

	// liveWait and stillWait are how long a page that is opened waits until all topics are read:
	// one with news, and one without.
	liveWait  = 150 * time.Millisecond
	stillWait = 2 * time.Second
)

// overview is the page of all topics.
type overview struct {
	Rows                                   []topicRow
	Topics, Found                          int
	Waiting, Ready, InHand, Retrying, Dead int
	Problems                               []problem
	MoreProblems                           int
	Ignored                                int // problems that somebody ignores
	Query, Sort                            string
	Page, Pages                            int
	Reading                                bool // not all topics were read yet
	Since                                  time.Time
	Trouble                                string
}

// topicRow is a topic in the list.
type topicRow struct {
	admin.Stats
	Ready, InHand, Retrying, Dead int
	Worst                         admin.Severity // of its worst problem, "" for none
	Said                          string         // that problem
	Rate, Late                    spark
	Rates                         admin.Rates // of the last seconds
}

// sorts are the orders of the list, by the name in the address.
var sorts = map[string]func(a, b *topicRow) int{
	"":         func(a, b *topicRow) int { return cmp.Compare(b.trouble(), a.trouble()) },
	"name":     func(a, b *topicRow) int { return 0 },
	"wait":     func(a, b *topicRow) int { return cmp.Compare(b.Waiting, a.Waiting) },
	"ready":    func(a, b *topicRow) int { return cmp.Compare(b.Ready, a.Ready) },
	"hand":     func(a, b *topicRow) int { return cmp.Compare(b.InHand, a.InHand) },
	"retrying": func(a, b *topicRow) int { return cmp.Compare(b.Retrying, a.Retrying) },
	"behind":   func(a, b *topicRow) int { return cmp.Compare(b.Rates.Worst().Behind, a.Rates.Worst().Behind) },
	"dead":     func(a, b *topicRow) int { return cmp.Compare(b.Dead, a.Dead) },
}

func (r *topicRow) trouble() int {
	i := slices.Index(severities, r.Worst)
	if i < 0 {
		return 0
	}
	return len(severities) - i
}

// Tone is the class of the row's mark.
func (r *topicRow) Tone() string { return cmp.Or(toneOf(r.Worst), "fine") }

func (d *Dashboard) overview(c *call) (*view, error) {
	if err := d.awaitTopics(c, liveWait); err != nil {
		return nil, err
	}
	query, sort, page := c.q("q"), c.q("sort"), c.q("page")
	key := strings.Join([]string{"overview", d.sweep.read().String(), d.base, query, sort, page}, "\x00")
	o, err := cached(c.ctx, &d.reads, key, func(context.Context) (*overview, error) { return d.list(query, sort, page) })
	if err != nil {
		return nil, err
	}
	if c.live() {
		d.refresh(c.ctx, o.Rows)
	}
	return &view{Title: "Topics", Now: d.sweep.now(), Live: true, Data: o}, nil
}

// awaitTopics has all topics be read for a page that is opened, and waits for that, but not longer
// than a while.
func (d *Dashboard) awaitTopics(c *call, while time.Duration) error {
	if c.live() {
		return nil
	}
	read := d.sweep.ask()
	if read == nil {
		return nil
	}
	select {
	case <-read:
	case <-time.After(while):
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	return nil
}

// list returns a page of the topics, as far as they were read.
func (d *Dashboard) list(query, sort, page string) (*overview, error) {
	all, problems, ended, err := d.sweep.all()
	if err != nil && len(all) == 0 {
		return nil, err
	}
	o := &overview{Topics: len(all), Query: query, Sort: sort, Reading: ended.IsZero(), Since: d.sweep.since}
	if err != nil {
		o.Trouble = explain(err).Text
	}
	var rows []*topicRow
	for _, k := range all {
		s := k.stats
		row := k.row()
		problems = append(problems, k.problems...)
		o.Waiting, o.Ready, o.InHand, o.Retrying, o.Dead = o.Waiting+s.Waiting, o.Ready+row.Ready, o.InHand+row.InHand, o.Retrying+row.Retrying, o.Dead+row.Dead
		if strings.Contains(strings.ToLower(s.Topic), strings.ToLower(o.Query)) {
			rows = append(rows, row)
		}
	}
	problems = slices.DeleteFunc(slices.Clone(problems), func(p admin.Problem) bool {
		if p.Ignored != nil {
			o.Ignored++
		}
		return p.Ignored != nil || p.Severity == admin.Notice
	})
	o.Problems = d.linked(admin.FoldProblems(problems))
	if len(o.Problems) > problemsShow {
		o.MoreProblems = len(o.Problems) - problemsShow
		o.Problems = o.Problems[:problemsShow]
	}
	by, known := sorts[o.Sort]
	if !known {
		return nil, bad(fmt.Sprintf("There is no order %q.", texts.Clip(o.Sort, 40)))
	}
	slices.SortFunc(rows, func(a, b *topicRow) int { return cmp.Or(by(a, b), strings.Compare(a.Topic, b.Topic)) })
	o.Found, o.Pages = len(rows), max(1, (len(rows)+rowsOfPage-1)/rowsOfPage)
	o.Page, _ = strconv.Atoi(page)
	o.Page = min(max(o.Page, 1), o.Pages)
	rows = rows[(o.Page-1)*rowsOfPage : min(o.Page*rowsOfPage, len(rows))]
	for _, row := range rows {
		figures := seriesOf(d.sweep.past(row.Topic))
		row.Rate, row.Late = sparkOf(figures.Delivered, rate), sparkOf(figures.late(), milliseconds)
		o.Rows = append(o.Rows, *row)
	}
	return o, nil
}

// row returns the row of a topic, without its charts.
func (k known) row() *topicRow {
	row := &topicRow{Stats: k.stats, Rates: k.stats.RatesSince(k.recent.before)}
	for _, g := range k.stats.Groups {
		row.Ready, row.InHand, row.Retrying, row.Dead = row.Ready+g.Ready, row.InHand+g.InHand, row.Retrying+g.Retrying, row.Dead+g.Dead
	}
	if len(k.problems) > 0 && k.problems[0].Ignored == nil {
		row.Worst, row.Said = k.problems[0].Severity, k.problems[0].Text
	}
	return row
}

// refresh reads the topics on screen for the next news. Browsers with the same topics share it.
func (d *Dashboard) refresh(ctx context.Context, rows []topicRow) {
	names, plain := make([]string, len(rows)), []string{}
	for i, r := range rows {
		names[i] = r.Topic
		plain = append(plain, plainOf(r.Stats)...)
	}
	slices.Sort(names)
	_, _ = cached(ctx, &d.reads, "rows:"+strings.Join(names, "\x00"), func(ctx context.Context) (bool, error) {
		var reads sync.WaitGroup
		limit := make(chan struct{}, 4)
		for _, name := range names {
			limit <- struct{}{}
			reads.Go(func() {
				defer func() { <-limit }()
				_, _ = d.read(ctx, name) // the row keeps what was read last
			})
		}
		reads.Wait()
		_, err := d.sweep.diagnose(ctx, plain)
		return true, err
	})
}

// spark is a small chart without axes.
type spark struct {
	Points string // of a polyline in a box of 100 by 24; "" if there is too little to draw
	Now    string // the newest figure
}

// sparkOf draws figures.
func sparkOf(figures []float64, words func(float64) string) (s spark) {
	if len(figures) == 0 {
		return s
	}
	s.Now = words(figures[len(figures)-1])
	highest := slices.Max(figures)
	if len(figures) < 2 {
		return s
	}
	var b strings.Builder
	for i, f := range figures {
		y := 22.0
		if highest > 0 {
			y = 22 - 20*f/highest
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", 100*float64(i)/float64(len(figures)-1), y)
	}
	s.Points = strings.TrimSpace(b.String())
	return s
}

// Before is the number of the page before.
func (o *overview) Before() string { return strconv.Itoa(o.Page - 1) }

// After is the number of the next page.
func (o *overview) After() string { return strconv.Itoa(o.Page + 1) }
