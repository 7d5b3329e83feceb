package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// level is how bad the worst problem of a topic is.
type level int

const (
	sound level = iota
	suspicious
	broken
)

// cell returns a problem, or "ok", in the style of the level.
func (l level) cell(problem string) any {
	return styled{cmp.Or(problem, "ok"), map[level]style{sound: fine, suspicious: doubtful, broken: alarming}[l]}
}

// lateAfter is how long a message may be overdue, or ready for a group, before that is a problem.
const lateAfter = time.Minute

// judge returns in a few words the worst that is wrong with a topic, as far as its Stats tell. The
// command doctor looks closer.
func judge(s admin.Stats) (level, string) {
	overdue := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return max(0, s.Now.Sub(t))
	}
	worst, problem := sound, ""
	note := func(l level, format string, args ...any) {
		if l > worst {
			worst, problem = l, fmt.Sprintf(format, args...)
		}
	}
	if s.Err == nil && s.Partitions != nil {
		for _, p := range s.Partitions {
			if l, of := judge(p); l > worst {
				_, number, _ := partition.Parse(p.Topic)
				worst, problem = l, fmt.Sprintf("p%d: %s", number, of)
			}
		}
		return worst, problem
	}
	switch {
	case s.Err != nil:
		return broken, s.Err.Error()
	case len(s.Groups) == 0 && s.Waiting > 0:
		note(suspicious, "no group")
	case len(s.Groups) > 0 && !s.Scheduled && !s.NextLook.IsZero():
		note(broken, "nobody schedules")
	case len(s.Groups) > 0 && overdue(s.NextLook) > lateAfter:
		note(broken, "scheduling is %s behind", span(overdue(s.NextLook)))
	}
	if s.Pause != nil {
		note(suspicious, "paused %s", ago(s.Pause.Since, s.Now))
	}
	for _, g := range s.Groups {
		if g.Pause != nil {
			note(suspicious, "%s paused %s", g.Group, ago(g.Pause.Since, s.Now))
		}
	}
	for _, g := range s.Groups {
		if g.Ready > 0 && !g.Subscribed && !s.Stream && overdue(g.LastSeen) > lateAfter {
			note(suspicious, "nobody reads %s", g.Group)
		}
		if late := overdue(g.OldestDue); late > lateAfter && s.Pause == nil && g.Pause == nil && g.LimitedSince.IsZero() {
			note(suspicious, "%s is %s late", g.Group, span(late))
		}
	}
	for _, g := range s.Groups {
		if g.Suspects > 0 {
			note(suspicious, "%s has %s", g.Group, texts.Many(g.Suspects, "suspect"))
		}
		if g.Dead > 0 {
			note(suspicious, "%s has %s", g.Group, texts.Many(g.Dead, "dead letter"))
		}
	}
	return worst, problem
}
