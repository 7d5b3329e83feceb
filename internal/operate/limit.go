package operate

import (
	"context"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// SetLimit sets the limit of a group for all its subscribers. With nil they decide again. It
// returns the settings of the group before and after.
func (t *Topic) SetLimit(ctx context.Context, group string, limit *queue.GroupLimit) (before, after queue.GroupOptions, err error) {
	return t.assign(ctx, group, t.LimitCall(group, limit))
}

// LimitedSince returns since when messages of the group wait because of its limit; zero: they do
// not, or nobody would take them.
func (g GroupCounts) LimitedSince() time.Time {
	if !g.Subscribed() {
		return time.Time{}
	}
	return g.limitedSince()
}

// limitedSince is LimitedSince also while nobody is subscribed.
func (g GroupCounts) limitedSince() time.Time {
	state := append(strings.Fields(g.Text("limit_state")), "", "", "", "")
	if since := queue.Instant(state[3]); since.UnixMilli() > 0 {
		return since
	}
	return time.Time{}
}

// LimitedFor returns for how long messages of the group have waited because of its limit, by now.
func (g GroupCounts) LimitedFor(now time.Time) time.Duration {
	waited := time.Duration(g.Counter("limited_ms")) * time.Millisecond
	if since := g.limitedSince(); !since.IsZero() {
		waited += max(now.Sub(since), 0)
	}
	return waited
}
