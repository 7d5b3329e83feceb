package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

// upcomingPage is the page of what becomes due in intervals that the user chooses, as the command
// upcoming prints it.
type upcomingPage struct {
	Topic, Group  string
	Groups        []string
	Metadata      string // key=value
	From          string
	Width         string
	Intervals     string
	Contents      bool
	Chart         chart
	Buckets       []admin.Bucket
	Short         string    // why not all was counted, "" if all was
	Until         time.Time // with Short: up to when; zero if not even the first interval was counted
	Waits, Retrys int       // of all intervals
}

// The default intervals of the page.
const (
	usualWidth     = "30m"
	usualIntervals = "48"
)

func (d *Dashboard) upcomingOf(c *call) (*view, error) {
	p := &upcomingPage{Topic: c.q("t"), Group: c.q("g"), Metadata: strings.TrimSpace(c.q("metadata")), From: strings.TrimSpace(c.q("from")),
		Width: cmp.Or(strings.TrimSpace(c.q("width")), usualWidth), Intervals: cmp.Or(strings.TrimSpace(c.q("intervals")), usualIntervals), Contents: c.user.Contents}
	stats, err := d.read(c.ctx, p.Topic)
	if err != nil {
		return nil, err
	}
	for _, g := range stats.Groups {
		p.Groups = append(p.Groups, g.Group)
	}
	if p.Group == "" && len(p.Groups) > 0 {
		p.Group = p.Groups[0]
	}
	load, err := p.load(d, c, stats.Now)
	if err != nil {
		return nil, err
	}
	if p.Metadata != "" { // which reads messages, as a search does
		if d.finds.take(c.user.Name) != granted {
			return nil, errSearches
		}
		defer d.finds.give(c.user.Name)
	}
	ctx, cancel := context.WithTimeout(c.ctx, findFor)
	defer cancel()
	p.Buckets, err = d.admin.Upcoming(ctx, p.Topic, load)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && c.ctx.Err() == nil:
		return nil, &refusal{http.StatusServiceUnavailable, "Redis takes too long to read so many messages. Begin later, or count fewer intervals."}
	case err != nil:
		return nil, err
	}
	for _, b := range p.Buckets {
		p.Waits, p.Retrys = p.Waits+b.Waiting, p.Retrys+b.Retrying
	}
	if n := len(p.Buckets); n < load.Buckets {
		p.Short = fmt.Sprintf("Not all was counted: %s were read, and that is up to", texts.Many(findMost, "message"))
		if n > 0 {
			p.Until = p.Buckets[n-1].Until
		}
	}
	p.Chart = barsOf("What becomes due", p.Buckets)
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	return &view{Title: "What becomes due", Crumbs: crumbs, Now: d.sweep.now(), Data: p}, nil
}

// load reads the form.
func (p *upcomingPage) load(d *Dashboard, c *call, now time.Time) (load admin.Load, err error) {
	load = admin.Load{Group: p.Group, Most: findMost}
	if p.From != "" {
		if load.From, err = when.Parse(p.From, now.In(d.zone(c)), when.Future); err != nil {
			return load, bad(sentence(err))
		}
	}
	if load.Width, err = when.Duration(p.Width); err != nil || load.Width <= 0 {
		return load, bad(fmt.Sprintf("%q is no length of time. Write it like 30m, 2h or 3d.", texts.Clip(p.Width, 40)))
	}
	if load.Buckets, err = strconv.Atoi(p.Intervals); err != nil || load.Buckets < 1 || load.Buckets > 1000 {
		return load, bad(fmt.Sprintf("%q is no number of intervals, from 1 to 1,000.", texts.Clip(p.Intervals, 40)))
	}
	if p.Metadata == "" {
		return load, nil
	}
	key, value, ok := strings.Cut(p.Metadata, "=")
	switch {
	case !p.Contents || ok && d.names.hide(key):
		return load, errUnseen
	case !ok:
		return load, errPair
	}
	wanted := admin.Filter{Metadata: map[string]string{key: value}}
	load.Filter.Match = func(m admin.Message) bool { return wanted.Matches(d.seen(m, p.Contents)) }
	return load, nil
}

// barsOf returns a chart of what becomes due.
func barsOf(title string, buckets []admin.Bucket) chart {
	c := chart{ID: "chart-upcoming", Title: title, Kind: "bars", Names: []string{"Messages", "Retries"}, Y: make([][]float64, 2)}
	all, most := 0, 0
	for _, b := range buckets {
		c.X = append(c.X, b.From.Unix())
		c.Y[0] = append(c.Y[0], float64(b.Waiting))
		c.Y[1] = append(c.Y[1], float64(b.Retrying))
		all, most = all+b.Waiting+b.Retrying, max(most, b.Waiting+b.Retrying)
	}
	c.Said = "Nothing becomes due in these intervals."
	if all > 0 {
		c.Said = fmt.Sprintf("%s in these intervals, at most %s in %s.", texts.Many(all, "message"), texts.Number(most), duration(buckets[0].Until.Sub(buckets[0].From)))
	}
	return c
}

// zone returns the zone of the times that a user types and sees: UTC with Config.UTC, else the one
// that the browser names. Without scripts that is the zone of this program.
func (d *Dashboard) zone(c *call) *time.Location {
	if d.config.UTC {
		return time.UTC
	}
	if name := c.q("zone"); name != "" {
		if zone, err := time.LoadLocation(name); err == nil {
			return zone
		}
	}
	return time.Local
}

// sentence returns an error as a sentence.
func sentence(err error) string { return texts.Clip(err.Error(), 300) + "." }
