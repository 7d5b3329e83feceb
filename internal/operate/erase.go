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
	begun := false
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
			if err := t.erase(ctx, version, "first", fresh, nil, names); err != nil {
				return err
			}
			version = fresh
			for some := range slices.Chunk(names, eraseGroups) {
				if err := t.erase(ctx, version, "some", "", some, some); err != nil {
					return err
				}
			}
			names = nil
		}
		return t.erase(ctx, version, "last", "", names, nil)
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

// erase runs one step of Erase. It forgets the keys of some groups, and takes some out of the set.
func (t *Topic) erase(ctx context.Context, version, step, fresh string, groups, removed []string) error {
	d := t.Draft(&queue.EraseScript, queue.Target{Groups: groups}, "version", version, "step", step, "fresh", fresh)
	for _, group := range removed {
		d.Each("removal", "group", group)
	}
	reply, err := run(ctx, t, (*redis.Cmd).Text, d.Call())
	if err == nil && reply == "stale" {
		err = queue.ErrStale
	}
	return err
}
