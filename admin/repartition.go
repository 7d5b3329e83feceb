package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Partitioning is the number of partitions of a partitioned topic, and how far a change of it is.
type Partitioning struct {
	Topic string `json:"topic"`

	// Partitions is the number that publishers use.
	Partitions int `json:"partitions"`

	// Before is the number that they used before, as long as messages from then may be left. Next
	// is the number that they use next, when all subscribers have as many. 0 means none. One of
	// them is set while a change is under way.
	Before int `json:"before,omitempty"`
	Next   int `json:"next,omitempty"`

	// Since is when the last step was done, by the server's clock.
	Since time.Time `json:"since"`

	// Left says what the next step waits for, in sentences. Without any, and with a change under
	// way, another call does it.
	Left []string `json:"left"`

	// Unused are plain topics of partitions that the topic does not have any more. They can be
	// deleted when no subscriber reads them. It is only known when no change is under way.
	Unused []string `json:"unused,omitempty"`
}

// Done returns whether no change is under way.
func (p Partitioning) Done() bool { return p.Before == 0 && p.Next == 0 }

// settleFor is how long programs may use a number of partitions after another one was set.
const settleFor = 10 * time.Second

// SetPartitions changes the number of partitions of a topic, while it is in use. A call does the
// next step that is safe, or says in Partitioning.Left what it waits for. Further calls go on. With
// n 0 it changes nothing, and says how far the change is. The steps are:
//
//   - To grow, the first call sets Next. When each group has a subscription in each new partition,
//     a call has the publishers use them, and sets Before. Until then, the number that there is
//     calls the growth off.
//   - To shrink, the first call has the publishers use the lower number, and sets Before.
//   - When no message is left in a partition that its key has left, a call clears Before. A growth
//     reads all messages of the old partitions for that. A shrink needs the last ones to be empty.
//
// Limits that SetLimit has set are shared anew: lower ones before a growth, higher ones when a
// shrink is done. Shares are whole numbers, so their sum may be lower then. An error says if a
// second call would lower them again.
//
// Programs whose number is set in their configuration do not follow: restart them as Left says. One
// operator may change a topic at a time. The key of a message is what docs/scale.md says, without
// PublisherConfig.KeyFunc. Errors wrap ErrNotFound if n is 0 and the topic has no partitions, or
// ErrInvalidArgument for a wrong n, the name of a plain topic, or a limit that is less than one
// message for each partition.
func (a *Admin) SetPartitions(ctx context.Context, topic string, n int) (Partitioning, error) {
	p, err := a.setPartitions(ctx, topic, n)
	if err != nil {
		return Partitioning{}, fmt.Errorf("set the partitions of topic %q: %w", topic, err)
	}
	return p, nil
}

func (a *Admin) setPartitions(ctx context.Context, topic string, n int) (Partitioning, error) {
	switch {
	case topic == "" || len(topic) > partitions.MaxTopicLength:
		return Partitioning{}, fmt.Errorf("%w: want 1 to %d bytes", ErrInvalidTopic, partitions.MaxTopicLength)
	case n < 0 || n > partitions.Max:
		return Partitioning{}, fmt.Errorf("%w: %d partitions, want 1 to %d", ErrInvalidArgument, n, partitions.Max)
	}
	plain, err := queue.ListedOf(ctx, a.client, a.config.KeyPrefix, []string{topic})
	if err == nil && len(plain) > 0 {
		err = fmt.Errorf("%w: a plain topic has this name; delete it first", ErrInvalidArgument)
	}
	if err != nil {
		return Partitioning{}, err
	}
	set, err := queue.PartitioningOf(ctx, a.client, a.config.KeyPrefix, topic)
	if err != nil {
		return Partitioning{}, err
	}
	now, err := queue.PartitioningTime(ctx, a.client, a.config.KeyPrefix)
	if err != nil {
		return Partitioning{}, err
	}
	parts, err := a.parts(ctx, topic)
	if err != nil {
		return Partitioning{}, err
	}
	was := set
	if set.Count == 0 && len(parts) > 0 { // by the programs' configurations
		set.Count = numberOf(parts[len(parts)-1]) + 1
	}
	c := &change{admin: a, topic: topic, now: now, parts: parts}
	next, err := c.step(ctx, set, n)
	if err != nil {
		return Partitioning{}, err
	}
	if n > 0 && next != was {
		next.Since = now
		from, to := sharers(set, parts), sharers(next, parts)
		if from <= to { // the shares are right before messages come
			err = c.share(ctx, from, to)
		}
		if err == nil {
			err = queue.SetPartitioning(ctx, a.client, a.config.KeyPrefix, topic, next)
			if err != nil && from < to && c.shared {
				err = fmt.Errorf("%w; the limits that operators have set may be lowered already: once the number is set, set them again", err)
			}
		}
		if err == nil && from > to {
			err = c.share(ctx, from, to)
		}
		if err != nil {
			return Partitioning{}, err
		}
	}
	if next != c.looked {
		if err := c.look(ctx, next); err != nil {
			return Partitioning{}, err
		}
	}
	is := Partitioning{Topic: topic, Partitions: next.Count, Before: next.Before, Next: next.Next, Since: next.Since, Left: c.left}
	for _, plain := range parts {
		if is.Done() && numberOf(plain) >= is.Partitions {
			is.Unused = append(is.Unused, plain)
		}
	}
	return is, nil
}

// change is one call of SetPartitions.
type change struct {
	admin *Admin
	topic string
	now   time.Time
	parts []string // that exist

	shared bool // shares of limits were written

	looked queue.Partitioning // the numbers that left is about
	left   []string
}

