package dashboard

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// deadPage is the page of dead letters by reason.
type deadPage struct {
	Topic, Group string
	Groups       []string
	Dead         int
	Looked       int
	Limited      bool // there are more than were examined
	Parted       bool // the topic has partitions, which are examined one after the other
	Other        int
	Shared       string // what all reasons begin and end with
	Rows         []deadRow
	Contents     bool
	Retention    time.Duration
	Jobs         []jobView
	Works        []work // on the dead letters
}

// deadRow is a reason and its dead letters.
type deadRow struct {
	admin.DeadReason
	Sample messageRow
	Short  string // the reason without what all share
	Part   int    // percent of all
}

func (d *Dashboard) dead(c *call) (*view, error) {
	p := &deadPage{Topic: c.q("t"), Group: c.q("g"), Contents: c.user.Contents, Works: worksOn(admin.Dead)}
	stats, err := d.read(c.ctx, p.Topic)
	if err != nil {
		return nil, err
	}
	for _, g := range stats.Groups {
		p.Groups = append(p.Groups, g.Group)
		if g.Group == p.Group || p.Group == "" {
			p.Group, p.Dead, p.Retention = g.Group, g.Dead, g.DeadRetention
		}
	}
	if p.Dead > 0 {
		reasons, err := cached(c.ctx, &d.reads, fmt.Sprintf("dead:%q:%s", p.Group, p.Topic), func(ctx context.Context) (admin.DeadReasons, error) {
			return d.admin.DeadReasons(ctx, p.Topic, admin.Bulk{Group: p.Group, Limit: d.limits.dead})
		})
		if err != nil {
			return nil, err
		}
		p.Shared = reasons.Shared()
		p.Looked, p.Other, p.Parted = reasons.Looked, reasons.Other, stats.Partitions != nil
		p.Limited = p.Looked >= d.limits.dead && p.Dead > p.Looked
		for _, r := range reasons.Reasons {
			p.Rows = append(p.Rows, deadRow{r, d.messageRow(r.Sample, p.Contents), reasons.Short(r), 100 * r.Count / max(reasons.Looked, 1)})
		}
	}
	p.Jobs = d.jobs.of(p.Topic, p.Group)
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	return &view{Title: "Dead letters", Crumbs: crumbs, Now: d.sweep.now(), Live: true, Data: p}, nil
}
