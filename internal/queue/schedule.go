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
// lease.
var Grace = time.Duration(promoteScript.Constant("usual_grace")) * time.Millisecond

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
	// Watch tells that messages are leased, so that the caller is to look for processes that are
	// gone.
	Watch bool
	// Partial tells that the call did nothing but find that out.
	Partial bool
	// Unused has groups to remove, because their expiry has passed. It may have only some of them.
	Unused []string
	// In a topic with a stream, messages that were forgotten because they had no body, and messages
	// that were dropped because it was too late for them. Else both are 0.
	Lost, Dropped int
}

// PromoteCall returns a call that takes or keeps the scheduling lease and moves due messages.
// ReadTurn reads its reply. The groups are from Groups. If not full, the holder's call may do
// nothing but find that a look for processes that are gone is due.
func (t *Topic) PromoteCall(groups *Groups, address string, patience time.Duration, full bool) *Call {
	if groups.Stream {
		return t.promoteStreamCall(groups, address, patience)
	}
	return t.NewCall(&promoteScript, Target{Groups: groups.All()}, "version", groups.Version, "me", address, "patience", patience,
		"budget", budget, "window", windowEnd(groups.Window), "single", groups.Single, "bounded", groups.Bounded, "full", full)
}

// ReadTurn reads the reply of PromoteCall. If the set of groups has changed, the call did nothing
// and stale is true. The next Groups then reads the set again.
func (t *Topic) ReadTurn(call *Call, groups *Groups) (turn Turn, stale bool, err error) {
	parts, err := call.cmd.Slice()
	if err != nil {
		return Turn{}, false, err
	}
	script := &promoteScript
	if groups.Stream {
		script = &promoteStreamScript
	}
	reply, err := script.Read(parts)
	if err != nil {
		return Turn{}, false, err
	}
	if reply.Refusal != "" {
		t.Forget(groups)
		return Turn{}, true, nil
	}
	turn = Turn{Role: Role(reply.Text("role")), Wait: -1, Expired: reply.Flag("expired"), Purge: reply.Flag("purge"),
		Resume: reply.Flag("resume"), Unused: reply.Texts("unused")}
	if groups.Stream {
		turn.Lost, turn.Dropped = reply.Number("lost"), reply.Number("dropped")
	} else {
		turn.Failed, turn.Watch, turn.Partial = reply.Texts("failed"), reply.Flag("watch"), reply.Flag("partial")
	}
	if wait := reply.Text("wait"); wait != "" {
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
		return t.expireDraft(groups, groups.Names).Call()
	})
	return more, err
}

func (t *Topic) expireDraft(groups *Groups, names []string) *Draft {
	return t.Draft(&expireScript, Target{Groups: names}, "version", groups.Version, "budget", budget, "single", groups.Single,
		"bounded", groups.Bounded)
}

// Succeed takes the place of active subscriptions that did not claim in time, and wakes a standby
// for each. It returns the subscriptions that failed, by group.
func (t *Topic) Succeed(ctx context.Context, groups ...string) (failed map[string]string, err error) {
	call := t.NewCall(&succeedScript, Target{Groups: groups})
	if err := Do(ctx, t.client, call); err != nil {
		return nil, err
	}
	reply, err := call.Read()
	failed = map[string]string{}
	for _, one := range reply.Each() {
		failed[one.Text("group")] = one.Text("owner")
	}
	return failed, err
}

// Purge deletes dead messages that are past their group's retention, and the oldest of a group that
// has too many. It deletes at most a thousand of all groups together. excess is how many were too
// many, by group. more tells whether there may be more to delete.
func (t *Topic) Purge(ctx context.Context) (excess map[string]int, more bool, err error) {
	reply, more, err := t.sweep(ctx, func(groups *Groups) *Call {
		return t.NewCall(&purgeScript, Target{Groups: groups.Names}, "version", groups.Version, "budget", budget, "recorded", groups.Recorded)
	})
	if err != nil || reply.parts == nil {
		return nil, more, err
	}
	excess = map[string]int{}
	for pair := range slices.Chunk(reply.List("excess"), 2) {
		n, _ := pair[len(pair)-1].(int64)
		excess[Text(pair[0])] = int(n)
	}
	return excess, more, nil
}

// EndPauses ends the pauses whose time is over, and returns their groups, "" for the topic's. more
// tells whether there may be more to do.
func (t *Topic) EndPauses(ctx context.Context) (ended []string, more bool, err error) {
	reply, more, err := t.sweep(ctx, func(groups *Groups) *Call { return t.ResumeCall(groups, "", true, t.keys.Operation(Token())) })
	if err != nil || reply.parts == nil {
		return nil, more, err
	}
	return reply.Texts("ended"), more, nil
}

// ResumeCall returns a call that ends the pause of a group, or of the topic if group is "". With
// over it ends the pauses whose time is over instead. It wakes a thousand subscriptions at most.
func (t *Topic) ResumeCall(groups *Groups, group string, over bool, operation string) *Call {
	return t.NewCall(&resumeScript, Target{Groups: groups.Names}, "operation", operation, "version", groups.Version, "group", group,
		"budget", budget, "memory", OperationMemory, "stream", groups.Stream, "over", over, "single", groups.Single)
}

// sweep runs a call that moves a bounded number of messages of all groups. It returns the reply,
// zero if there is no such topic, and whether there may be more to move.
func (t *Topic) sweep(ctx context.Context, callOf func(*Groups) *Call) (reply Reply, more bool, err error) {
	err = t.WithExisting(ctx, func(groups *Groups) error {
		call := callOf(groups)
		if err := Do(ctx, t.client, call); err != nil {
			return err
		}
		if reply, err = call.Read(); err != nil {
			return err
		}
		if reply.Refusal != "" {
			return ErrStale
		}
		more = reply.Flag("left")
		return nil
	})
	if errors.Is(err, ErrNotFound) { // the topic was deleted meanwhile
		return Reply{}, false, nil
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
	return Do(ctx, t.client, t.NewCall(&faultScript, Target{}, "err", text))
}

// ResignCall returns a call that gives up the scheduling lease, so that the standby takes it at
// once.
func (t *Topic) ResignCall(address string) *Call {
	return t.NewCall(&resignScript, Target{}, "me", address)
}
