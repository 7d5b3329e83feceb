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
	if p.Group == "" {
		b.WriteString("the topic")
	} else {
		fmt.Fprintf(&b, "group %q", p.Group)
	}
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

// PauseOptions says who pauses, why, and for how long. The zero value says nothing.
type PauseOptions struct {
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

// Pause stops the deliveries of a topic in all processes, until Resume or for PauseOptions.For,
// even after a restart. A second Pause keeps Since, and replaces all else. The partitions of a
// partitioned topic are paused one after the other.
//
// Messages still become ready when due, but are not delivered. Messages that consumers hold are
// settled as usual. Retries become ready, and leases are extended or expire. A message that has
// expired by the time of Resume is then dropped or dead-lettered, as its OnExpiry says. In a topic
// with a Redis Stream, due messages do not go into the stream; its consumers continue with the
// entries that are there.
//
// Errors wrap ErrNotFound, ErrInvalidArgument, ErrInvalidTopic, ErrForbidden, ErrServerFull or
// ErrLayout, or come from ctx or Redis.
func (a *Admin) Pause(ctx context.Context, topic string, o PauseOptions) (Pause, error) {
	return a.pause(ctx, topic, "", o)
}

// PauseGroup pauses one group.
//
// Errors wrap ErrNotFound, ErrInvalidArgument, ErrInvalidTopic, ErrForbidden, ErrServerFull or
// ErrLayout, or come from ctx or Redis.
func (a *Admin) PauseGroup(ctx context.Context, topic, group string, o PauseOptions) (Pause, error) {
	return a.pause(ctx, topic, groupName(group), o)
}

func (a *Admin) pause(ctx context.Context, topic, group string, o PauseOptions) (Pause, error) {
	if err := o.check(); err != nil {
		return Pause{}, fmt.Errorf("pause: %w", err)
	}
	p, err := over(ctx, a, topic, func(plain string) (*Pause, error) {
		t, err := a.topic(ctx, plain, rights.Pausing)
		if err != nil {
			return nil, err
		}
		reply, err := t.Pause(ctx, group, o.By, o.Why, o.For)
		if err != nil {
			return nil, err
		}
		return &Pause{Group: group, Since: reply.Time("since"), By: o.By, Why: o.Why, Until: reply.Time("until_ms")}, nil
	}, func(sum **Pause, part *Pause) { *sum = earlier(*sum, part) })
	if err != nil {
		return Pause{}, fmt.Errorf("pause: %w", err)
	}
	return *p, nil
}

// Resume ends Pause, and wakes the consumers. It returns whether the topic was paused. Groups that
// were paused by PauseGroup stay paused.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden or ErrLayout, or come from ctx or Redis.
func (a *Admin) Resume(ctx context.Context, topic string) (was bool, err error) {
	return a.resume(ctx, topic, "")
}

// ResumeGroup ends PauseGroup. If the topic is paused, the group stays paused until Resume.
//
// Errors wrap ErrNotFound, ErrInvalidTopic, ErrForbidden or ErrLayout, or come from ctx or Redis.
func (a *Admin) ResumeGroup(ctx context.Context, topic, group string) (was bool, err error) {
	return a.resume(ctx, topic, groupName(group))
}

func (a *Admin) resume(ctx context.Context, topic, group string) (was bool, err error) {
	was, err = over(ctx, a, topic, func(plain string) (bool, error) {
		t, err := a.topic(ctx, plain, rights.Resuming)
		if err != nil {
			return false, err
		}
		return t.Resume(ctx, group)
	}, first)
	if err != nil {
		return was, fmt.Errorf("resume: %w", err)
	}
	return was, nil
}
