package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Mend mends a violation if that is safe, and returns what it did. It does nothing if the violation
// is gone.
func (t *Topic) Mend(ctx context.Context, v Violation) (did []string, err error) {
	if !v.mending {
		return nil, nil
	}
	switch {
	case v.Fault == FaultRegistry:
		return []string{"entered the topic in the registry"}, t.Enroll(ctx)
	case v.Fault == FaultKey:
		kept, err := servers.AskKey(ctx, t.Client(), v.name, func(ctx context.Context, c redis.UniversalClient) (bool, error) {
			return c.Persist(ctx, v.name).Result()
		})
		if err != nil || !kept {
			return nil, err
		}
		return []string{v.name + " does not expire any more"}, nil
	case v.Fault == FaultScheduler:
		nudge := t.NewCall(&queue.NudgeScript, queue.Target{}, "event", "")
		return []string{"had the scheduler look at once"}, queue.Do(ctx, t.Client(), nudge)
	case v.Fault == FaultRepeated:
		done, err := run(ctx, t, (*redis.Cmd).Bool, t.NewCall(&queue.SingleScript, queue.Target{Group: v.Group},
			"id", v.ID, "first", v.first, "second", v.second, "most", slack))
		if err != nil || !done {
			return nil, err
		}
		return []string{fmt.Sprintf("put an entry of ready out of force in group %q", v.Group)}, nil
	case v.Fault == FaultDelayID && v.name != "":
		done, err := run(ctx, t, (*redis.Cmd).Bool, t.NewCall(&queue.UntangleScript, queue.Target{}, "name", v.name))
		if err != nil || !done {
			return nil, err
		}
		return []string{fmt.Sprintf("forgot delay ID %q", queue.DecodeName(v.name))}, nil
	}
	return t.mend(ctx, v)
}

// mend mends a violation of one message.
func (t *Topic) mend(ctx context.Context, v Violation) (did []string, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		all := partOf(groups, groups.All())
		// The marks are of the same groups, and of no copy of a window besides.
		looked := v.version == groups.Version && len(v.marks) == len(all.Names)
		d := t.Draft(&queue.MendScript, queue.Target{Groups: all.Names}, "version", groups.Version, "id", v.ID, "looked", looked)
		for i, name := range all.Names {
			seen, m := "", mark{}
			if looked {
				m = v.marks[i]
			}
			switch {
			case slices.Contains(v.absent, name):
				seen = "absent"
			case slices.Contains(v.present, name):
				seen = "present"
			}
			d.Each("group", "seen", seen, "returned", m.returned, "last", m.last, "length", m.length)
		}
		reply, err := ask(ctx, t, d.Call())
		if err != nil {
			return err
		}
		for _, one := range reply.Each() {
			what := one.Text("what")
			did = append(did, groupNamed(what, all))
		}
		return nil
	})
	return did, err
}

// groupNamed replaces the number of a group, as scripts tell it, by the name of the group.
func groupNamed(what string, groups *queue.Groups) string {
	for i, name := range groups.Names {
		number := fmt.Sprintf("group %d", i+1)
		if head, tail, ok := strings.Cut(what, number); ok && (tail == "" || tail[0] == ',') {
			return fmt.Sprintf("%sgroup %q%s", head, name, tail)
		}
	}
	return what
}
