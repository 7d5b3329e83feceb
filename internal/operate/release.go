package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Release ends all leases that a subscription of a group has now, as if they had run out, and
// returns how many. It returns queue.ErrNotFound if there is no such group.
func (t *Topic) Release(ctx context.Context, group, subscription, address string) (int, error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(groups.Names, group) {
		return 0, fmt.Errorf("group %q: %w", group, queue.ErrNotFound)
	}
	found, err := t.Hashes(ctx, []string{t.Keys().Leases(group)})
	if err != nil {
		return 0, err
	}
	var leases []*queue.Leased
	for id, token := range found[0] {
		if queue.SubscriptionOf(token) == subscription {
			leases = append(leases, &queue.Leased{ID: id, Token: token, Due: queue.LeaseDue(token)})
		}
	}
	slices.SortFunc(leases, func(a, b *queue.Leased) int {
		return cmp.Or(a.Due.Compare(b.Due), strings.Compare(a.ID, b.ID))
	})
	ended, err := t.EndLeases(ctx, group, address, leases)
	if ended > 0 {
		err = errors.Join(err, t.Nudge(ctx)) // messages may be dead now, and the limit has room
	}
	return ended, err
}
