package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// RemoveUnused removes groups whose expiry has passed, in one pipeline. It removes about a thousand
// of their messages together, and returns the groups that have more.
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

// Remove removes a group and all that it holds. It returns ErrTopicMode for the group of a stream.
func (t *Topic) Remove(ctx context.Context, group string) error {
	removed, err := t.removeAll(ctx, group, "")
	if err == nil && !removed {
		err = fmt.Errorf("%w: the messages of topic %q go into a Redis Stream, by group %q", ErrTopicMode, t.Name, group)
	}
	return err
}

// RemoveIdle is Remove for a group that has no subscribers, and got no message for as long as
// limit. It returns false if the group is not idle.
func (t *Topic) RemoveIdle(ctx context.Context, group string, limit time.Duration) (removed bool, err error) {
	return t.removeAll(ctx, group, millis(limit))
}

// Removing returns the groups that are out of the set, and whose removal is not complete. No set of
// groups that was read before contains them. The copies that new groups make of a window are among
// them, because they are removed unless their group comes.
func (t *Topic) Removing(ctx context.Context) (removing []string, err error) {
	idle, err := servers.AskKey(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) ([]redis.Z, error) {
		return c.ZRangeByScoreWithScores(ctx, t.keys.Idle(), &redis.ZRangeBy{Min: "-inf", Max: "+inf"}).Result()
	})
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil
	}
	for _, z := range idle {
		if name, _ := z.Member.(string); z.Score <= 0 || isCopy(name) {
			removing = append(removing, name)
		}
	}
	return removing, err
}

// FinishRemovals completes removals of groups that were begun and not finished.
func (t *Topic) FinishRemovals(ctx context.Context, groups []string) error {
	for some := range slices.Chunk(groups, removals) {
		for len(some) > 0 {
			var err error
			if some, err = t.RemoveUnused(ctx, some...); err != nil {
				return err
			}
		}
	}
	return nil
}

// removals is how many groups one pipeline removes at most.
var removals = promoteScript.Constant("removals")

func (t *Topic) removeAll(ctx context.Context, group, limit string) (removed bool, err error) {
	call := t.removeCall(group, budget, false, limit)
	limited, end := WhileRemembered(ctx)
	defer end()
	if err := Do(limited, t.client, call); err != nil {
		return false, err
	}
	left, err := call.cmd.Int()
	if err == nil && left == 1 {
		// A second remove could remove a group that was registered again meanwhile.
		err, left = t.FinishRemovals(ctx, []string{group}), 0
	}
	return err == nil && left == 0, err
}

// removeCall returns a call that removes a group. With unused it removes the group only if it is
// out of use, with a limit only if it was idle for so many milliseconds.
func (t *Topic) removeCall(group string, budget int, unused bool, limit string) *Call {
	return t.NewCall(&removeScript, Target{Group: group}, "operation", t.keys.Operation(Token()), "group", group, "fresh", Token(),
		"budget", budget, "unused", unused, "limit", limit, "memory", OperationMemory)
}
