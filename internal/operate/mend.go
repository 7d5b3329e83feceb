package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Mend mends a violation by the rules of the script mend, and returns what it did. It does nothing
// if the violation is gone, or no rule is for it.
func (t *Topic) Mend(ctx context.Context, v Violation) (did []string, err error) {
	done := true
	switch {
	case v.Fault == FaultRegistry:
		did, err = []string{"entered the topic in the registry"}, t.Enroll(ctx)
	case v.Fault == FaultScheduler:
		did, err = []string{"had the scheduler look at once"}, t.Nudge(ctx)
	case v.Fault == FaultKey && v.name != "":
		did = []string{v.name + " does not expire any more"}
		done, err = servers.AskKey(ctx, t.Client(), v.name, func(ctx context.Context, c redis.UniversalClient) (bool, error) {
			return c.Persist(ctx, v.name).Result()
		})
	case v.Fault == FaultRepeated:
		did = []string{fmt.Sprintf("put an entry of ready out of force in group %q", v.Group)}
		done, err = run(ctx, t, (*redis.Cmd).Bool, t.NewCall(&queue.SingleScript, queue.Target{Group: v.Group},
			"id", v.ID, "first", v.first, "second", v.second, "most", slack))
	case v.ID != "" || v.Fault == FaultDelayID:
		return t.mend(ctx, v)
	default:
		return nil, nil
	}
	if err != nil || !done {
		return nil, err
	}
	return did, nil
}

// mend mends a violation of one message or delay ID.
func (t *Topic) mend(ctx context.Context, v Violation) (did []string, err error) {
	half := ""
	if v.ID == "" {
		half = v.name
	}
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		all := groups.All()
		// The marks are of the same groups, and of no copy of a window besides.
		looked := v.version == groups.Version && len(v.marks) == len(all)
		d := t.Draft(&queue.MendScript, queue.Target{Groups: all}, "version", groups.Version, "id", v.ID, "half", half, "looked", looked)
		for i, name := range all {
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
			if g := one.Number("group"); g > 0 && g <= len(all) {
				what += fmt.Sprintf(" in group %q", all[g-1])
			}
			did = append(did, what)
		}
		return nil
	})
	return did, err
}
