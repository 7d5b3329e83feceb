package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// KillOptions are the options of Kill. The zero value is fine.
type KillOptions struct {
	// Reason is why, at most 1,000 bytes: the Reason of the dead letter is "killed: " and this, or
	// without it "killed".
	Reason string
}

// Kill makes a dead letter of a message in a group, and returns the state that the message had. A
// kill is no delivery. What happens depends on the state:
//
//   - Waiting: it becomes a dead letter of every group, and its delay ID is free.
//   - Ready: it is searched in steps of 1,000, which takes about half a second for a million.
//   - InHand: its lease ends, and so does the context of its handler, with
//     redisdelay.ErrLeaseLost. What the handler then acks or nacks changes nothing.
//   - Retrying: it does not wait any more.
//   - Dead: nothing is changed.
//
// Other groups keep the message, except when it is waiting. A message that is in a Redis Stream is
// out of reach. Errors wrap ErrNotFound if the group does not have it, or ErrInvalidArgument for a
// reason that is too long.
func (a *Admin) Kill(ctx context.Context, topic string, message GroupMessage, o KillOptions) (State, error) {
	reason := "killed"
	switch {
	case len(o.Reason) > 1000:
		return "", fmt.Errorf("kill: %w: Reason has %d bytes, want at most 1000", ErrInvalidArgument, len(o.Reason))
	case o.Reason != "":
		reason = "killed: " + o.Reason
	}
	state, err := over(ctx, a, topic, func(plain string) (string, error) {
		t, err := a.topic(ctx, plain, rights.Killing)
		if err != nil {
			return "", err
		}
		return t.Kill(ctx, groupName(message.Group), message.ID, reason)
	}, first)
	if err != nil {
		return "", fmt.Errorf("kill: %w", err)
	}
	return State(state), nil
}
