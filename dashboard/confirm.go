package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// target is what an operation on many messages is about.
type target struct {
	Topic, Group, Reason, To string
	Schedule                 string
	Spread                   time.Duration
}

func (t target) filter() admin.Filter { return admin.Filter{FoldedReason: t.Reason} }

// bulk is an operation on many messages. It is confirmed before, and is a job then.
type bulk struct {
	Name, Verb, Unit string
	Effect           string // what it does, in a sentence
	Grave            bool   // it cannot be undone
	Spreads, Moves   bool
	Whole            bool // it is about all of it: there is no limit
	OfSchedule       bool
	run              func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error)
	inspect          inspector // instead of run, for operations that have findings
}

// mending is the name of the operation that mends what a check found.
const mending = "repair"

// bulks are the operations, in the order of their buttons.
var bulks = []bulk{
	{Name: "requeue", Verb: "Requeue", Unit: "dead letter", Spreads: true,
		Effect: "They become ready again, and their deliveries are counted from zero.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			b.Spread = t.Spread
			return a.RequeueAll(ctx, t.Topic, t.Group, b)
		}},
	{Name: "move", Verb: "Move", Unit: "dead letter", Moves: true, Grave: true,
		Effect: "They become new messages of another topic, due at once there. They are gone here.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			if b.DryRun {
				return a.RequeueAll(ctx, t.Topic, t.Group, b)
			}
			return a.MoveDead(ctx, t.Topic, t.Group, t.To, b)
		}},
	{Name: "purge", Verb: "Purge", Unit: "dead letter", Grave: true,
		Effect: "They are deleted, and cannot be brought back.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			return a.PurgeDead(ctx, t.Topic, t.Group, b)
		}},
	{Name: "remove-group", Verb: "Remove group with", Unit: "message", Grave: true, Whole: true,
		Effect: "The group and its messages are deleted, and cannot be brought back. Other groups lose nothing.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			removal, err := a.DeleteGroup(ctx, t.Topic, t.Group, b.DryRun)
			return removal.Messages, err
		}},
	{Name: "remove-topic", Verb: "Remove topic with", Unit: "message", Grave: true, Whole: true,
		Effect: "The topic, its groups and all messages are deleted, and cannot be brought back. Stop its publishers and subscribers first.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			removal, err := a.DeleteTopic(ctx, t.Topic, b.DryRun)
			return removal.Messages, err
		}},
	{Name: actRemoveSchedule, Verb: "Remove schedule with", Unit: "waiting occurrence", Grave: true, Whole: true, OfSchedule: true,
		Effect: "The schedule and its waiting occurrences are deleted. Programs that run it leave it. " +
			"It begins anew when a program starts that has it, so take it out of the programs first.",
		run: func(ctx context.Context, a *admin.Admin, t target, b admin.Bulk) (int, error) {
			if !b.DryRun {
				return a.RemoveSchedule(ctx, t.Topic, t.Schedule)
			}
			all, err := a.Schedules(ctx, t.Topic)
			if err != nil {
				return 0, err
			}
			s, err := findSchedule(all, t.Topic, t.Schedule)
			return s.Waiting, err
		}},
	{Name: mending, Verb: "Mend", Unit: "violation", Whole: true,
		Effect: "All data is checked again, and what is safe to mend is mended. No message that has its body is lost. " +
			"A message that is in no state is delivered again to all groups, even if some had it already.",
		inspect: repair},
}

func bulkOf(name string) (bulk, error) {
	for _, b := range bulks {
		if b.Name == name {
			return b, nil
		}
	}
	return bulk{}, bad(fmt.Sprintf("There is no operation %q.", texts.Clip(name, 40)))
}

func targetOf(c *call, b bulk) target {
	t := target{Topic: c.q("t"), Group: c.q("g"), Reason: c.q("reason"), To: strings.TrimSpace(c.q("to"))}
	if b.OfSchedule { // else a link could have another name be typed
		t.Schedule = c.q("s")
	}
	return t
}

