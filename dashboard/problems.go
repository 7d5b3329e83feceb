package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// problem is a line about problems, and the page where they can be mended or seen one by one.
type problem struct {
	admin.Folded
	Address string // "": nowhere
	Action  string // text of the link
}

// severities are the severities of problems, the worst first.
var severities = []admin.Severity{admin.Critical, admin.Violation, admin.Warning, admin.Notice}

// Tone is the class of the problem's mark.
func (p problem) Tone() string {
	if p.Ignored != nil {
		return string(admin.Notice)
	}
	return toneOf(p.Severity)
}

// Mark is the word before the problem.
func (p problem) Mark() string {
	if p.Ignored != nil {
		return "ignored"
	}
	return string(p.Severity)
}

func toneOf(s admin.Severity) string {
	if s == admin.Violation {
		s = admin.Critical
	}
	return string(s)
}

// linked returns lines about problems with links.
func (d *Dashboard) linked(all []admin.Folded) (problems []problem) {
	for _, p := range all {
		one := problem{Folded: p}
		switch {
		case p.Count > 1:
			one.Address, one.Action = d.address("/problems", "kind", string(p.Kind)), "Show all "+texts.Number(p.Count)
		case p.Kind == admin.Memory:
			one.Address, one.Action = d.address("/memory"), "Memory"
		case p.Topic == "" || p.Kind == admin.MissingTopic:
		case p.Kind == admin.DeadLetters:
			one.Address, one.Action = d.address("/dead", "t", p.Topic, "g", p.Group), "Reasons"
		case p.Kind == admin.Hung:
			one.Address, one.Action = d.address("/messages", "t", p.Topic, "g", p.Group, "state", string(admin.InHand)), "In hand"
		case slices.Contains([]admin.ProblemKind{admin.StoppedSchedule, admin.PausedSchedule, admin.MissedOccurrences}, p.Kind):
			one.Address, one.Action = d.address("/schedules", "t", p.Topic), "Schedules"
		case p.MessageID != "":
			one.Address, one.Action = d.address("/message", "t", p.Topic, "id", p.MessageID), "Message"
		default:
			one.Address, one.Action = d.address("/topic", "t", p.Topic), "Topic"
		}
		problems = append(problems, one)
	}
	return problems
}

// singly returns a line for each problem.
func singly(problems []admin.Problem) (all []admin.Folded) {
	problems = slices.Clone(problems)
	admin.SortProblems(problems)
	for _, p := range problems {
		all = append(all, admin.FoldProblems([]admin.Problem{p})...)
	}
	return all
}

// diagnose finds out what is wrong with some topics and with Redis, and notes it for the list.
func (s *sweep) diagnose(ctx context.Context, topics []string) ([]admin.Problem, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	found, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: topics})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.general = nil
	of := map[string][]admin.Problem{}
	for _, p := range found.Problems {
		if p.Topic == "" {
			s.general = append(s.general, p)
		} else {
			of[p.Topic] = append(of[p.Topic], p)
		}
	}
	for _, topic := range topics {
		if k := s.topics[topic]; k != nil {
			k.problems = of[topic]
		}
	}
	return found.Problems, nil
}

