package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Recurring is the recurring schedules of a topic, or the reason why they could not be read.
type Recurring struct {
	Now       time.Time         // when the last of them was read
	Schedules []queue.Recurring // in order of their names
	Err       error
}

// AllSchedules returns all recurring schedules of the topic. It returns queue.ErrNotFound if there
// is no such topic.
func (t *Topic) AllSchedules(ctx context.Context) (Recurring, error) {
	if _, err := t.Existing(ctx); err != nil {
		return Recurring{}, err
	}
	all, err := SchedulesOf(ctx, []*Topic{t})
	if err != nil {
		return Recurring{}, err
	}
	return all[0], all[0].Err
}

// SchedulesOf returns all recurring schedules of many topics, in pipelines. It returns an error if
// the server does not answer. If a node of a Cluster does not answer, its topics have that error.
func SchedulesOf(ctx context.Context, topics []*Topic) ([]Recurring, error) {
	all := make([]Recurring, len(topics))
	cursors := map[int]string{} // of the topics that are to be read further
	for i := range topics {
		cursors[i] = "0"
	}
	for len(cursors) > 0 {
		for some := range slices.Chunk(slices.Sorted(maps.Keys(cursors)), together) {
			calls := make([]*queue.Call, len(some))
			for c, i := range some {
				calls[c] = topics[i].SchedulesCall(cursors[i])
			}
			if err := queue.Do(ctx, topics[0].Client(), calls...); ends(ctx, topics[0].Client(), err) {
				return nil, err
			}
			for c, i := range some {
				if cursors[i] = all[i].read(calls[c]); cursors[i] == "0" {
					delete(cursors, i)
				}
			}
		}
	}
	return all, ctx.Err()
}

// read takes in what a call has read, and returns the cursor of the next one, "0" at the end.
func (r *Recurring) read(call *queue.Call) (next string) {
	var some []queue.Recurring
	if r.Err = call.Failure(); r.Err == nil {
		some, r.Now, next, r.Err = queue.ReadSchedules(call)
	}
	if r.Err != nil {
		return "0"
	}
	r.Schedules = append(r.Schedules, slices.DeleteFunc(some, func(r queue.Recurring) bool { return r.Removed })...)
	if next == "0" {
		slices.SortFunc(r.Schedules, func(a, b queue.Recurring) int { return strings.Compare(a.Name, b.Name) })
		r.Schedules = slices.CompactFunc(r.Schedules, func(a, b queue.Recurring) bool { return a.Name == b.Name })
	}
	return next
}

// AmendSchedule carries out a change of a recurring schedule, and returns its record and how many
// occurrences were taken back. It returns queue.ErrNotFound if there is no such topic or schedule.
func (t *Topic) AmendSchedule(ctx context.Context, a queue.Amendment) (r queue.Recurring, takenBack int, err error) {
	done, err := t.Amend(ctx, a)
	if err != nil {
		return r, 0, err
	}
	if done[0].Missing {
		return r, 0, fmt.Errorf("schedule %q of topic %q: %w", a.Name, t.Name, queue.ErrNotFound)
	}
	return done[0].Record, done[0].TakenBack, nil
}
