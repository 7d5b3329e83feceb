package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Severity is the severity of a finding.
type Severity string

const (
	// Violation is a state that the library never writes. Something else changed, evicted or lost
	// keys, or the library has a bug.
	Violation Severity = "violation"
	// Warning is a setting of the server that may lose messages, or that could not be read.
	Warning Severity = "warning"
)

// Finding is one result of Check.
type Finding struct {
	Severity Severity `json:"severity"`

	// Kind names the kind of finding in one or two fixed words.
	Kind string `json:"kind"`

	// Topic is the partition concerned, if a partitioned topic was checked. Otherwise it is "".
	Topic string `json:"topic,omitempty"`

	// Group and MessageID are the group and message concerned; "" if there is no single one.
	Group     string `json:"group,omitempty"`
	MessageID string `json:"message_id,omitempty"`

	// Detail describes the finding in one sentence.
	Detail string `json:"detail"`

	violation operate.Violation
}

// String returns the finding on one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.Kind)
	if f.Topic != "" {
		fmt.Fprintf(&b, ", topic %q", f.Topic)
	}
	if f.Group != "" {
		fmt.Fprintf(&b, ", group %q", f.Group)
	}
	if f.MessageID != "" {
		fmt.Fprintf(&b, ", message %s", f.MessageID)
	}
	return b.String() + ": " + f.Detail
}

// Report is the result of Check.
type Report struct {
	Topic    string    `json:"topic"`
	Findings []Finding `json:"findings"`
	Messages int       `json:"messages"` // number of messages checked

	// Unconfirmed counts suspected violations that could not be confirmed, because the topic
	// changed too fast. They are not in Findings. Another Check may confirm them.
	Unconfirmed int `json:"unconfirmed"`
}

// Violations returns the findings that are violations.
func (r Report) Violations() []Finding {
	var found []Finding
	for _, f := range r.Findings {
		if f.Severity == Violation {
			found = append(found, f)
		}
	}
	return found
}

// Check checks all data of a topic in Redis, and the settings of the server. It is safe while the
// topic is in use. Each violation is confirmed, so a message that only moved is not reported.
//
// It works in many short steps. It takes some seconds per 100,000 messages and group, and about 100
// bytes of memory per message that does not wait. So the time grows with the number of groups, and
// with the number of messages in them. Check changes nothing, except that it first completes
// unfinished removals of groups. If the set of groups changes meanwhile, it starts again, and gives
// up after five attempts.
//
// A partitioned topic is checked partition by partition: see Finding.Topic.
//
// The functions progress, if any, are called after each step. Progress.Looked then counts entries
// of keys, of which a message has several.
//
// Errors wrap ErrNotFound, ErrChanging, ErrInvalidTopic, ErrForbidden or ErrLayout, or come from
// ctx or Redis.
func (a *Admin) Check(ctx context.Context, topic string, progress ...func(Progress)) (Report, error) {
	var left rest
	left.bulk.Progress = tellAll(progress)
	report, err := over(ctx, a, topic, func(plain string) (Report, error) {
		t, err := a.topic(ctx, plain, rights.Checking)
		if err != nil {
			return Report{}, fmt.Errorf("check: %w", err)
		}
		part, _ := left.next()
		report, err := a.check(ctx, t, part.Progress)
		return report.of(topic), err
	}, (*Report).add)
	report.Topic = topic
	return report, err
}

// tellAll returns a function that calls all functions.
func tellAll(progress []func(Progress)) func(Progress) {
	return func(p Progress) {
		for _, tell := range progress {
			tell(p)
		}
	}
}

// of returns the report of a plain topic as a part of that of a topic.
func (r Report) of(topic string) Report {
	for i := range r.Findings {
		if r.Topic != topic && r.Findings[i].Severity == Violation { // a warning is about the server
			r.Findings[i].Topic = r.Topic
		}
	}
	return r
}

