package operate

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// eraseGroups is how many groups one step of Erase removes at most. Each has twelve keys, so a step
// takes the server a fraction of a millisecond.
const eraseGroups = 100

// Erase deletes the topic and all its messages, in one step, or in several if it has many groups.
// If Erase stops between two steps, the topic remains without groups, and what the groups hold goes
// like that of groups under removal.
func (t *Topic) Erase(ctx context.Context) error {
	k := t.Keys()
	begun := false
	own := []string{k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Scheduler(), k.Names(), k.Taken(), k.Paused(), k.Resumes(), k.Counters(),
		k.Schedules(), k.Programs(), k.Active()}
	keysOf := func(groups []string) (keys []string) {
		for _, g := range groups {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Deliveries(g), k.Waiters(g),
				k.Dead(g), k.Resting(g), k.Stats(g), k.Suspects(g), k.Workers(g), k.Standby(g))
		}
		return keys
	}
	if err := t.Unlist(ctx, ""); err != nil { // no topic has this name: it tries the permission
		return err
	}
	err := t.WithExisting(ctx, func(groups *queue.Groups) error {
		// Groups under removal are out of the set, and may still hold messages. A new removal would
		// have changed the set.
		removing, err := t.Removing(ctx)
		if err != nil {
			return err
		}
		begun = true
		version, names := groups.Version, slices.Concat(groups.All(), removing)
		if len(names) > eraseGroups {
			fresh := queue.Token()
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
	if errors.Is(err, queue.ErrNotFound) && !begun {
		listed, failed := t.Listed(ctx)
		if failed != nil || !listed {
			return cmp.Or(failed, err)
		}
		begun = true // by another process, which has not removed the name yet
	}
	// The topic was there, and is gone: by a call whose answer was lost, or by others.
	if err != nil && !(begun && errors.Is(err, queue.ErrNotFound)) {
		return err
	}
	return t.Delist(ctx)
}

// erase runs one step of Erase.
func (t *Topic) erase(ctx context.Context, version, step, fresh string, keys, groups []string) error {
	args := []any{version, step, fresh}
	for _, g := range groups {
		args = append(args, g)
	}
	keys = append([]string{t.Keys().Meta(), t.Keys().Groups(), t.Keys().Idle()}, keys...)
	reply, err := run(ctx, t, (*redis.Cmd).Text, &queue.EraseScript, keys, args...)
	if err == nil && reply == "stale" {
		err = queue.ErrStale
	}
	return err
}
