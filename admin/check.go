package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Severity is how bad a finding is.
type Severity string

const (
	// Violation is a finding that should not be possible: something outside of this library changed, evicted
	// or lost keys, or there is a bug.
	Violation Severity = "violation"
	// Warning is a finding about the server that may cost messages, or that could not be found out.
	Warning Severity = "warning"
)

// Finding is something that Check found.
type Finding struct {
	Severity Severity

	// Kind says what it is in a word or two, always the same for the same kind.
	Kind string

	// Group and MessageID are what it is about; "": no one group, no one message.
	Group, MessageID string

	// Detail says it in a sentence.
	Detail string

	violation operate.Violation
}

// String is the finding in a line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.Kind)
	if f.Group != "" {
		fmt.Fprintf(&b, ", group %q", f.Group)
	}
	if f.MessageID != "" {
		fmt.Fprintf(&b, ", message %s", f.MessageID)
	}
	return b.String() + ": " + f.Detail
}

// Report is what Check found out.
type Report struct {
	Topic    string
	Findings []Finding
	Messages int // that were looked at

	// Unconfirmed counts suspicions that are not reported, because too much was going on to be sure of them.
	// Another Check may be.
	Unconfirmed int
}

// Violations are the findings that are no mere warnings.
func (r Report) Violations() []Finding {
	var found []Finding
	for _, f := range r.Findings {
		if f.Severity == Violation {
			found = append(found, f)
		}
	}
	return found
}

// Check looks at all that a topic has in Redis, and at the server, for what is wrong. It may be called while the topic
// is in use: each violation was confirmed in one step, and what merely moved while it was looked at is none. It takes
// many short steps: some seconds for each 100,000 messages, and about a hundred bytes of memory for each that is ready;
// with several groups longer, by the square of their number. It changes nothing, but that it first finishes removals of
// groups that were begun and not ended. It begins again if the set of groups changes meanwhile, and gives up after five
// times.
//
// Errors wrap ErrNotFound or ErrChanging, or come from ctx or Redis.
func (a *Admin) Check(ctx context.Context, topic string) (Report, error) {
	t, err := a.topic(ctx, topic, queue.Checking)
	if err != nil {
		return Report{Topic: topic}, fmt.Errorf("check: %w", err)
	}
	return a.check(ctx, t)
}

func (a *Admin) check(ctx context.Context, t *operate.Topic) (Report, error) {
	topic := t.Name
	report := Report{Topic: topic}
	audit, err := t.Audit(ctx)
	if err != nil {
		return report, fmt.Errorf("check topic %q: %w", topic, err)
	}
	report.Messages, report.Unconfirmed = audit.Messages, audit.Unconfirmed
	for _, v := range audit.Violations {
		report.Findings = append(report.Findings, finding(v))
	}
	server, err := t.Server(ctx)
	if err != nil {
		return report, fmt.Errorf("check the server of topic %q: %w", topic, err)
	}
	report.Findings = append(report.Findings, serverFindings(server)...)
	return report, nil
}

func finding(v operate.Violation) Finding {
	return Finding{Severity: Violation, Kind: string(v.Fault), Group: v.Group, MessageID: v.ID, Detail: v.Detail, violation: v}
}

// Repaired is what Repair did.
type Repaired struct {
	Report // what it found

	Mended []Mending
	// Left are the violations that it did nothing about: they are right by now, will be by themselves, or
	// mending them is not safe.
	Left []Finding
}

// Mending is a violation and what was done about it.
type Mending struct {
	Finding
	Done []string
}

// Repair is Check, and mends what is safe to mend: no message that has a body is lost by it. One that was
// found in no state is delivered again, to all groups, some of which may have had it: see docs/control.md for
// each kind. It may be called while the topic is in use, since each violation is looked at again in the step
// that mends it.
//
// Errors wrap ErrNotFound or ErrChanging, or come from ctx or Redis.
func (a *Admin) Repair(ctx context.Context, topic string) (Repaired, error) {
	t, err := a.topic(ctx, topic, queue.Repairing)
	if err != nil {
		return Repaired{Report: Report{Topic: topic}}, fmt.Errorf("repair: %w", err)
	}
	report, err := a.check(ctx, t)
	repaired := Repaired{Report: report}
	if err != nil {
		return repaired, err
	}
	for _, f := range report.Violations() {
		done, err := t.Mend(ctx, f.violation)
		if err != nil {
			return repaired, fmt.Errorf("repair topic %q: %s: %w", topic, f, err)
		}
		if len(done) > 0 {
			repaired.Mended = append(repaired.Mended, Mending{f, done})
		} else {
			repaired.Left = append(repaired.Left, f)
		}
	}
	return repaired, nil
}
