package queue

import (
	"cmp"
	"context"
	"errors"
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

// removing returns the groups that are out of the set, and whose removal is not through. A set of groups that
// is read before has none of them.
func (t *Topic) removing(ctx context.Context) ([]string, error) {
	groups, err := t.client.ZRangeByScore(ctx, t.keys.Idle(), &redis.ZRangeBy{Min: "-inf", Max: "0"}).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil // it names none
	}
	return groups, err
}

// finishRemovals goes on with removals that somebody has begun and not finished.
func (t *Topic) finishRemovals(ctx context.Context, groups []string) error {
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
		err = t.finishRemovals(ctx, []string{group})
		left = 0
	}
	return err == nil && left == 0, err
}

// remove runs the script once.
func (t *Topic) remove(ctx context.Context, group, limit string) (left int, err error) {
	call := t.removeCall(group, budget, false, limit)
	limited := whileRemembered(ctx)
	defer limited.end()
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
		args: []any{group, Token(), budget, flag(unused), limit, millis(operationMemory)},
	}
}

// eraseGroups is how many groups one step of Erase removes at most: of nine keys each, which takes the server a
// fraction of a millisecond.
const eraseGroups = 100

// Erase forgets the topic and all that it holds: in one step, or, with many groups, in several. If it ends
// between those, the topic is there without groups, and what they have goes as that of other groups that are
// being removed.
func (t *Topic) Erase(ctx context.Context) error {
	k := t.keys
	begun := false
	own := []string{k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Scheduler(), k.Names(), k.Taken(), k.Paused()}
	keysOf := func(groups []string) (keys []string) {
		for _, g := range groups {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Deliveries(g), k.Waiters(g),
				k.Dead(g), k.Resting(g), k.Stats(g))
		}
		return keys
	}
	if err := t.unlist(ctx, ""); err != nil { // no topic's name: a permission that is lacking is to be known before
		return err
	}
	err := t.withExisting(ctx, func(groups *Groups) error {
		// Those that are being removed are out of the set, and hold something still. More of them would have
		// changed the set.
		removing, err := t.removing(ctx)
		if err != nil {
			return err
		}
		begun = true
		version, names := groups.Version, slices.Concat(groups.Names, removing)
		if len(names) > eraseGroups {
			fresh := Token()
			if err := t.erase(ctx, version, "first", fresh, own, names); err != nil {
				return err
			}
			version = fresh
			for some := range slices.Chunk(names, eraseGroups) {
				if err := t.erase(ctx, version, "some", "", keysOf(some), some); err != nil {
					return err
				}
			}
			names = nil
		}
		return t.erase(ctx, version, "last", "", slices.Concat(own, keysOf(names)), nil)
	})
	if errors.Is(err, ErrNotFound) && !begun {
		listed, failed := t.Listed(ctx)
		if failed != nil || !listed {
			return cmp.Or(failed, err)
		}
		begun = true // by somebody who has not come to its name
	}
	// It was there, and is gone: a call whose answer was lost has removed it, or somebody else.
	if err != nil && !(begun && errors.Is(err, ErrNotFound)) {
		return err
	}
	return t.delist(ctx)
}

func (t *Topic) erase(ctx context.Context, version, step, fresh string, keys, groups []string) error {
	args := []any{version, step, fresh}
	for _, g := range groups {
		args = append(args, g)
	}
	call := &Call{script: &eraseScript, keys: append([]string{t.keys.Meta(), t.keys.Groups(), t.keys.Idle()}, keys...), args: args}
	if err := Do(ctx, t.client, call); err != nil {
		return err
	}
	if call.cmd.Val() == "stale" {
		return errStale
	}
	return nil
}
