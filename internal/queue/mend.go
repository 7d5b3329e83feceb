package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Mend puts right what the violation is about, if that is safe, and returns what it did. Nothing is done if it
// is right by now.
func (t *Topic) Mend(ctx context.Context, v Violation) (did []string, err error) {
	if !v.mending {
		return nil, nil
	}
	switch {
	case v.Fault == FaultRegistry:
		return []string{"entered the topic in the registry"}, t.enroll(ctx)
	case v.Fault == FaultKey:
		kept, err := t.client.Persist(ctx, v.name).Result()
		if err != nil || !kept {
			return nil, err
		}
		return []string{v.name + " does not expire any more"}, nil
	case v.Fault == FaultScheduler:
		return []string{"had the scheduler look at once"}, t.nudge(ctx)
	case v.Fault == FaultRepeated:
		done, err := t.disable(ctx, v)
		if err != nil || !done {
			return nil, err
		}
		return []string{fmt.Sprintf("put an entry of ready out of force in group %q", v.Group)}, nil
	case v.Fault == FaultDelayID && v.name != "":
		call := &Call{script: &untangleScript, keys: []string{t.keys.Names(), t.keys.Taken()}, args: []any{v.name}}
		if err := Do(ctx, t.client, call); err != nil || call.cmd.Val() != int64(1) {
			return nil, err
		}
		return []string{fmt.Sprintf("forgot delay ID %q", decodeName(v.name))}, nil
	}
	return t.mend(ctx, v)
}

// mend puts right what the violation says of a message.
func (t *Topic) mend(ctx context.Context, v Violation) (did []string, err error) {
	err = t.withExisting(ctx, func(groups *Groups) error {
		looked := v.version == groups.Version // of a topic without groups there is nothing to look through
		args := []any{groups.Version, v.ID, flag(looked)}
		if looked {
			for i, m := range v.marks {
				seen := ""
				switch name := groups.Names[i]; {
				case slices.Contains(v.absent, name):
					seen = "absent"
				case slices.Contains(v.present, name):
					seen = "present"
				}
				args = append(args, seen, m.returned, m.last, m.length)
			}
		}
		call := &Call{script: &mendScript, keys: append(t.inspectKeys(groups), t.keys.Scheduler(), t.keys.Idle()), args: args}
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		reply, err := call.cmd.StringSlice()
		if err != nil {
			return err
		}
		if len(reply) == 0 || reply[0] != "ok" {
			return errStale
		}
		for _, what := range reply[1:] {
			did = append(did, groupNamed(what, groups))
		}
		return nil
	})
	return did, err
}

// groupNamed gives a group its name where a script tells its number.
func groupNamed(what string, groups *Groups) string {
	for i, name := range groups.Names {
		number := fmt.Sprintf("group %d", i+1)
		if head, tail, ok := strings.Cut(what, number); ok && (tail == "" || tail[0] == ',') {
			return fmt.Sprintf("%sgroup %q%s", head, name, tail)
		}
	}
	return what
}
