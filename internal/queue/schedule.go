package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// budget is how many messages, times groups, one call promotes or purges at most, and how many
// expired leases of one group it ends. A promotion moves as many retries besides. A call takes the
// server one to three milliseconds.
const budget = 1000

// Grace is how late the holder of the scheduling lease may be before another process takes the
// lease. The promote scripts have the same number.
const Grace = time.Second

// Role is the part of a process in a topic's due-time work.
type Role string

const (
	Holder  Role = "holder"  // does the work
	Standby Role = "standby" // watches the holder
	Other   Role = "other"   // asks again after the poll interval
)

// Turn is the result of one promoting call.
type Turn struct {
	Role Role
	// Wait is how long until the caller must look again: until the next event for the holder, a
	// second longer for the standby. Negative: there is no event.
	Wait time.Duration
	// Expired and Purge tell that leases have expired, or that dead messages are past their
	// retention or too many.
	Expired, Purge bool
	// Resume tells that a pause is over.
	Resume bool
	// Failed has groups whose active subscription did not claim in time. It may have only some.
	Failed []string
	// Unused has groups to remove, because their expiry has passed. It may have only some of them.
	Unused []string
	// In a topic with a stream, messages that were forgotten because they had no body, and messages
	// that were dropped because it was too late for them. Else both are 0.
	Lost, Dropped int
}

// PromoteCall returns a call that takes or keeps the scheduling lease and moves due messages.
// ReadTurn reads its reply. The groups are from Groups.
func (t *Topic) PromoteCall(groups *Groups, address string, patience time.Duration) *Call {
	if groups.Stream {
		return t.promoteStreamCall(groups, address, patience)
	}
	k := t.keys
	all := groups.All()
	keys := make([]string, 0, 10+5*len(all))
	keys = append(keys, k.Meta(), k.Groups(), k.Pending(), k.Refs(), k.Scheduler(), k.Idle(), k.Names(), k.Taken(), k.Resumes())
	args := make([]any, 0, 5+len(all))
	args = append(args, groups.Version, address, millis(patience), budget, windowEnd(groups.Window))
	for _, g := range all {
		keys = append(keys, k.Ready(g), k.Retry(g), k.Unack(g), k.Dead(g), k.Waiters(g))
		args = append(args, g)
	}
	return &Call{script: &promoteScript, keys: t.withActive(keys, groups), args: args}
}

// withActive adds the key that says who is active in groups with SingleActive, if there may be any.
func (t *Topic) withActive(keys []string, groups *Groups) []string {
	if groups.Single {
		keys = append(keys, t.keys.Active())
	}
	return keys
}

// ReadTurn reads the reply of PromoteCall. If the set of groups has changed, the call did nothing
// and stale is true. The next Groups then reads the set again.
func (t *Topic) ReadTurn(call *Call, groups *Groups) (turn Turn, stale bool, err error) {
	reply, err := call.cmd.Slice()
	if err != nil {
		return Turn{}, false, err
	}
	if len(reply) == 1 {
		t.Forget(groups)
		return Turn{}, true, nil
	}
	if len(reply) != 7 && len(reply) != 8 {
		return Turn{}, false, fmt.Errorf("promote: unexpected reply of %d parts", len(reply))
	}
	turn = Turn{Role: Role(Text(reply[0])), Wait: -1, Expired: reply[2] == int64(1), Purge: reply[3] == int64(1),
		Resume: reply[5] == int64(1)}
	unused, _ := reply[4].([]any)
	for _, group := range unused {
		turn.Unused = append(turn.Unused, Text(group))
	}
	if len(reply) == 7 {
		failed, _ := reply[6].([]any)
		for _, group := range failed {
			turn.Failed = append(turn.Failed, Text(group))
		}
	}
	if len(reply) == 8 {
		lost, _ := reply[6].(int64)
		dropped, _ := reply[7].(int64)
		turn.Lost, turn.Dropped = int(lost), int(dropped)
	}
	if wait := Text(reply[1]); wait != "" {
		us, err := strconv.ParseInt(wait, 10, 64)
		if err != nil {
			return Turn{}, false, fmt.Errorf("promote: wait is %q, not a number", wait)
		}
		turn.Wait = time.Duration(max(us, 0)) * time.Microsecond
	}
	return turn, false, nil
}

// Expire ends expired leases, and tells whether there may be more. One step ends a thousand of a
// group at most, so that all messages of one subscription come back in order. After a thousand it
// begins no further group.
func (t *Topic) Expire(ctx context.Context) (more bool, err error) {
	_, more, err = t.sweep(ctx, func(groups *Groups) *Call {
		k := t.keys
		keys := []string{k.Meta(), k.Groups(), k.Options()}
		args := []any{groups.Version, budget}
		for _, g := range groups.Names {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Deliveries(g), k.Dead(g), k.Waiters(g), k.Stats(g),
				k.Suspects(g))
			args = append(args, g)
		}
		return &Call{script: &expireScript, keys: t.withActive(keys, groups), args: args}
	})
	return more, err
}

