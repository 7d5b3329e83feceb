package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Name returns a short name of the process, such as "web-1:4711", or the name of the subscription
// if the process is not known.
func (w Worker) Name() string {
	if w.Host == "" {
		return w.Subscription
	}
	return fmt.Sprintf("%s:%d", w.Host, w.PID)
}

// Named tells whether a text names the worker: its Name, its Host, or its Subscription.
func (w Worker) Named(text string) bool {
	return text != "" && (text == w.Name() || text == w.Host || text == w.Subscription)
}

// ReleaseWorker ends all leases that a subscription has now, and returns how many. w is of Workers:
// its Topic, Group and Subscription count. It is for a process that hangs. Its messages
// are ready at once, in front, for all subscriptions of the group.
//
// Each lease counts as one that expired. So its message may become a suspect, and the delivery
// counts if the message had to be alone. A process that goes on finds its leases lost with its next
// extension, after a third of its LeaseDuration at most: the contexts of its handlers end with
// redisdelay.ErrLeaseLost. What it acks or nacks changes nothing. Then it may claim messages again.
// In a group with SingleActive a standby becomes the active subscription, if there is one.
//
// It works in steps of a thousand messages. A second call finds what is leased by then. After an
// error the number is what was ended before. Errors wrap ErrNotFound if there is no such topic or
// group, or ErrInvalidArgument if w names no subscription.
func (a *Admin) ReleaseWorker(ctx context.Context, w Worker) (int, error) {
	if w.Topic == "" || w.Group == "" || w.Subscription == "" {
		return 0, fmt.Errorf("release: %w: the Worker needs Topic, Group and Subscription, as Workers returns them", ErrInvalidArgument)
	}
	t, err := a.topic(ctx, w.Topic, rights.Releasing)
	if err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	ended, err := t.Release(ctx, w.Group, w.Subscription)
	if err != nil {
		return ended, fmt.Errorf("release: %w", aboutTopic(w.Topic, err))
	}
	return ended, nil
}
