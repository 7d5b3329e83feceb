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

	Asked asked   // of messages that wait
	Due   dueTime // that they get
	waits bool

	Create bool   // the topic and the groups that To lacks
	File   string // the name of an upload
	Every  bool   // groups get what they did not export, too
}

func (t target) bulk() admin.Bulk {
	bulk := admin.Bulk{Group: t.Group, Schedule: t.Schedule, To: t.To, Spread: t.Spread, Filter: admin.Filter{FoldedReason: t.Reason}}
	if t.waits {
		bulk.States, bulk.Filter, bulk.When = []admin.State{t.Asked.State}, t.Asked.filter, t.Due.when
	}
	return bulk
}

// work is an operation of package admin on many messages, or one that has no Operation there, such
// as a check. It is a job, and all but a check are confirmed before.
type work struct {
	admin.Operation

	// looks and does take the place of a dry run and of a run of the Operation. A check has no
	// looks.
	looks func(ctx context.Context, d *Dashboard, t target) (prospect, error)
	does  func(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error)
}

// prospect is what a work would do.
type prospect struct {
	Count int
	Said  []string // what else there is to know

	// Others are the groups that get dead letters which they did not export.
	Others []string
}

// result is what a work did.
type result struct {
	done  int
	found *findings // of a check or a repair
	said  []string  // what else there is to know
}

// Caption is how a button begins.
func (w work) Caption() string { return strings.ToUpper(w.Verb[:1]) + w.Verb[1:] }

// Whole returns whether it is about all messages, so that there is no limit.
func (w work) Whole() bool { return w.State == "" }

// removesTopic returns whether the topic is gone after it.
func (w work) removesTopic() bool { return w.Of == admin.OfTopic && w.Deletes && w.Whole() }

// worksOn returns the operations on messages of one state, in the order of their buttons.
func worksOn(state admin.State) (found []work) {
	for _, o := range admin.Operations() {
		if o.State == state {
			found = append(found, work{Operation: o})
		}
	}
	return found
}

func workNamed(name string) (work, error) {
	for _, w := range []work{mending, importing, transferring} {
		if w.Name == name {
			return w, nil
		}
	}
	o, ok := admin.OperationNamed(name)
	if !ok {
		return work{}, bad(fmt.Sprintf("There is no operation %q.", texts.Clip(name, 40)))
	}
	return work{Operation: o}, nil
}

// targetOf returns what a request is about, as far as the operation heeds it. Else a link could
// have another name be typed.
func (d *Dashboard) targetOf(c *call, w work) (target, error) {
	t := target{Topic: c.q("t")}
	if w.Name == importing.Name {
		t.File, t.Every = c.q("file"), c.q("every") != ""
		return t, nil
	}
	if w.Name == transferring.Name {
		t.To, t.Create = strings.TrimSpace(c.q("to")), c.q("create") != ""
	}
	if w.Waits && (w.Name != transferring.Name || c.q("state") != "") {
		asked, err := d.askedOf(c)
		if err == nil && asked.State != admin.Waiting && asked.State != admin.Retrying {
			err = bad("Only messages that wait or retry can be changed so.")
		}
		if t.Asked, t.waits = asked, true; asked.State == admin.Retrying && w.Name != transferring.Name {
			t.Group = c.q("g")
		}
		return t, err
	}
	for name, to := range map[string]struct {
		text  *string
		heeds bool
	}{
		"g":      {&t.Group, w.Of == admin.OfGroup},
		"s":      {&t.Schedule, w.Of == admin.OfSchedule},
		"reason": {&t.Reason, !w.Whole()},
		"to":     {&t.To, w.Moves},
	} {
		if to.heeds {
			*to.text = c.q(name)
		}
	}
	t.To = strings.TrimSpace(t.To)
	return t, nil
}

// confirmPage says what an operation would do, and asks for the topic and the count.
type confirmPage struct {
	work
	target
	prospect

	// Wrong says what was typed wrongly, "" at first. The rest is what was typed then.
	Wrong, TypedName, TypedCount, TypedSpread, TypedDue string
}

// typo is an error in what somebody typed into the form of an operation, which is shown again.
type typo struct{ error }

func (t typo) Unwrap() error { return t.error }

