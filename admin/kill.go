package admin

import (
	"cmp"
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Kill makes a dead letter of a message in a group, and returns the state that the message had. The
// Reason of the dead letter is "killed", or "killed: " and the reason, which may have 1,000 bytes.
// A kill is no delivery. What happens depends on the state:
//
//   - Waiting: the message becomes a dead letter of every group, since no group has it yet. Its
//     delay ID is free.
//   - Ready: the message is searched in the list of ready messages, in steps of 1,000. So this
//     takes a time in proportion to their number: about half a second for a million.
//   - InHand: the lease ends, and so does the context of the handler that has it, with
//     redisdelay.ErrLeaseLost, after a round trip or two. If its subscription does not show itself
//     (see Workers), the context ends with the next extension of the lease. What the handler then
//     acks or nacks changes nothing.
//   - Retrying: the message does not wait any more.
//   - Dead: nothing is changed.
//
// Other groups keep the message, except when it is waiting. In a topic with a Redis Stream, a
// message can be killed while it waits; in the stream it is out of reach.
//
// Errors wrap ErrNotFound if the group does not have the message, ErrInvalidArgument,
// ErrInvalidTopic, ErrForbidden, ErrServerFull or ErrLayout, or come from ctx or Redis.
func (a *Admin) Kill(ctx context.Context, topic, group, id, reason string) (State, error) {
	group = groupName(group)
	switch {
	case len(reason) > 1000:
		return "", fmt.Errorf("kill: %w: reason has %d bytes, want at most 1000", ErrInvalidArgument, len(reason))
	case reason != "":
		reason = "killed: " + reason
	}
	state, err := over(ctx, a, topic, func(plain string) (string, error) {
		t, err := a.topic(ctx, plain, rights.Killing)
		if err != nil {
			return "", err
		}
		return t.Kill(ctx, group, id, cmp.Or(reason, "killed"))
	}, first)
	if err != nil {
		return "", fmt.Errorf("kill: %w", err)
	}
	return State(state), nil
}
