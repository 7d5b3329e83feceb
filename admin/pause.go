package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Pause is a pause of a topic, or of one of its groups.
type Pause struct {
	Group string    `json:"group,omitempty"` // "": the whole topic
	Since time.Time `json:"since"`

	// By is who paused it, and Why is the reason, as PauseOptions said; "" if it did not.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`

	// Until is when a scheduler ends the pause; zero means that only Resume does.
	Until time.Time `json:"until"`
}

// String returns the pause in a few words.
func (p Pause) String() string {
	var b strings.Builder
	b.WriteString(Scope{p.Group}.String())
	b.WriteString(" is paused since " + p.Since.UTC().Format(time.RFC3339))
	if !p.Until.IsZero() {
		b.WriteString(", until " + p.Until.UTC().Format(time.RFC3339))
	}
	if p.By != "" {
		fmt.Fprintf(&b, ", by %q", p.By)
	}
	if p.Why != "" {
		fmt.Fprintf(&b, ", because: %q", p.Why)
	}
	return b.String()
}

// Scope is a whole topic, or one of its groups. The zero value is the whole topic.
type Scope struct{ group string }

// InGroup is one group. As everywhere in this package, "" is redisdelay.DefaultConsumerGroup. So a
// name that is empty by mistake never means the whole topic.
func InGroup(group string) Scope { return Scope{groupName(group)} }

// String returns the scope in words.
func (s Scope) String() string {
	if s.group == "" {
		return "the topic"
	}
	return fmt.Sprintf("group %q", s.group)
}

// PauseOptions says what is paused, who pauses it, why, and for how long. The zero value is the
// whole topic, until Resume.
type PauseOptions struct {
	Scope Scope // what is paused: the whole topic, or InGroup one group

	// By is who pauses, at most 256 bytes, and Why is the reason, at most 1,024 bytes.
	By, Why string

	// For is how long the pause lasts, rounded up to the millisecond. A scheduler ends it, as
	// punctually as it makes messages ready. 0 means until Resume. The maximum is
	// redisdelay.MaxDelay.
	For time.Duration
}

func (o PauseOptions) check() error {
	switch {
	case len(o.By) > 256:
		return fmt.Errorf("%w: By has %d bytes, want at most 256", ErrInvalidArgument, len(o.By))
	case len(o.Why) > 1024:
		return fmt.Errorf("%w: Why has %d bytes, want at most 1024", ErrInvalidArgument, len(o.Why))
	case o.For < 0 || o.For > redisdelay.MaxDelay:
		return fmt.Errorf("%w: For is %v, want from 0 to %v", ErrInvalidArgument, o.For, redisdelay.MaxDelay)
	}
	return nil
}

// Lasts returns in words how long the pause lasts, and why.
func (o PauseOptions) Lasts() string {
	text := "until resume"
	if o.For > 0 {
		text = "for " + o.For.String()
	}
	if o.Why != "" {
		text += ": " + o.Why
	}
	return text
}

// Pause stops the deliveries of a topic, or of one of its groups, in all processes, until Resume or
// for PauseOptions.For, even after a restart. A second Pause of the same Scope keeps Since, and
// replaces all else. Errors wrap ErrInvalidArgument for wrong PauseOptions.
//
// Messages still become ready when due, but are not delivered. Those that consumers hold are
// settled as usual. A message that has expired by the time of Resume is then dropped or dead-
// lettered, as its OnExpiry says. In a topic with a Redis Stream, due messages do not go into the
// stream, whose consumers continue with the entries that are there.
func (a *Admin) Pause(ctx context.Context, topic string, o PauseOptions) (Pause, error) {
	if err := o.check(); err != nil {
		return Pause{}, fmt.Errorf("pause: %w", err)
	}
	p, err := over(ctx, a, topic, func(plain string) (*Pause, error) {
		t, err := a.topic(ctx, plain, rights.Pausing)
		if err != nil {
			return nil, err
		}
		reply, err := t.Pause(ctx, o.Scope.group, o.By, o.Why, o.For)
		if err != nil {
			return nil, err
		}
		return &Pause{Group: o.Scope.group, Since: reply.Time("since"), By: o.By, Why: o.Why, Until: reply.Time("until_ms")}, nil
	}, func(sum **Pause, part *Pause) { *sum = earlier(*sum, part) })
	if err != nil {
		return Pause{}, fmt.Errorf("pause: %w", err)
	}
	return *p, nil
}

// ResumeOptions says what is resumed.
type ResumeOptions struct {
	Scope Scope // what Pause paused: the whole topic, or InGroup one group
}

// Resume ends the Pause of the same Scope, wakes the consumers, and returns whether there was one.
// Pauses of other scopes go on: a group gets messages when neither it nor the topic is paused.
func (a *Admin) Resume(ctx context.Context, topic string, o ResumeOptions) (was bool, err error) {
	was, err = over(ctx, a, topic, func(plain string) (bool, error) {
		t, err := a.topic(ctx, plain, rights.Resuming)
		if err != nil {
			return false, err
		}
		return t.Resume(ctx, o.Scope.group)
	}, first)
	if err != nil {
		return was, fmt.Errorf("resume: %w", err)
	}
	return was, nil
}