// Succeed takes the place of active subscriptions that did not claim in time, and wakes a standby
// for each. It returns the subscriptions that failed, by group.
func (t *Topic) Succeed(ctx context.Context, groups ...string) (failed map[string]string, err error) {
	k := t.keys
	keys, args := []string{k.Scheduler(), k.Active()}, []any{}
	for _, g := range groups {
		keys = append(keys, k.Unack(g), k.Waiters(g), k.Standby(g))
		args = append(args, g)
	}
	call := &Call{script: &succeedScript, keys: keys, args: args}
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	reply, err := call.cmd.StringSlice()
	failed = map[string]string{}
	for pair := range slices.Chunk(reply, 2) {
		failed[pair[0]] = pair[len(pair)-1]
	}
	return failed, err
}

// Purge deletes dead messages that are past their group's retention, and the oldest of a group that
// has too many. It deletes at most a thousand of all groups together. excess is how many were too
// many, by group. more tells whether there may be more to delete.
func (t *Topic) Purge(ctx context.Context) (excess map[string]int, more bool, err error) {
	reply, more, err := t.sweep(ctx, func(groups *Groups) *Call {
		k := t.keys
		keys := []string{k.Meta(), k.Groups(), k.Messages(), k.Options(), k.Refs()}
		args := []any{groups.Version, budget}
		for _, g := range groups.Names {
			keys = append(keys, k.Dead(g), k.Deliveries(g), k.Stats(g))
			args = append(args, g)
		}
		return &Call{script: &purgeScript, keys: keys, args: args}
	})
	if err != nil || len(reply) < 4 {
		return nil, more, err
	}
	groups, _ := reply[3].([]any)
	excess = map[string]int{}
	for pair := range slices.Chunk(groups, 2) {
		n, _ := pair[len(pair)-1].(int64)
		excess[Text(pair[0])] = int(n)
	}
	return excess, more, nil
}

// EndPauses ends the pauses whose time is over, and returns their groups, "" for the topic's. more
// tells whether there may be more to do.
func (t *Topic) EndPauses(ctx context.Context) (ended []string, more bool, err error) {
	reply, more, err := t.sweep(ctx, func(groups *Groups) *Call { return t.ResumeCall(groups, "", true, t.keys.Operation(Token())) })
	if err != nil || len(reply) < 4 {
		return nil, more, err
	}
	names, _ := reply[3].([]any)
	for _, name := range names {
		ended = append(ended, Text(name))
	}
	return ended, more, nil
}

// ResumeCall returns a call that ends the pause of a group, or of the topic if group is "". With
// over it ends the pauses whose time is over instead. It wakes a thousand subscriptions at most.
func (t *Topic) ResumeCall(groups *Groups, group string, over bool, operation string) *Call {
	k := t.keys
	keys := []string{k.Meta(), k.Paused(), k.Resumes(), operation, k.Scheduler()}
	args := []any{groups.Version, group, budget, millis(OperationMemory), flag(groups.Stream), flag(over)}
	for _, g := range groups.Names {
		keys = append(keys, k.Resting(g), k.Ready(g), k.Waiters(g))
		args = append(args, g)
	}
	return &Call{script: &resumeScript, keys: t.withActive(keys, groups), args: args}
}

// sweep runs a call that moves a bounded number of messages of all groups. It returns the reply,
// nil if there is no such topic, and whether there may be more to move.
func (t *Topic) sweep(ctx context.Context, callOf func(*Groups) *Call) (reply []any, more bool, err error) {
	err = t.WithExisting(ctx, func(groups *Groups) error {
		call := callOf(groups)
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		if reply, err = call.cmd.Slice(); err != nil {
			return err
		}
		if len(reply) == 1 {
			return ErrStale
		}
		more = len(reply) >= 3 && reply[2] == int64(1)
		return nil
	})
	if errors.Is(err, ErrNotFound) { // the topic was deleted meanwhile
		return nil, false, nil
	}
	return reply, more, err
}

// faultBytes is how much of a scheduler's error a topic keeps, at most.
const faultBytes = 512

// NoteFault notes in the topic why a scheduler cannot do the due-time work. The next promotion that
// succeeds and leaves no work deletes the note.
func (t *Topic) NoteFault(ctx context.Context, fault error) error {
	text := fault.Error()
	if len(text) > faultBytes {
		text = text[:faultBytes-len("...")] + "..."
	}
	text = strings.ToValidUTF8(text, "")
	return Do(ctx, t.client, &Call{script: &faultScript, keys: []string{t.keys.Meta(), t.keys.Scheduler()}, args: []any{text}})
}

// ResignCall returns a call that gives up the scheduling lease, so that the standby takes it at
// once.
func (t *Topic) ResignCall(address string) *Call {
	return &Call{script: &resignScript, keys: []string{t.keys.Scheduler()}, args: []any{address}}
}
