package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// looked is how many entries of ready one step of Kill looks at. The kill script has the same
// number.
const looked = 1000

// Kill makes a dead letter of a message of a group, and returns the state that it had. It makes one
// of a pending message in all groups. It searches ready step by step, from the right, where places
// only grow: so it passes no entry. It returns queue.ErrNotFound if the group has no such message.
func (t *Topic) Kill(ctx context.Context, group, id, reason string) (State, error) {
	operation := t.Keys().Operation(queue.Token())
	missing := fmt.Errorf("message %s of group %q of topic %q: %w", id, group, t.Name, queue.ErrNotFound)
	// In the time between two steps a message may leave ready, and come back to entries that were
	// looked at. So there is a second pass.
	for range 2 {
		for from, length := 0, 1; from < length; from += looked {
			var state string
			err := t.WithExisting(ctx, func(groups *queue.Groups) (err error) {
				state, length, err = t.kill(ctx, groups, group, id, reason, from, operation)
				return err
			})
			switch {
			case err != nil:
				return "", err
			case state == "unregistered":
				return "", fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
			case state == "missing":
				return "", missing
			case state != "searching":
				return State(state), nil
			}
		}
	}
	return "", missing
}

// kill runs one step of Kill. length is how long ready is, if the step did not find the message.
func (t *Topic) kill(ctx context.Context, groups *queue.Groups, group, id, reason string, from int, operation string) (state string, length int, err error) {
	k, g := t.Keys(), group
	keys := []string{k.Meta(), k.Groups(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Names(), k.Taken(), k.Scheduler(), operation,
		k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Suspects(g), k.Resting(g), k.Workers(g)}
	args := []any{groups.Version, id, slices.Index(groups.Names, group) + 1, reason, from, queue.OperationMemory}
	for _, name := range groups.Names {
		keys = append(keys, k.Dead(name), k.Deliveries(name), k.Stats(name))
		args = append(args, name)
	}
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	reply, err := run(limited, t, (*redis.Cmd).Slice, &queue.KillScript, keys, args...)
	switch {
	case err != nil:
		return "", 0, err
	case len(reply) == 0:
		return "", 0, fmt.Errorf("kill: unexpected empty reply")
	case len(reply) > 1:
		length = count(reply[1])
	}
	if state = queue.Text(reply[0]); state == "stale" {
		return "", 0, queue.ErrStale
	}
	return state, length, nil
}