// heed notes anew which of the problems are ignored.
func (s *sweep) heed(ctx context.Context) error {
	ignored, err := s.admin.IgnoredProblems(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	marked := func(problems []admin.Problem) []admin.Problem {
		problems = slices.Clone(problems) // pages may have the others
		admin.MarkIgnored(problems, ignored)
		return problems
	}
	s.general = marked(s.general)
	for _, k := range s.topics {
		k.problems = marked(k.problems)
	}
	return nil
}

// found returns all problems that were found last, of a topic if it is not "".
func (d *Dashboard) found(topic string) (problems []admin.Problem, ended time.Time, err error) {
	all, general, ended, err := d.sweep.all()
	if topic == "" {
		problems = append(problems, general...)
	}
	for _, k := range all {
		if topic == "" || k.stats.Topic == topic {
			problems = append(problems, k.problems...)
		}
	}
	return problems, ended, err
}

// problems returns what is wrong with a topic, at most a moment ago.
func (d *Dashboard) problems(ctx context.Context, stats admin.Stats) ([]problem, error) {
	found, err := cached(ctx, &d.reads, "problems:"+stats.Topic, func(ctx context.Context) ([]admin.Problem, error) {
		return d.sweep.diagnose(ctx, plainOf(stats))
	})
	found = slices.DeleteFunc(slices.Clone(found), func(p admin.Problem) bool { return p.Topic == "" })
	lines := d.linked(admin.FoldProblems(found))
	for i, p := range lines {
		if p.Count > 1 {
			lines[i].Address = d.address("/problems", "kind", string(p.Kind), "t", stats.Topic)
		}
	}
	return lines, err
}

// problemsPage is the page of problems, one by one if it is about a kind or a topic.
type problemsPage struct {
	Kind    admin.ProblemKind
	Topic   string
	Rows    []problem // that nobody ignores
	Ignored []problem

	Read    time.Time // when all topics were read, by the server's clock; zero: not yet
	Trouble string    // why they cannot be read

	// Left and IgnoredLeft are how many problems of each are not shown.
	Left, IgnoredLeft int
}

// AllIgnored is how many problems are ignored.
func (p problemsPage) AllIgnored() int { return len(p.Ignored) + p.IgnoredLeft }

func (d *Dashboard) problemList(c *call) (*view, error) {
	if err := d.awaitTopics(c, stillWait); err != nil {
		return nil, err
	}
	p := &problemsPage{Topic: c.q("t")}
	title := "What is wrong"
	if text := c.q("kind"); text != "" {
		kind, err := admin.KindOf(text)
		if err != nil {
			return nil, bad(fmt.Sprintf("There is no kind of problem %q.", texts.Clip(text, 40)))
		}
		p.Kind, title = kind, title+": "+string(kind)
	}
	found, ended, err := d.found(p.Topic)
	if !ended.IsZero() {
		p.Read = d.sweep.now().Add(-time.Since(ended))
	}
	if err != nil {
		p.Trouble = explain(err).Text
	}
	found = slices.DeleteFunc(found, func(one admin.Problem) bool { return p.Kind != "" && one.Kind != p.Kind })
	lines := admin.FoldProblems(found)
	if p.Kind != "" || p.Topic != "" {
		lines = singly(found)
	}
	for _, one := range d.linked(lines) {
		rows, left := &p.Rows, &p.Left
		if one.Ignored != nil {
			rows, left = &p.Ignored, &p.IgnoredLeft
		}
		if len(*rows) < d.limits.problems {
			*rows = append(*rows, one)
		} else {
			*left++
		}
	}
	crumbs := []crumb{{"Topics", d.address("/")}}
	if p.Topic != "" {
		crumbs = append(crumbs, crumb{p.Topic, d.address("/topic", "t", p.Topic)})
	}
	if p.Kind != "" || p.Topic != "" {
		crumbs = append(crumbs, crumb{"What is wrong", d.address("/problems")})
	}
	return &view{Title: title, Crumbs: crumbs, Now: d.sweep.now(), Data: p}, nil
}

// ignore accepts problems, or ends that.
func (d *Dashboard) ignore(c *call) (string, error) {
	kind, err := admin.KindOf(c.q("kind"))
	if err != nil {
		return "", bad(fmt.Sprintf("There is no kind of problem %q. Nothing was changed.", texts.Clip(c.q("kind"), 40)))
	}
	i := admin.Ignored{Kind: kind, Topic: c.q("t"), Group: c.q("g"), By: c.user.Name, Why: strings.TrimSpace(c.q("why"))}
	act := admin.Act{By: c.user.Name, Action: c.PathValue("do"), Topic: i.Topic, Group: i.Group, Detail: strings.TrimSuffix(string(kind)+": "+i.Why, ": ")}
	said := ""
	switch act.Action {
	case "ignore":
		if i.Why == "" {
			return "", bad("Say why, for the next who looks. Nothing was changed.")
		}
		problems, _, _ := d.found("")
		if i.Severity = (admin.Diagnosis{Problems: problems}).Worst(i); i.Severity == "" {
			return "", bad("There is no such problem now. Nothing was changed.")
		}
		_, err = d.admin.Ignore(c.ctx, i)
		said = fmt.Sprintf("Problems of kind %q are ignored. They are at the end of this page.", kind)
	case "unignore":
		err = d.admin.Unignore(c.ctx, i)
		said = fmt.Sprintf("Problems of kind %q show again.", kind)
	default:
		return "", errNoPage
	}
	d.record(c.ctx, act, err)
	if err == nil {
		err = d.sweep.heed(c.ctx)
	}
	return d.back("/problems", said), err
}
