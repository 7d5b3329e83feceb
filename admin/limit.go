package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Limit is how many messages of a group may begin, over all its processes. The fields are those of
// redisdelay.SubscriberConfig. The zero value is no limit.
type Limit struct {
	// Rate is how many messages may begin in a second, from one a day to 100,000. 0: any number.
	Rate redisdelay.Limit `json:"rate"`

	// Burst is how many may begin at once after a pause. 0: what Rate brings in 100ms, and at least
	// one for each partition. Only with Rate.
	Burst int `json:"burst"`

	// AtOnce is how many may be in hand at the same time. 0: any number.
	AtOnce int `json:"at_once"`
}

// String returns the limit in a few words, such as "50/s, burst 10, 5 at once".
func (l Limit) String() string {
	var parts []string
	if l.Rate > 0 {
		parts = append(parts, texts.Rate(float64(l.Rate)), fmt.Sprintf("burst %d", l.Burst))
	}
	if l.AtOnce > 0 {
		parts = append(parts, fmt.Sprintf("%d at once", l.AtOnce))
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

// ParseRate reads a Limit.Rate as people say it: a number of messages in a time, such as "50/s",
// "10/m", "1/h", "1/d" or "100/5s". The error says what is wrong, and wraps ErrInvalidArgument.
func ParseRate(text string) (redisdelay.Limit, error) {
	perSecond, err := texts.ParseRate(text)
	if err != nil {
		return 0, fmt.Errorf("%w: the rate %w", ErrInvalidArgument, err)
	}
	return redisdelay.Limit(perSecond), nil
}

// check returns all that is wrong with the limit.
func (l Limit) check() error {
	var faults []error
	for _, field := range []struct {
		name string
		err  error
	}{
		{"Rate", queue.CheckRate(float64(l.Rate))},
		{"Burst", queue.CheckBurst(l.Burst, l.Rate != 0)},
		{"AtOnce", queue.CheckAtOnce(l.AtOnce)},
	} {
		if field.err != nil {
			faults = append(faults, fmt.Errorf("%w: %s %w", ErrInvalidArgument, field.name, field.err))
		}
	}
	return errors.Join(faults...)
}

// GroupLimit is the limit of a group, and who decided on it. The zero value is no limit.
type GroupLimit struct {
	Limit // that applies

	// Set is true if SetLimit has set it, and false if it is what the last subscriber asked for.
	// Asked is what that asked for.
	Set   bool  `json:"set"`
	Asked Limit `json:"asked"`
}

// String returns the limit in a few words, and who decided on it if that was an operator.
func (l GroupLimit) String() string {
	switch {
	case !l.Set:
		return l.Limit.String()
	case l.Limit == Limit{}:
		return "lifted; subscribers ask for " + l.Asked.String()
	}
	return l.Limit.String() + ", set by an operator"
}

// LimitChange is what SetLimit or ResetLimit did.
type LimitChange struct {
	Group  string     `json:"group"`
	Before GroupLimit `json:"before"`
	After  GroupLimit `json:"after"`
}

// SetLimit sets the limit of a group, and applies at once, in all processes. It replaces what
// subscribers ask for, also when they start again later, until ResetLimit. A Limit of zero lifts
// each limit. In a partitioned topic each partition gets an equal share.
//
// Messages in hand go on. If there are more than AtOnce, no other begins until enough are settled.
// The first limit of a topic marks its layout: programs of a version without limits that start
// later refuse the topic with ErrLayout. Errors wrap ErrInvalidArgument for a wrong Limit, or if a
// partition would get less than one message, ErrNotFound, or ErrTopicMode for the group of a Redis
// Stream.
func (a *Admin) SetLimit(ctx context.Context, topic, group string, limit Limit) (LimitChange, error) {
	if err := limit.check(); err != nil {
		return LimitChange{}, fmt.Errorf("set the limit of group %q of topic %q: %w", groupName(group), topic, err)
	}
	change, err := a.setLimit(ctx, topic, groupName(group), &limit)
	if err != nil {
		return LimitChange{}, fmt.Errorf("set the limit of group %q of topic %q: %w", groupName(group), topic, err)
	}
	return change, nil
}

// ResetLimit ends what SetLimit has set: what the last subscriber of the group asked for applies
// again. Errors wrap ErrNotFound, or ErrTopicMode for the group of a Redis Stream.
func (a *Admin) ResetLimit(ctx context.Context, topic, group string) (LimitChange, error) {
	change, err := a.setLimit(ctx, topic, groupName(group), nil)
	if err != nil {
		return LimitChange{}, fmt.Errorf("reset the limit of group %q of topic %q: %w", groupName(group), topic, err)
	}
	return change, nil
}

// setLimit sets the limit of a group in each partition, or resets it with nil. The shares are made
// before anything is written.
func (a *Admin) setLimit(ctx context.Context, topic, group string, limit *Limit) (LimitChange, error) {
	var share *queue.GroupLimit
	if limit != nil {
		n, err := a.sharing(ctx, topic)
		if err != nil {
			return LimitChange{}, err
		}
		whole := queue.GroupLimit{Rate: float64(limit.Rate), Burst: limit.Burst, AtOnce: limit.AtOnce}
		if whole.Rate > 0 && whole.Burst == 0 {
			whole.Burst = max(queue.DefaultBurst(whole.Rate), n)
		}
		part, err := whole.Share(n)
		if err != nil {
			return LimitChange{}, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
		}
		share = &part
	}
	change, err := over(ctx, a, topic, func(plain string) (*LimitChange, error) {
		t, err := a.topic(ctx, plain, rights.Assigning)
		if err != nil {
			return nil, err
		}
		before, after, err := t.SetLimit(ctx, group, share)
		if err != nil {
			return nil, err
		}
		return &LimitChange{Group: group, Before: limitOf(before), After: limitOf(after)}, nil
	}, addChange)
	if err != nil {
		return LimitChange{}, err
	}
	return *change, nil
}

// addChange adds what was changed in another partition.
func addChange(sum **LimitChange, part *LimitChange) {
	if *sum == nil {
		*sum = part
		return
	}
	if part != nil {
		(*sum).Before.add(part.Before)
		(*sum).After.add(part.After)
	}
}

// sharing returns how many partitions share a limit of the topic: those that messages may be in, or
// will be in after a change that has begun. It is 1 for a plain topic.
func (a *Admin) sharing(ctx context.Context, topic string) (int, error) {
	parts, err := a.parts(ctx, topic)
	if err != nil || len(parts) == 0 {
		return 1, err
	}
	set, err := queue.PartitioningOf(ctx, a.client, a.config.KeyPrefix, topic)
	if err != nil {
		return 0, err
	}
	return sharers(set, parts), nil
}

// sharers returns how many partitions share a limit, by their numbers and those that exist.
func sharers(p queue.Partitioning, parts []string) int {
	return cmp.Or(max(p.Count, p.Before, p.Next), len(parts))
}

// share shares the limits that SetLimit has set among another number of partitions. All shares are
// made before any is written.
func (c *change) share(ctx context.Context, from, to int) error {
	if len(c.parts) == 0 {
		return nil
	}
	stats, err := c.admin.partStats(ctx, c.topic)
	if err != nil {
		return err
	}
	shares := map[string]queue.GroupLimit{} // of each group, that of one partition
	for _, s := range stats {
		if s.Err != nil {
			return aboutTopic(s.Topic, s.Err)
		}
		for _, g := range s.Groups {
			if _, known := shares[g.Group]; g.Limit.Set && !known {
				shares[g.Group] = queue.GroupLimit{Rate: float64(g.Limit.Rate), Burst: g.Limit.Burst, AtOnce: g.Limit.AtOnce}
			}
		}
	}
	for group, share := range shares {
		whole := queue.GroupLimit{Rate: share.Rate * float64(from), Burst: share.Burst * from, AtOnce: share.AtOnce * from}
		if shares[group], err = whole.Share(to); err != nil {
			return fmt.Errorf("%w: the limit of group %q: %w", ErrInvalidArgument, group, err)
		}
	}
	for _, s := range stats {
		for _, g := range s.Groups {
			share, set := shares[g.Group]
			if !set {
				continue
			}
			t, err := c.admin.topic(ctx, s.Topic, rights.Assigning)
			if err == nil {
				_, _, err = t.SetLimit(ctx, g.Group, &share)
			}
			if err != nil && !errors.Is(err, ErrNotFound) {
				return aboutTopic(s.Topic, err)
			}
			c.shared = true
		}
	}
	return nil
}

// limitOf returns the limit of a group by its settings.
func limitOf(o queue.GroupOptions) GroupLimit {
	return GroupLimit{Limit: limitFrom(o.Effective()), Set: o.Set != nil, Asked: limitFrom(o.Limit)}
}

func limitFrom(l queue.GroupLimit) Limit {
	return Limit{Rate: redisdelay.Limit(l.Rate), Burst: l.Burst, AtOnce: l.AtOnce}
}

// plus returns the limit of two partitions together. A number without a limit in one has none in
// both.
func (l Limit) plus(part Limit) Limit {
	var sum Limit
	if l.Rate > 0 && part.Rate > 0 {
		sum.Rate, sum.Burst = l.Rate+part.Rate, l.Burst+part.Burst
	}
	if l.AtOnce > 0 && part.AtOnce > 0 {
		sum.AtOnce = l.AtOnce + part.AtOnce
	}
	return sum
}

// add adds the limit of the group in another partition.
func (l *GroupLimit) add(part GroupLimit) {
	*l = GroupLimit{Limit: l.plus(part.Limit), Set: l.Set || part.Set, Asked: l.Asked.plus(part.Asked)}
}
