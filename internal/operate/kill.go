package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// looked is how many entries of ready one step of Kill looks at.
var looked = queue.KillScript.Constant("looked")

// Kill makes a dead letter of a message of a group, and returns the state that it had. It makes one
// of a waiting message in all groups. It searches ready step by step, from the right, where places
// only grow: so it passes no entry. It returns queue.ErrNotFound if the group has no such message.
func (t *Topic) Kill(ctx context.Context, group, id, reason string) (string, error) {
	operation := t.Keys().Operation(queue.Token())
	missing := fmt.Errorf("message %s of group %q of topic %q: %w: the group is done with it, or never had it", id, group, t.Name, ErrNoMessage)
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
				return state, nil
			}
		}
	}
	return "", missing
}

// kill runs one step of Kill. length is how long ready is, if the step did not find the message.
func (t *Topic) kill(ctx context.Context, groups *queue.Groups, group, id, reason string, from int, operation string) (state string, length int, err error) {
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	reply, err := ask(limited, t, t.NewCall(&queue.KillScript, queue.Target{Group: group, Groups: groups.Names}, "operation", operation,
		"version", groups.Version, "id", id, "number", slices.Index(groups.Names, group)+1, "reason", reason, "from", from,
		"memory", queue.OperationMemory))
	if err != nil || reply.Refusal != "" {
		return reply.Refusal, 0, err
	}
	return reply.Text("state"), reply.Number("length"), nil
}
