package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// RemoveUnused removes groups that were not used for their time, in one pipeline, about a thousand of their messages at a
// time, and returns those groups that have more.
func (t *Topic) RemoveUnused(ctx context.Context, groups ...string) (left []string, err error) {
	calls := make([]*Call, len(groups))
	for i, group := range groups {
		calls[i] = t.removeCall(group, max(budget/len(groups), 1), true, "")
	}
	err = Do(ctx, t.client, calls...)
	for i, call := range calls {
		if call.cmd.Val() == int64(1) {
			left = append(left, groups[i])
		}
	}
	return left, err
}

// Remove removes a group and all that it holds. ErrTopicMode means that it is the one of a stream, which stays.
func (t *Topic) Remove(ctx context.Context, group string) error {
	removed, err := t.removeAll(ctx, group, "")
	if err == nil && !removed {
		err = fmt.Errorf("%w: the messages of topic %q go into a Redis Stream, by group %q", ErrTopicMode, t.Name, group)
	}
	return err
}

// RemoveIdle is Remove for a group that has no subscribers, and got no message for so long. It tells
// whether that is so.
func (t *Topic) RemoveIdle(ctx context.Context, group string, limit time.Duration) (removed bool, err error) {
	return t.removeAll(ctx, group, millis(limit))
}

// Removing returns the groups that are out of the set, and whose removal is not complete. A set of
// groups that was read before contains none of them.
func (t *Topic) Removing(ctx context.Context) ([]string, error) {
	groups, err := t.client.ZRangeByScore(ctx, t.keys.Idle(), &redis.ZRangeBy{Min: "-inf", Max: "0"}).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil // it names none
	}
	return groups, err
}

// FinishRemovals completes removals of groups that were begun and not finished.
func (t *Topic) FinishRemovals(ctx context.Context, groups []string) error {
	for some := range slices.Chunk(groups, unusedGroups) {
		for len(some) > 0 {
			var err error
			if some, err = t.RemoveUnused(ctx, some...); err != nil {
				return err
			}
		}
	}
	return nil
}

// unusedGroups is how many groups that are out of the set one step removes at most. promote has it too.
const unusedGroups = 32

func (t *Topic) removeAll(ctx context.Context, group, limit string) (removed bool, err error) {
	left, err := t.remove(ctx, group, limit)
	if err == nil && left == 1 {
		// Only what is left of it: somebody may have finished this, and made it anew.
		err = t.FinishRemovals(ctx, []string{group})
		left = 0
	}
	return err == nil && left == 0, err
}

// remove runs the script once.
func (t *Topic) remove(ctx context.Context, group, limit string) (left int, err error) {
	call := t.removeCall(group, budget, false, limit)
	limited, end := WhileRemembered(ctx)
	defer end()
	if err := Do(limited, t.client, call); err != nil {
		return 0, err
	}
	return call.cmd.Int()
}

// removeCall removes a group only if it is unused, or only if it is idle for as long as limit says; "": always.
func (t *Topic) removeCall(group string, budget int, unused bool, limit string) *Call {
	k := t.keys
	return &Call{
		script: &removeScript,
		keys: []string{k.Meta(), k.Groups(), k.Idle(), k.Messages(), k.Options(), k.Refs(), k.Ready(group),
			k.Retry(group), k.Unack(group), k.Leases(group), k.Deliveries(group), k.Dead(group), k.Waiters(group),
			k.Resting(group), k.Stats(group), k.Paused(), k.Operation(Token())},
		args: []any{group, Token(), budget, flag(unused), limit, millis(OperationMemory)},
	}
}
