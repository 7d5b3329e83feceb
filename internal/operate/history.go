package operate

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// SetHistory sets the history of a group for all its subscribers. With nil they decide again. It
// returns the settings of the group before and after.
func (t *Topic) SetHistory(ctx context.Context, group string, history *queue.History) (before, after queue.GroupOptions, err error) {
	return t.assign(ctx, group, t.HistoryCall(group, history))
}

// assign runs a call that sets a setting of a group.
func (t *Topic) assign(ctx context.Context, group string, call *queue.Call) (before, after queue.GroupOptions, err error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return before, after, err
	}
	reply, err := ask(ctx, t, call)
	switch {
	case err != nil:
		return before, after, err
	case reply.Refusal == "unregistered":
		return before, after, fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
	case reply.Refusal != "":
		return before, after, fmt.Errorf("topic %q: %w: its messages go into a stream", t.Name, queue.ErrTopicMode)
	}
	t.Forget(groups) // the first one marks the layout
	return queue.ParseGroupOptions(reply.Text("before")), queue.ParseGroupOptions(reply.Text("after")), nil
}