// again shows the form of an operation once more, with what was typed and what is wrong with it.
func (d *Dashboard) again(c *call, wrong typo) (*view, error) {
	v, err := d.confirm(c)
	if err != nil {
		return nil, err
	}
	p := v.Data.(*confirmPage)
	p.Wrong, p.TypedName, p.TypedCount, p.TypedSpread, p.TypedDue = explain(wrong).Text, c.q("typed-name"), c.q("typed-count"), c.q("spread"), c.q("in")
	return v, nil
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

// prospectOf returns what an operation would do.
func (d *Dashboard) prospectOf(ctx context.Context, w work, t target) (p prospect, err error) {
	if w.looks != nil {
		return w.looks(ctx, d, t)
	}
	counting := t.bulk()
	counting.DryRun = true
	p.Count, err = w.Run(ctx, d.admin, t.Topic, counting)
	return p, err
}

// confirm shows what an operation would do.
func (d *Dashboard) confirm(c *call) (*view, error) {
	if c.user.Role < Operator {
		return nil, errReadOnly
	}
	w, err := workNamed(c.q("do"))
	if err != nil {
		return nil, err
	}
	p := &confirmPage{work: w}
	if p.target, err = d.targetOf(c, w); err != nil {
		return nil, err
	}
	if p.prospect, err = d.prospectOf(c.ctx, w, p.target); err != nil {
		return nil, err
	}
	crumbs := []crumb{{"Topics", d.address("/")}, {p.Topic, d.address("/topic", "t", p.Topic)}}
	switch {
	case p.Schedule != "":
		crumbs = append(crumbs, crumb{p.Schedule, d.address("/schedule", "t", p.Topic, "s", p.Schedule)})
	case p.waits:
		crumbs = append(crumbs, crumb{stateWords(p.Asked.State), d.address("/messages", "t", p.Topic, "g", p.Group, "state", string(p.Asked.State))})
	case !w.Whole():
		crumbs = append(crumbs, crumb{"Dead letters", d.address("/dead", "t", p.Topic, "g", p.Group)})
	}
	return &view{Title: w.Caption() + " " + texts.Many(p.Count, w.Unit), Crumbs: crumbs, Now: d.sweep.now(), Data: p}, nil
}

// confirmed begins an operation whose topic and count were typed. It changes no more messages than
// the user was told.
func (d *Dashboard) confirmed(c *call) (string, error) {
	w, err := workNamed(c.q("do"))
	if err != nil {
		return "", err
	}
	t, err := d.targetOf(c, w)
	if err != nil {
		return "", err
	}
	count, err := strconv.Atoi(c.q("count"))
	switch {
	case err != nil || count < 0:
		return "", bad("The form is not complete. Go back and try again.")
	case !sameName(c.q("typed-name"), t.name()):
		return "", typo{bad("The " + t.Named() + " that you typed is another one. Nothing was changed.")}
	case strings.ReplaceAll(strings.TrimSpace(c.q("typed-count")), ",", "") != strconv.Itoa(count):
		return "", typo{bad("The count that you typed is another one. Nothing was changed.")}
	case w.Moves && t.To == "":
		return "", typo{bad("Say to which topic they are moved. Nothing was changed.")}
	case count == 0 && !w.Whole():
		return "", bad("There is nothing to do.")
	}
	if text := strings.TrimSpace(c.q("spread")); text != "" && w.Spreads {
		if t.Spread, err = span(text); err != nil {
			return "", typo{err}
		}
	}
	if w.Times {
		if t.Due, err = d.dueOf(c); err != nil {
			return "", typo{err}
		}
	}
	if w.Whole() { // these have no limit, so they are counted once more
		p, err := d.prospectOf(c.ctx, w, t)
		switch {
		case err != nil:
			return "", err
		case p.Count > count && w.Name != transferring.Name: // a topic that is in use has more by now
			return "", bad(fmt.Sprintf("There are %s by now. Go back and look again. Nothing was changed.", texts.Many(p.Count, w.Unit)))
		case len(p.Others) > 0 && !t.Every:
			return "", typo{bad("Say that the other groups are to get them, too. Nothing was changed.")}
		}
	}
	id, err := d.jobs.start(d, w, t, c.user, count)
	if err != nil {
		return "", err
	}
	return d.address("/job", "id", id), nil
}
