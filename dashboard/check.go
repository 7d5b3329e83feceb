package dashboard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// checking only checks. Nobody has to confirm it.
var checking = work{Operation: admin.Operation{Name: "check", Verb: "check", Unit: "entry"},
	does: func(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error) {
		report, err := d.admin.Check(ctx, t.Topic, tell)
		if err != nil {
			return result{}, err
		}
		found := newFindings(report)
		for _, f := range report.Findings {
			found.add(f, nil)
		}
		return result{found: found.sorted()}, nil
	}}

const mendingName = "repair"

// mending mends what a check found.
var mending = work{looks: lastFound, does: repair, Operation: admin.Operation{Name: mendingName, Verb: "mend", Unit: "violation",
	Effect: "All data is checked again, and what is safe to mend is mended. No message that has its body is lost. " +
		"A message that is in no state is delivered again to all groups, even if some had it already."}}

// lastFound returns what the last check found.
func lastFound(_ context.Context, d *Dashboard, t target) (prospect, error) {
	last, ok := d.jobs.lastCheck(t.Topic)
	switch {
	case !ok || last.Findings == nil:
		return prospect{}, bad("Check the topic first. The check says what there is to mend.")
	case d.jobs.mended(t.Topic, last.Began):
		return prospect{}, bad("The topic was mended since the last check. Check it again.")
	case last.Findings.Violations == 0:
		return prospect{}, bad("The last check found nothing to mend.")
	}
	return prospect{Count: last.Findings.Violations}, nil
}

func repair(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error) {
	repaired, err := d.admin.Repair(ctx, t.Topic, tell)
	found := newFindings(repaired.Report)
	for _, m := range repaired.Mended {
		found.add(m.Finding, m.Done)
	}
	for _, f := range repaired.Left {
		found.add(f, nil)
	}
	found.Repaired = true
	return result{done: len(repaired.Mended), found: found.sorted()}, err
}

// shownFindings is how many findings of a kind are kept. A damaged topic may have a million.
const shownFindings = 20

// findings are what Check or Repair found, by kind.
type findings struct {
	Messages, Violations, Unconfirmed int
	Repaired                          bool
	Kinds                             []*findingsOfKind
}

// findingsOfKind are the findings of one kind. Some are the first of them.
type findingsOfKind struct {
	Kind          string
	Severity      admin.Severity
	Said, Mends   string // what it means, and what Repair does; "" for an unknown kind
	Count, Mended int
	Some          []findingRow
}

// findingRow is a finding, and what was done about it.
type findingRow struct {
	admin.Finding
	Done string
}

// Tone is the class of the mark.
func (k *findingsOfKind) Tone() string { return toneOf(k.Severity) }

// More is how many findings of the kind are not shown.
func (k *findingsOfKind) More() int { return k.Count - len(k.Some) }

func newFindings(r admin.Report) *findings {
	return &findings{Messages: r.Messages, Unconfirmed: r.Unconfirmed}
}

func (f *findings) add(one admin.Finding, done []string) {
	if one.Severity == admin.Violation {
		f.Violations++
	}
	i := slices.IndexFunc(f.Kinds, func(k *findingsOfKind) bool { return k.Kind == one.Kind })
	if i < 0 {
		words := findingWords[one.Kind]
		i, f.Kinds = len(f.Kinds), append(f.Kinds, &findingsOfKind{Kind: one.Kind, Severity: one.Severity, Said: words[0], Mends: words[1]})
	}
	k := f.Kinds[i]
	if k.Count++; len(done) > 0 {
		k.Mended++
	}
	if len(k.Some) < shownFindings {
		row := findingRow{Finding: one}
		if len(done) > 0 {
			row.Done = admin.Mending{Finding: one, Done: done}.Said()
		}
		k.Some = append(k.Some, row)
	}
}

// sorted puts the worst kinds first.
func (f *findings) sorted() *findings {
	slices.SortStableFunc(f.Kinds, func(a, b *findingsOfKind) int {
		return cmp.Or(slices.Index(severities, a.Severity)-slices.Index(severities, b.Severity), b.Count-a.Count)
	})
	return f
}

// findingWords say what each kind of finding means, and what Repair does about it.
var findingWords = map[string][2]string{
	"key":          {"A key of the topic has a wrong type, or would expire.", "A key that would expire is kept. A wrong type is for you to decide."},
	"registry":     {"The list of all topics lacks this topic.", "The topic is entered again."},
	"no body":      {"The body of a message is gone, so nobody can get it.", "The message is forgotten everywhere."},
	"lost":         {"A message has a body, and is in no state, so nobody would get it.", "It is due again in all groups. Some of them may have had it."},
	"lease":        {"A message is in hand without a lease, or has a lease and is not in hand.", "The lease is taken away, or the message is due again."},
	"two states":   {"A message is in two states of one group.", "It stays where it is in hand, or else where it waits for a retry."},
	"repeated":     {"A message is twice among those that are ready.", "The later entry is put out of force."},
	"record":       {"A message lacks its record of deliveries, or a record has no message.", "The record is written or forgotten."},
	"refs":         {"The count of groups that need a message is wrong.", "The groups are counted again, if that is safe."},
	"delay id":     {"A delay ID is known by half, or its message lost it.", "It is forgotten, or given back."},
	"scheduler":    {"The scheduler would not look when something is due.", "It is told to look."},
	"eviction":     {"Redis may evict messages when its memory is full.", ""},
	"persistence":  {"Redis may lose messages when it restarts.", ""},
	"failed write": {"Redis failed to write to its disk.", ""},
	"clock":        {"The clock of the Redis server is off.", ""},
}

// checkEvery is how often somebody who may only look may have a topic checked.
const checkEvery = time.Minute

// examine begins a check of a topic, one at a time. Who asks while one is under way gets that one.
func (d *Dashboard) examine(c *call) (string, error) {
	topic := c.q("t")
	stats, err := d.read(c.ctx, topic)
	if err != nil {
		return "", err
	}
	last, ok := d.jobs.lastCheck(topic)
	if ok && (last.Running() || c.user.Role < Operator && d.sweep.now().Sub(last.Ended) < checkEvery) {
		return d.address("/job", "id", last.ID), nil
	}
	id, err := d.jobs.start(d, checking, target{Topic: topic}, c.user, entriesOf(stats))
	if err != nil {
		return "", err
	}
	return d.address("/job", "id", id), nil
}

// entriesOf returns about how many entries a check of a topic reads.
func entriesOf(s admin.Stats) int {
	n := s.Messages + 2*s.Waiting + 2*s.DelayIDs // each is in messages, and those that wait have options, too
	for _, g := range s.Groups {
		n += g.Ready + 2*(g.InHand+g.Retrying+g.Dead) + g.Suspects
	}
	if len(s.Groups) > 1 {
		n += s.Messages - s.Waiting // in refs
	}
	return n
}

// lastCheck returns the newest check of a topic.
func (s *jobs) lastCheck(topic string) (jobView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range slices.Backward(s.all) {
		if j.view.Checks() && j.view.Target.Topic == topic {
			return j.view, true
		}
	}
	return jobView{}, false
}
