package partition

import (
	"context"

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// A limit of a partitioned topic's group is divided into equal shares, one for each partition. No
// partition lends its share. The sum of all shares is not more than the limit, but for a round trip
// if the number is raised again before all subscribers have seen that it was lowered:
//
//   - When the topic grows, the shares of the partitions that exist are lowered before the group
//     exists in a new one. Subscribes register the partitions in their order, so that a Subscribe
//     with a higher number in its configuration does the same.
//   - When the topic shrinks, the other shares are raised when no subscription of the group reads the
//     last partitions any more.
//
// What an operator has set goes the same way: admin.SetPartitions changes it in the partitions that
// exist, and a Subscribe copies it into new ones. A Subscribe with a higher number in its
// configuration refuses to make the sum larger.

// shareOf returns the share of each of n partitions.
func (s *Subscriber) shareOf(n int) (queue.GroupLimit, error) {
	limit := s.limit
	if limit.Rate > 0 && limit.Burst == 0 {
		limit.Burst = max(queue.DefaultBurst(limit.Rate), n)
	}
	switch {
	case limit.Burst > 0 && limit.Burst < n:
		return limit, tooFew("Burst", limit.Burst, n)
	case limit.AtOnce > 0 && limit.AtOnce < n:
		return limit, tooFew("AtOnce", limit.AtOnce, n)
	}
	return limit.Share(n)
}

func tooFew(name string, is, n int) error {
	return field.Within("Subscriber", field.Invalid(name, "is %d; each of %d partitions needs one, so it has to be at least %d", is, n, n))
}

// sharesOf returns into how many shares the limit of a topic is divided, if this subscriber reads n
// partitions: more if others of the group read more, or are about to.
func (s *Subscriber) sharesOf(ctx context.Context, topic string, n int) (int, error) {
	if s.fixed != 0 { // otherwise n is from Redis
		set, err := s.inside.Partitioning(ctx, topic)
		if err != nil {
			return 0, err
		}
		n = max(n, set.Most())
	}
	others, err := s.unread(ctx, topic, n)
	if err != nil {
		return 0, err
	}
	read, err := s.inside.Read(ctx, others)
	if err != nil {
		return 0, err
	}
	for i, plain := range others {
		if _, number, _ := partitions.Parse(plain); read[i] {
			n = max(n, number+1)
		}
	}
	return n, nil
}

// unread returns the partitions of a topic behind the first n.
func (s *Subscriber) unread(ctx context.Context, topic string, n int) ([]string, error) {
	var others []string
	for i := n; i < MaxPartitions; i++ {
		others = append(others, partitions.Name(topic, i))
	}
	return s.inside.Listed(ctx, others)
}

// divide finds the limit of each partition, before the reading takes in the plain topics that it
// lacks. Where it reads already, it registers the groups with their new share.
func (r *reading) divide(ctx context.Context, names []string) (err error) {
	n := len(names)
	if n > max(len(r.parts), 1) {
		if r.common.Set, r.common.SetHistory, err = r.s.inside.Assigned(ctx, names[0]); err != nil {
			return err
		}
		if err := r.s.checkGrowth(ctx, r.topic, names, r.common.Set); err != nil {
			return err
		}
	}
	if r.s.limit == (queue.GroupLimit{}) {
		return nil
	}
	shares := n
	if shares != r.shares {
		shares, err = r.s.sharesOf(ctx, r.topic, n)
	}
	if err != nil || shares == r.shares {
		return err
	}
	share, err := r.s.shareOf(shares)
	if err != nil {
		return err
	}
	r.common.Limit.Store(&share)
	for _, p := range r.parts {
		if err := p.sub.Register(ctx); err != nil {
			return err
		}
	}
	r.shares = shares
	return nil
}

// checkGrowth refuses new partitions for a group whose limit an operator has set and nobody has
// divided among them.
func (s *Subscriber) checkGrowth(ctx context.Context, topic string, names []string, set *queue.GroupLimit) error {
	if s.fixed == 0 || set == nil || *set == (queue.GroupLimit{}) {
		return nil
	}
	number, err := s.inside.Partitioning(ctx, topic)
	if err != nil || number.Most() >= len(names) {
		return err
	}
	for i, plain := range names {
		if share, _, err := s.inside.Assigned(ctx, plain); err != nil {
			return err
		} else if share == nil {
			return field.Invalid("Partitions", "is %d, but %d partitions share a limit of the group that an operator has set; "+
				"set the number of partitions first (admin.SetPartitions, or redisdelay partitions set), or reset the limit", len(names), i)
		}
	}
	return nil
}
