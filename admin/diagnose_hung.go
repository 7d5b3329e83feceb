package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// quiet is a group with messages in hand that has settled nothing for a while.
type quiet struct {
	found found
	group GroupStats
	since time.Time // nothing was settled after that, as far as the group's counters tell
	after time.Duration
	late  *Problem // what is wrong if it is not hung; nil: nothing
}

// quietTopics is of how many topics Diagnose reads who has the messages of quiet groups, those
// whose messages are late by the most.
const quietTopics = 200

// isQuiet tells whether a group may be hung. A subscription with free hands tells what it has
// settled when it claims ready messages. Without ready messages it tells with a poll, and a long
// handler harms nobody, so the group has more time.
func (d *doctor) isQuiet(f found, g GroupStats, late *Problem) bool {
	after := d.options.Late
	if late == nil {
		after = 10*after + queue.SignValid
	}
	if g.InHand == 0 || f.stats.Stream || f.stats.Now.Sub(g.LastSettled) <= after {
		return false
	}
	d.quiet = append(d.quiet, quiet{f, g, g.LastSettled, after, late})
	return true
}

// hung adds the problems of groups that are quiet. A group is hung if the message that is in hand
// for the longest time was claimed long ago, too.
func (d *doctor) hung(ctx context.Context) error {
	slices.SortStableFunc(d.quiet, func(a, b quiet) int { return cmp.Compare(b.weight(), a.weight()) })
	known := map[string][]Worker{}
	for _, q := range d.quiet {
		workers, read := known[q.found.name]
		if !read && len(known) < quietTopics {
			var err error
			workers, err = d.admin.workers(ctx, q.found.name)
			if err != nil && !errors.Is(err, ErrForbidden) && !errors.Is(err, ErrNotFound) && (ctx.Err() != nil || !d.admin.client.Cluster()) {
				return err
			}
			known[q.found.name] = workers
		}
		workers = slices.DeleteFunc(slices.Clone(workers), func(w Worker) bool { return w.Group != q.group.Group || w.InHand == 0 })
		if p, hung := q.problem(workers); hung {
			d.add(p.Severity, Hung, p)
		} else if q.late != nil {
			d.add(q.late.Severity, q.late.Kind, *q.late)
		}
	}
	return nil
}

func (q quiet) weight() int {
	if q.late == nil {
		return 0
	}
	return q.late.weight
}

// problem returns what is wrong with a group whose messages these workers have, if it is hung.
func (q quiet) problem(workers []Worker) (Problem, bool) {
	now, inHand, oldest := q.found.stats.Now, 0, time.Time{}
	for _, w := range workers {
		inHand += w.InHand
		oldest = earliest(oldest, w.Oldest)
	}
	if oldest.IsZero() || now.Sub(oldest) <= q.after {
		return Problem{}, false
	}
	slices.SortStableFunc(workers, func(a, b Worker) int { return cmp.Or(cmp.Compare(b.InHand, a.InHand), a.Oldest.Compare(b.Oldest)) })
	var names []string
	for _, w := range workers[:min(3, len(workers))] {
		names = append(names, fmt.Sprintf("%s, which has %s", w.Process(), texts.Number(w.InHand)))
	}
	if more := len(workers) - len(names); more > 0 {
		names = append(names, texts.Many(more, "other subscription"))
	}
	settled := "and it has never settled any"
	if !q.since.IsZero() {
		settled = fmt.Sprintf("and it has settled nothing since %s, %s ago", q.since.UTC().Format(time.RFC3339), round(now.Sub(q.since)))
	}
	severity, harm, waits := Warning, Delays, ""
	if q.late != nil {
		severity, waits = Critical, "; "+waiting(q.group.Ready, now.Sub(q.group.OldestDue))
	}
	text := fmt.Sprintf("Group %q of topic %q is hung: it has %s in hand, the first for %s, %s%s. Look at %s.",
		q.group.Group, q.found.name, texts.Many(inHand, "message"), round(now.Sub(oldest)), settled, waits, strings.Join(names, "; "))
	return Problem{Severity: severity, Harm: harm, Topic: q.found.name, Group: q.group.Group, weight: seconds(now.Sub(oldest)),
		Mend: tool("workers", "release", "--group="+q.group.Group, q.found.name, workers[0].Name()), Text: text}, true
}
