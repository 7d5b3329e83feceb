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
		nudge := queue.NewCall(&queue.NudgeScript, []string{t.Keys().Meta(), t.Keys().Scheduler()}, "")
		return []string{"had the scheduler look at once"}, queue.Do(ctx, t.Client(), nudge)
	case v.Fault == FaultRepeated:
		keys := []string{t.Keys().Ready(v.Group), t.Keys().Stats(v.Group)}
		done, err := run(ctx, t, (*redis.Cmd).Bool, &queue.SingleScript, keys, v.ID, v.first, v.second, slack)
		if err != nil || !done {
			return nil, err
		}
		return []string{fmt.Sprintf("put an entry of ready out of force in group %q", v.Group)}, nil
	case v.Fault == FaultDelayID && v.name != "":
		done, err := run(ctx, t, (*redis.Cmd).Bool, &queue.UntangleScript, []string{t.Keys().Names(), t.Keys().Taken()}, v.name)
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
		args := []any{groups.Version, v.ID, looked}
		if looked {
			for i, m := range v.marks {
				seen := ""
				switch name := all.Names[i]; {
				case slices.Contains(v.absent, name):
					seen = "absent"
				case slices.Contains(v.present, name):
					seen = "present"
				}
				args = append(args, seen, m.returned, m.last, m.length)
			}
		}
		keys := append(t.inspectKeys(all), t.Keys().Scheduler(), t.Keys().Idle())
		reply, err := run(ctx, t, (*redis.Cmd).StringSlice, &queue.MendScript, keys, args...)
		if err != nil {
			return err
		}
		if len(reply) == 0 || reply[0] != "ok" {
			return queue.ErrStale
		}
		for _, what := range reply[1:] {
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
