package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// share is the limit that operators have set for a group, in each partition of a topic.
type share struct {
	group string
	limit queue.GroupLimit
}

// reshare returns the shares that groups get when subscribers read another number of partitions,
// and after which number. Only groups with a limit that an operator has set have any. The errors
// name a limit that is too low for so many partitions.
func (c *change) reshare(ctx context.Context, before, after int) (shares []share, err error) {
	if before == 0 || before == after || len(c.parts) == 0 {
		return nil, nil
	}
	stats, err := c.admin.partStats(ctx, c.topic)
	if err != nil {
		return nil, err
	}
	for _, s := range stats {
		if s.Err != nil || numberOf(s.Topic) > 0 {
			continue // partition 0 is there always, and all partitions have the same
		}
		for _, g := range s.Groups {
			if s.Stream || strings.HasPrefix(g.Group, "broadcast:") {
				continue
			}
			o, err := c.plain(s.Topic).OptionsOf(ctx, g.Group)
			if err != nil {
				return nil, aboutTopic(s.Topic, err)
			}
			if o.Set == nil || *o.Set == (queue.GroupLimit{}) {
				continue
			}
			whole := queue.GroupLimit{Rate: o.Set.Rate * float64(before), Burst: o.Set.Burst * before, AtOnce: o.Set.AtOnce * before}
			limit, err := whole.Share(after)
			if err != nil {
				return nil, fmt.Errorf("%w: group %q has a limit that an operator has set: %w", ErrInvalidArgument, g.Group, err)
			}
			shares = append(shares, share{g.Group, limit})
		}
	}
	return shares, nil
}

// setShares gives groups their shares in the first n partitions, as far as they exist.
func (c *change) setShares(ctx context.Context, shares []share, n int) error {
	var calls []*queue.Call
	for _, plain := range c.parts {
		if numberOf(plain) >= n {
			continue
		}
		for _, s := range shares {
			calls = append(calls, c.plain(plain).LimitCall(s.group, &s.limit))
		}
	}
	if err := queue.Do(ctx, c.admin.client, calls...); err != nil {
		return fmt.Errorf("change the limits of groups in the partitions: %w", err)
	}
	return nil
}

func (c *change) plain(topic string) *queue.Topic {
	return queue.NewTopic(c.admin.client, c.admin.config.KeyPrefix, topic)
}