// add adds the report of another partition. A warning is about the server, and counts once.
func (r *Report) add(part Report) {
	r.Messages, r.Unconfirmed = r.Messages+part.Messages, r.Unconfirmed+part.Unconfirmed
	for _, f := range part.Findings {
		if f.Severity == Violation || !slices.ContainsFunc(r.Findings, func(known Finding) bool { return known.String() == f.String() }) {
			r.Findings = append(r.Findings, f)
		}
	}
}

func (a *Admin) check(ctx context.Context, t *operate.Topic, tell func(Progress)) (Report, error) {
	topic := t.Name
	report := Report{Topic: topic}
	var so Progress
	audit, err := t.Audit(ctx, func(n int) {
		so.Looked += n
		tell(so)
	})
	if err != nil {
		return report, fmt.Errorf("check topic %q: %w", topic, err)
	}
	report.Messages, report.Unconfirmed = audit.Messages, audit.Unconfirmed
	for _, v := range audit.Violations {
		report.Findings = append(report.Findings, finding(v))
	}
	server, err := t.Client().Server(ctx, t.Key())
	if err != nil {
		return report, fmt.Errorf("check the server of topic %q: %w", topic, err)
	}
	report.Findings = append(report.Findings, serverFindings(server)...)
	return report, nil
}

func finding(v operate.Violation) Finding {
	return Finding{Severity: Violation, Kind: string(v.Fault), Group: v.Group, MessageID: v.ID, Detail: v.Detail, violation: v}
}

// Repaired is the result of Repair.
type Repaired struct {
	Report // the findings

	Mended []Mending `json:"mended"`
	// Left are the violations that Repair did not change. They no longer exist, will end by
	// themselves, or cannot be mended safely.
	Left []Finding `json:"left"`
}

// Mending is a violation and the changes that mended it.
type Mending struct {
	Finding
	Done []string `json:"done"`
}

// Said returns in a sentence what was done: "Made it due again, for it was in no state."
func (m Mending) Said() string {
	text := strings.Join(m.Done, ", and ")
	if text == "" {
		return "Left as it is: it is gone, ends by itself, or cannot be mended safely."
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Repair runs Check and mends the violations by four rules, which docs/control.md has. It loses no
// message that has a body. A message in no state is delivered again to all groups, even if some had
// it already. Repair is safe while the topic is in use, because each
// violation is checked again in the step that mends it. progress is as for Check, and Progress.Done
// counts the violations that were mended.
//
// Errors wrap ErrNotFound, ErrChanging, ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout,
// or come from ctx or Redis.
func (a *Admin) Repair(ctx context.Context, topic string, progress ...func(Progress)) (Repaired, error) {
	var left rest
	left.bulk.Progress = tellAll(progress)
	repaired, err := over(ctx, a, topic, func(plain string) (Repaired, error) {
		part, _ := left.next()
		return a.repair(ctx, topic, plain, part.Progress)
	}, func(sum *Repaired, part Repaired) {
		sum.Report.add(part.Report)
		sum.Mended, sum.Left = append(sum.Mended, part.Mended...), append(sum.Left, part.Left...)
	})
	repaired.Topic = topic
	return repaired, err
}

// repair is Repair for a plain topic of a topic.
func (a *Admin) repair(ctx context.Context, topic, plain string, tell func(Progress)) (Repaired, error) {
	t, err := a.topic(ctx, plain, rights.Repairing)
	if err != nil {
		return Repaired{}, fmt.Errorf("repair: %w", err)
	}
	var so Progress
	report, err := a.check(ctx, t, func(p Progress) {
		so = p
		tell(p)
	})
	repaired := Repaired{Report: report.of(topic)}
	if err != nil {
		return repaired, err
	}
	for _, f := range report.Violations() {
		done, err := t.Mend(ctx, f.violation)
		if err != nil {
			return repaired, fmt.Errorf("repair topic %q: %s: %w", plain, f, err)
		}
		if len(done) > 0 {
			repaired.Mended = append(repaired.Mended, Mending{f, done})
			so.Done++
			tell(so)
		} else {
			repaired.Left = append(repaired.Left, f)
		}
	}
	return repaired, nil
}
