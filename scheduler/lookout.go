package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// look is a look at a topic for processes that are gone.
type look struct {
	*served
	groups *queue.Groups
	by     string // the scheduler's address
	queue.Look
}

// watch looks at topics for processes that are gone, and ends what these have leased. It takes few
// round trips for all topics. Other workers may promote them meanwhile.
func (s *Scheduler) watch(ctx context.Context, topics []promotion) {
	left := make([]*look, len(topics))
	for i, t := range topics {
		left[i] = &look{served: t.served, groups: t.groups, by: t.by}
	}
	for len(left) > 0 {
		calls := make([]*queue.Call, len(left))
		for i, l := range left {
			calls[i] = l.topic.WatchCall(l.groups, l.by, &l.Look)
		}
		_ = queue.Do(ctx, s.client, calls...) // each reads its own error
		var more []*look
		for i, l := range left {
			goesOn, err := l.topic.ReadWatch(calls[i], l.groups, &l.Look)
			if goesOn {
				more = append(more, l)
				continue
			}
			s.watched(ctx, l, err)
		}
		left = more
	}
}

// watched handles what a look has found.
func (s *Scheduler) watched(ctx context.Context, l *look, err error) {
	if l.Mute && !s.mute.Swap(true) {
		s.logger.Info("Redis does not say which processes listen: what a killed process had in hand comes back when its leases end",
			watermill.LogFields{"permissions": queue.WatchRules})
	}
	for group, gone := range l.Gone {
		var subscriptions, processes []string
		for _, worker := range gone {
			subscriptions = append(subscriptions, worker.Subscription)
			if process := fmt.Sprintf("%s %d", worker.Host, worker.PID); !slices.Contains(processes, process) {
				processes = append(processes, process)
			}
		}
		ended, failed := l.topic.Disown(ctx, group, subscriptions...)
		err = errors.Join(err, failed)
		if ended > 0 {
			s.logger.Info("Processes are gone: what they had in hand is delivered again", watermill.LogFields{
				"topic": l.topic.Name, "consumer_group": group, "processes": processes, "messages": ended})
		}
	}
	if len(l.Gone) > 0 {
		s.promoteAt(l.served, time.Now())
	} else if l.Again > 0 {
		s.promoteAt(l.served, time.Now().Add(l.Again))
	}
	s.watchFailed(l.served, err)
}

// watchFailed logs why a look failed, once. The next look tries again. If Redis cannot be reached,
// promotions say so.
func (s *Scheduler) watchFailed(t *served, err error) {
	if errors.Is(err, queue.ErrStale) || servers.Unreachable(err) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	known := t.watchFault == text
	t.watchFault = text
	t.mu.Unlock()
	if err != nil && !known {
		s.logger.Error("Cannot look for processes that are gone, trying again", err, watermill.LogFields{"topic": t.topic.Name})
	}
}