// step returns the numbers after the next step towards n.
func (c *change) step(ctx context.Context, p queue.Partitioning, n int) (queue.Partitioning, error) {
	switch {
	case n == 0 && p.Count == 0:
		return p, fmt.Errorf("it has no partitions: %w", ErrNotFound)
	case n == 0:
		return p, nil
	case p.Count == 0:
		return queue.Partitioning{Count: n}, nil
	case p.Before != 0 && n != p.Count:
		return p, fmt.Errorf("%w: a change from %d to %d is under way; finish that first", ErrInvalidArgument, p.Before, p.Count)
	case n < p.Count:
		return queue.Partitioning{Count: n, Before: p.Count}, nil
	case n > p.Count && n != p.Next:
		return queue.Partitioning{Count: p.Count, Next: n}, nil
	case n == p.Count && p.Before == 0:
		p.Next = 0 // called off
		return p, nil
	}
	if err := c.look(ctx, p); err != nil || len(c.left) > 0 {
		return p, err
	}
	if p.Next != 0 {
		return queue.Partitioning{Count: p.Next, Before: p.Count}, nil
	}
	return queue.Partitioning{Count: p.Count}, nil
}

func (c *change) wait(format string, args ...any) {
	c.left = append(c.left, fmt.Sprintf(format, args...))
}

// look finds out what the next step waits for.
func (c *change) look(ctx context.Context, p queue.Partitioning) (err error) {
	c.looked, c.left = p, nil
	switch {
	case p.Next != 0:
		err = c.unread(ctx, p)
	case p.Before == 0:
	case c.now.Sub(p.Since) < settleFor:
		c.wait("Publishers may still use %d partitions: those that follow do for at most %v, and others until they are restarted with %d.", p.Before, settleFor, p.Count)
	case p.Count < p.Before:
		err = c.stored(ctx, p)
	default:
		err = c.moved(ctx, p)
	}
	return err
}

// unread looks for groups that do not read the new partitions.
func (c *change) unread(ctx context.Context, p queue.Partitioning) error {
	stats, err := c.admin.partStats(ctx, c.topic)
	if err != nil {
		return err
	}
	reads := map[string]map[int]bool{} // group -> the partitions that somebody reads
	for _, s := range stats {
		if s.Err != nil {
			return aboutTopic(s.Topic, s.Err)
		}
		for _, g := range s.Groups {
			if s.Stream || strings.HasPrefix(g.Group, "broadcast:") {
				continue // it has no subscriptions, or belongs to a single one
			}
			if reads[g.Group] == nil {
				reads[g.Group] = map[int]bool{}
			}
			reads[g.Group][numberOf(s.Topic)] = g.Subscribed
		}
	}
	for _, group := range slices.Sorted(maps.Keys(reads)) {
		missing := 0
		for i := p.Count; i < p.Next; i++ {
			if !reads[group][i] {
				missing++
			}
		}
		if missing > 0 {
			c.wait("Group %q has no subscription in %d of the %d new partitions: start its subscribers with %d, or remove the group if nobody uses it.", group, missing, p.Next-p.Count, p.Next)
		}
	}
	return nil
}

// stored looks for messages in the partitions that go.
func (c *change) stored(ctx context.Context, p queue.Partitioning) error {
	for _, plain := range c.parts {
		if i := numberOf(plain); i < p.Count || i >= p.Before {
			continue
		}
		s, err := c.admin.stats(ctx, plain)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return aboutTopic(plain, err)
		case s.Messages > 0:
			dead := 0
			for _, g := range s.Groups {
				dead += g.Dead
			}
			c.wait("Partition %q has messages: %d, and %d dead letters.", plain, s.Messages, dead)
		}
	}
	return nil
}

// moved looks for messages whose keys have left the partitions that there were before.
func (c *change) moved(ctx context.Context, p queue.Partitioning) error {
	for _, plain := range c.parts {
		if numberOf(plain) >= p.Before {
			continue
		}
		s, err := c.admin.stats(ctx, plain)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return aboutTopic(plain, err)
		}
		found, err := c.holdsMoved(ctx, plain, p.Count, Query{State: Waiting, Limit: 1000})
		for _, g := range s.Groups {
			for _, state := range []State{Ready, InHand, Retrying} {
				if err == nil && !found {
					found, err = c.holdsMoved(ctx, plain, p.Count, Query{Group: g.Group, State: state, Limit: 1000})
				}
			}
		}
		if err != nil {
			return aboutTopic(plain, err)
		}
		if found {
			c.wait("Partition %q has messages whose keys are in another partition now.", plain)
		}
	}
	return nil
}

// holdsMoved returns whether a partition has a message in a state whose key is elsewhere with n
// partitions.
func (c *change) holdsMoved(ctx context.Context, plain string, n int, q Query) (bool, error) {
	seen := map[string]bool{} // in hand: while leases are extended, the pages have no end
	for {
		page, err := c.admin.page(ctx, plain, plain, q)
		if errors.Is(err, ErrNotFound) {
			return false, nil // the group was removed
		}
		if err != nil {
			return false, err
		}
		known := 0
		for _, m := range page.Messages {
			if m.Err != nil {
				return true, nil // nobody can tell
			}
			key := m.Metadata[partitions.KeyMetadata]
			if key == "" {
				key = m.DelayID
			}
			if key != "" && partitions.OfKey(key, n) != numberOf(plain) {
				return true, nil
			}
			if q.State == InHand && seen[m.ID] {
				known++
			}
			if q.State == InHand {
				seen[m.ID] = true
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" || known > 0 && known == len(page.Messages) {
			return false, nil
		}
	}
}