// confirmPage says what an operation would do, and asks for the topic and the count.
type confirmPage struct {
	bulk
	target
	Count int
}

// name is the name that has to be typed.
func (t target) name() string { return cmp.Or(t.Schedule, t.Topic) }

// Named says what has the name that has to be typed.
func (t target) Named() string {
	if t.Schedule != "" {
		return "name of the schedule"
	}
	return "topic"
}

// sameName returns whether somebody has typed a name. Of a name that nobody can type, such as one
// with control characters, only what can be typed counts.
func sameName(typed, name string) bool {
	plain := func(text string) string {
		return strings.Map(func(r rune) rune {
			if r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, text)
	}
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	return typed == name || strings.ContainsFunc(name, odd) && plain(typed) == plain(name)
}

// count returns how many an operation would change: for Repair, as many as the last check found.
func (d *Dashboard) count(ctx context.Context, b bulk, t target) (int, error) {
	if b.inspect == nil {
		return b.run(ctx, d.admin, t, admin.Bulk{DryRun: true, Filter: t.filter()})
	}
	last, ok := d.jobs.lastCheck(t.Topic)
	switch {
	case !ok || last.Findings == nil:
		return 0, bad("Check the topic first. The check says what there is to mend.")
	case d.jobs.mended(t.Topic, last.Began):
		return 0, bad("The topic was mended since the last check. Check it again.")
	case last.Findings.Violations == 0:
		return 0, bad("The last check found nothing to mend.")
	}
	return last.Findings.Violations, nil
}

// confirm shows what an operation would do.
func (d *Dashboard) confirm(c *call) (*view, error) {
	if c.user.Role < Operator {
		return nil, errReadOnly
	}
	b, err := bulkOf(c.q("do"))
	if err != nil {
		return nil, err
	}
	p := &confirmPage{bulk: b, target: targetOf(c, b)}
	if p.Count, err = d.count(c.ctx, b, p.target); err != nil {
		return nil, err
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	switch {
	case p.Schedule != "":
		crumbs = append(crumbs, crumb{p.Schedule, d.address("/schedule", "t", p.Topic, "s", p.Schedule)})
	case !b.Whole:
		crumbs = append(crumbs, crumb{"Dead letters", d.address("/dead", "t", p.Topic, "g", p.Group)})
	}
	return &view{Title: b.Verb + " " + texts.Many(p.Count, b.Unit), Crumbs: crumbs, Now: d.sweep.now(), Data: p}, nil
}

// confirmed begins an operation whose topic and count were typed. It changes no more messages than
// the user was told.
func (d *Dashboard) confirmed(c *call) (string, error) {
	b, err := bulkOf(c.q("do"))
	if err != nil {
		return "", err
	}
	t := targetOf(c, b)
	count, err := strconv.Atoi(c.q("count"))
	switch {
	case err != nil || count < 0:
		return "", bad("The form is not complete. Go back and try again.")
	case !sameName(c.q("typed-name"), t.name()):
		return "", bad("The " + t.Named() + " that you typed is another one. Nothing was changed.")
	case strings.ReplaceAll(strings.TrimSpace(c.q("typed-count")), ",", "") != strconv.Itoa(count):
		return "", bad("The count that you typed is another one. Nothing was changed.")
	case b.Moves && t.To == "":
		return "", bad("Say to which topic they are moved. Nothing was changed.")
	case count == 0 && !b.Whole:
		return "", bad("There is nothing to do.")
	}
	if text := strings.TrimSpace(c.q("spread")); text != "" && b.Spreads {
		if t.Spread, err = span(text); err != nil {
			return "", err
		}
	}
	if b.Whole { // these have no limit, so they are counted once more
		if n, err := d.count(c.ctx, b, t); err != nil {
			return "", err
		} else if n > count {
			return "", bad(fmt.Sprintf("There are %s by now. Go back and look again. Nothing was changed.", texts.Many(n, b.Unit)))
		}
	}
	id, err := d.jobs.start(d, b, t, c.user, count)
	if err != nil {
		return "", err
	}
	return d.address("/job", "id", id), nil
}
