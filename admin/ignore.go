package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Ignored says that an operator accepts problems, and why. Redis keeps it, so it holds for
// everybody who looks with the same key prefix.
type Ignored struct {
	// Kind is the kind of the problems. Topic and Group are those that they are about. "" means
	// any, and problems of the server, which have none. A partitioned topic means all its
	// partitions.
	Kind  ProblemKind `json:"kind"`
	Topic string      `json:"topic,omitempty"`
	Group string      `json:"group,omitempty"`

	// Severity is the worst that is accepted. A problem that gets worse shows again. "" accepts
	// any.
	Severity Severity `json:"severity,omitempty"`

	// By is who accepts it, and Why the reason. Both are required.
	By  string `json:"by"`
	Why string `json:"why"`

	// Since is since when, by the server's clock. Ignore sets it.
	Since time.Time `json:"since"`
}

// String returns who ignores the problems since when, and why.
func (i Ignored) String() string {
	return fmt.Sprintf("ignored by %q since %s, because: %q", i.By, i.Since.UTC().Format(time.RFC3339), i.Why)
}

// covers tells whether it is about a problem.
func (i Ignored) covers(p Problem) bool {
	return i.Kind == p.Kind && (i.Severity == "" || rank(severities, p.Severity) >= rank(severities, i.Severity)) &&
		(i.Group == "" || i.Group == p.Group) && p.isAbout(i.Topic)
}

// Worst returns the severity of the worst problem that an Ignored would cover, and that nobody
// ignores. It is "" if there is none. The Severity of the Ignored is not used.
func (d Diagnosis) Worst(i Ignored) Severity {
	i.Severity = ""
	for _, severity := range severities {
		if slices.ContainsFunc(d.Problems, func(p Problem) bool { return p.Severity == severity && p.Ignored == nil && i.covers(p) }) {
			return severity
		}
	}
	return ""
}

// Ignore notes that problems are accepted. Diagnose then shows them last, with who and why. It
// replaces what was noted for the same Kind, Topic and Group. Texts are cut at 1,024 bytes. Errors
// wrap ErrInvalidArgument without By or Why, for an unknown Kind or Severity, for a Group without a
// Topic, or if 1,000 are ignored.
func (a *Admin) Ignore(ctx context.Context, i Ignored) (Ignored, error) {
	kind, err := KindOf(string(i.Kind))
	switch {
	case err != nil:
	case i.By == "" || i.Why == "":
		err = fmt.Errorf("%w: an Ignored needs By and Why", ErrInvalidArgument)
	case i.Group != "" && i.Topic == "":
		err = fmt.Errorf("%w: Group is %q, and there is no Topic", ErrInvalidArgument, i.Group)
	case i.Severity != "" && !slices.Contains(severities, i.Severity):
		err = fmt.Errorf("%w: Severity is %.64q, want one of %v", ErrInvalidArgument, i.Severity, severities)
	}
	if err != nil {
		return i, fmt.Errorf("ignore: %w", err)
	}
	i.Kind = kind
	for _, text := range []*string{&i.By, &i.Why} {
		*text = strings.ToValidUTF8(texts.Clip(*text, actText), "\ufffd")
	}
	i.Since, err = queue.Ignore(ctx, a.client, a.config.KeyPrefix, i.stored())
	if err != nil {
		return i, fmt.Errorf("ignore: %w", err)
	}
	return i, nil
}

// Unignore ends that problems of the Kind, Topic and Group are ignored. The other fields are not
// used. Errors wrap ErrNotFound if they are not ignored.
func (a *Admin) Unignore(ctx context.Context, i Ignored) error {
	if kind, err := KindOf(string(i.Kind)); err == nil {
		i.Kind = kind
	}
	was, err := queue.Unignore(ctx, a.client, a.config.KeyPrefix, i.stored())
	if err == nil && was == 0 {
		err = fmt.Errorf("problems of kind %q of topic %q and group %q are not ignored: %w", i.Kind, i.Topic, i.Group, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("unignore: %w", err)
	}
	return nil
}

func (i Ignored) stored() queue.Ignored {
	return queue.Ignored{Kind: string(i.Kind), Topic: i.Topic, Group: i.Group, Severity: string(i.Severity), By: i.By, Why: i.Why, Since: i.Since}
}

// IgnoredProblems returns what operators ignore, by kind, topic and group. It is at most 1,000.
// Errors wrap ErrForbidden, or come from ctx or Redis.
func (a *Admin) IgnoredProblems(ctx context.Context) ([]Ignored, error) {
	stored, err := queue.IgnoredOf(ctx, a.client, a.config.KeyPrefix)
	if err != nil {
		return nil, fmt.Errorf("ignored problems: %w", err)
	}
	all := make([]Ignored, len(stored))
	for n, s := range stored {
		all[n] = Ignored{ProblemKind(s.Kind), s.Topic, s.Group, Severity(s.Severity), s.By, s.Why, s.Since}
	}
	slices.SortFunc(all, func(a, b Ignored) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group))
	})
	return all, nil
}

// forgetIgnored ends that problems of a topic are ignored which is removed. With its last partition
// that is the partitioned topic, too.
func (a *Admin) forgetIgnored(ctx context.Context, topic string) error {
	stored, err := queue.IgnoredOf(ctx, a.client, a.config.KeyPrefix)
	if err != nil {
		return err
	}
	stored = slices.DeleteFunc(stored, func(i queue.Ignored) bool {
		whole, _, parted := partitions.Parse(i.Topic)
		return i.Topic != topic && (!parted || whole != topic)
	})
	_, err = queue.Unignore(ctx, a.client, a.config.KeyPrefix, stored...)
	return err
}

// ignored marks the problems that operators accept.
func (d *doctor) ignored(ctx context.Context) error {
	if len(d.Problems) == 0 {
		return nil
	}
	all, err := d.admin.IgnoredProblems(ctx)
	if err := d.forbid(ctx, "which problems are ignored", err); err != nil {
		if ctx.Err() != nil || !d.admin.client.Cluster() {
			return err
		}
		d.add(Warning, Unreadable, Problem{Harm: Idle, Text: fmt.Sprintf("It is not known which problems are ignored: %s", sentence(err.Error()))})
	}
	MarkIgnored(d.Problems, all)
	return nil
}

// MarkIgnored sets the Ignored of each problem: one of all that covers it, or nil.
func MarkIgnored(problems []Problem, all []Ignored) {
	for n := range problems {
		problems[n].Ignored = nil
		if at := slices.IndexFunc(all, func(i Ignored) bool { return i.covers(problems[n]) }); at >= 0 {
			problems[n].Ignored = &all[at]
		}
	}
}
