package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// AllSchedules returns all recurring schedules of the topic, in order of their names. It returns
// queue.ErrNotFound if there is no such topic.
func (t *Topic) AllSchedules(ctx context.Context) (all []queue.Recurring, err error) {
	if _, err := t.Existing(ctx); err != nil {
		return nil, err
	}
	for cursor, begun := "0", false; !begun || cursor != "0"; begun = true {
		var some []queue.Recurring
		if some, cursor, err = t.SchedulesFrom(ctx, cursor); err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(some, func(r queue.Recurring) bool { return r.Removed })...)
	}
	slices.SortFunc(all, func(a, b queue.Recurring) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b queue.Recurring) bool { return a.Name == b.Name }), nil
}

// AmendSchedule changes a recurring schedule, and returns its record and how many occurrences were
// taken back. It returns queue.ErrNotFound if there is no such topic or schedule.
func (t *Topic) AmendSchedule(ctx context.Context, what queue.Amend, name string) (r queue.Recurring, takenBack int, err error) {
	done, err := t.Amend(ctx, queue.Amendment{What: what, Name: name})
	if err != nil {
		return r, 0, err
	}
	if done[0].Missing {
		return r, 0, fmt.Errorf("schedule %q of topic %q: %w", name, t.Name, queue.ErrNotFound)
	}
	return done[0].Record, done[0].TakenBack, nil
}
