package queue

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// operationMemory is how long the result of an operation is remembered, so that a repeat of it after a
// lost reply gets the same. Clients repeat within seconds, but for a process that stood still meanwhile.
const operationMemory = 2 * time.Minute

// remembered is the context of an operation whose result is remembered. It ends while that is so for sure, and with it what
// the client sends again: a later repeat would find done what it is to do, and take that for the work of somebody else.
//
// A Go process whose machine sleeps has its timers and its deadlines sleep too. So whoever asks for Done has the time of
// day looked at.
type remembered struct {
	context.Context
	end   context.CancelFunc
	until time.Time // by the time of day
	late  atomic.Bool
}

// whileRemembered returns a context for one operation, to be ended after it.
func whileRemembered(ctx context.Context) *remembered {
	const limit = operationMemory / 2
	ctx, end := context.WithTimeout(ctx, limit)
	return &remembered{Context: ctx, end: end, until: time.Now().Round(0).Add(limit)}
}

// Done is asked for before each attempt.
func (r *remembered) Done() <-chan struct{} {
	if r.Context.Err() == nil && time.Now().Round(0).After(r.until) {
		r.late.Store(true)
		r.end()
	}
	return r.Context.Done()
}

func (r *remembered) Err() error {
	err := r.Context.Err()
	if err != nil && r.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// Ref names a message: by its ID, or by its delay ID while that is taken.
type Ref struct {
	ID      string
	DelayID string
}

func (r Ref) args() (by, message string) {
	if r.ID != "" {
		return "id", r.ID
	}
	return "name", encodeName(r.DelayID)
}

func (r Ref) String() string {
	if r.ID != "" {
		return "message " + r.ID
	}
	return fmt.Sprintf("delay ID %q", r.DelayID)
}

// encodeName is how a delay ID is stored: without spaces and colons, which divide the options that it is
// one of.
func encodeName(name string) string { return url.QueryEscape(name) }

func decodeName(stored string) string {
	name, err := url.QueryUnescape(stored)
	if err != nil {
		return stored // not written by this program
	}
	return name
}

// Cancel takes back a message that waits. Errors are ErrNotFound, ErrTooLate, or Redis's.
func (t *Topic) Cancel(ctx context.Context, ref Ref) error {
	operation := t.keys.Operation(Token())
	return t.withExisting(ctx, func(groups *Groups) error {
		return t.operate(ctx, ref, t.cancelCall(groups, ref, operation))
	})
}

func (t *Topic) cancelCall(groups *Groups, ref Ref, operation string) *Call {
	k := t.keys
	by, message := ref.args()
	keys := []string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Names(), k.Taken(), operation}
	for _, g := range groups.Names {
		keys = append(keys, k.Retry(g), k.Deliveries(g))
	}
	return &Call{script: &cancelScript, keys: keys, args: []any{groups.Version, by, message, millis(operationMemory)}}
}

// Reschedule gives a message that waits another due time. Errors are ErrNotFound, ErrTooLate, ErrExists,
// or Redis's.
func (t *Topic) Reschedule(ctx context.Context, ref Ref, due Due) error {
	operation := t.keys.Operation(Token())
	return t.withExisting(ctx, func(groups *Groups) error {
		return t.operate(ctx, ref, t.rescheduleCall(groups, ref, due, operation))
	})
}

func (t *Topic) rescheduleCall(groups *Groups, ref Ref, due Due, operation string) *Call {
	k := t.keys
	by, message := ref.args()
	keys := []string{k.Meta(), k.Messages(), k.Options(), k.Pending(), k.Names(), k.Taken(), k.Scheduler(), operation}
	for _, g := range groups.Names {
		keys = append(keys, k.Retry(g))
	}
	return &Call{script: &rescheduleScript, keys: keys,
		args: []any{groups.Version, by, message, due.encode(), millis(operationMemory)}}
}

// operate runs a call about one message and reads its outcome.
func (t *Topic) operate(ctx context.Context, ref Ref, call *Call) error {
	limited := whileRemembered(ctx)
	defer limited.end()
	if err := Do(limited, t.client, call); err != nil {
		return err
	}
	return t.outcome(ref, call)
}

func (t *Topic) outcome(ref Ref, call *Call) error {
	switch outcome := call.cmd.Val(); outcome {
	case "ok":
		return nil
	case "stale":
		return errStale
	case "late":
		return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrTooLate)
	case "missing":
		return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrNotFound)
	case "exists":
		return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrExists)
	default:
		return fmt.Errorf("unexpected outcome %v", outcome)
	}
}

// Requeue has dead messages of the group delivered again, and returns how many. At most a thousand.
func (g *Group) Requeue(ctx context.Context, ids []string) (int, error) {
	k := g.topic.keys
	keys := []string{k.Groups(), k.Messages(), k.Dead(g.Name), k.Deliveries(g.Name), k.Retry(g.Name), k.Scheduler(),
		k.Operation(Token())}
	reply, err := g.bulk(ctx, &requeueScript, keys, []any{g.Name, millis(operationMemory)}, ids)
	switch {
	case err != nil || reply == "":
		return 0, err
	case reply == "unregistered":
		return 0, fmt.Errorf("group %q of topic %q: %w", g.Name, g.topic.Name, ErrNotFound)
	}
	return strconv.Atoi(reply)
}

// Discard forgets dead messages of the group, and returns how many. At most a thousand.
func (g *Group) Discard(ctx context.Context, ids []string) (int, error) {
	discarded, err := g.discard(ctx, ids)
	return strings.Count(discarded, "1"), err
}

// discard is Discard, and returns for each of the messages a 1 if it was dead, else a 0.
func (g *Group) discard(ctx context.Context, ids []string) (string, error) {
	k := g.topic.keys
	keys := []string{k.Messages(), k.Options(), k.Refs(), k.Dead(g.Name), k.Deliveries(g.Name), k.Operation(Token())}
	reply, err := g.bulk(ctx, &discardScript, keys, []any{millis(operationMemory)}, ids)
	if err == nil && len(reply) != len(ids) {
		err = fmt.Errorf("discard: unexpected reply %.64q about %d messages", reply, len(ids))
	}
	return reply, err
}

func (g *Group) bulk(ctx context.Context, s *script, keys []string, args []any, ids []string) (string, error) {
	if len(ids) == 0 {
		return "", nil
	}
	for _, id := range ids {
		args = append(args, id)
	}
	call := &Call{script: s, keys: keys, args: args}
	limited := whileRemembered(ctx)
	defer limited.end()
	if err := Do(limited, g.topic.client, call); err != nil {
		return "", err
	}
	return call.cmd.Text()
}

// Pause stops the claims of a group, or of the topic if group is "", and returns since when they are.
func (t *Topic) Pause(ctx context.Context, group string) (since time.Time, err error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return time.Time{}, err
	}
	call := &Call{script: &pauseScript, keys: []string{t.keys.Meta(), t.keys.Groups(), t.keys.Paused()}, args: []any{group}}
	if err := Do(ctx, t.client, call); err != nil {
		return time.Time{}, err
	}
	reply, err := call.cmd.Text()
	if err != nil {
		return time.Time{}, err
	}
	if reply == "unregistered" {
		if group == "" {
			t.forget(groups)
			return time.Time{}, fmt.Errorf("topic %q: %w", t.Name, ErrNotFound)
		}
		return time.Time{}, fmt.Errorf("group %q of topic %q: %w", group, t.Name, ErrNotFound)
	}
	ms, err := strconv.ParseInt(reply, 10, 64)
	return time.UnixMilli(ms), err
}

// Resume lets the claims of a group go on, or of the topic if group is "", and tells whether they were
// stopped.
func (t *Topic) Resume(ctx context.Context, group string) (was bool, err error) {
	k := t.keys
	operation := k.Operation(Token())
	limited := whileRemembered(ctx)
	defer limited.end()
	for left := true; left; {
		err := t.withExisting(limited, func(groups *Groups) error {
			keys := []string{k.Meta(), k.Paused(), operation, k.Scheduler()}
			args := []any{groups.Version, group, budget, t.single, millis(operationMemory), flag(groups.Stream)}
			for _, g := range groups.Names {
				keys = append(keys, k.Resting(g), k.Ready(g), k.Waiters(g))
				args = append(args, g)
			}
			call := &Call{script: &resumeScript, keys: keys, args: args}
			if err := Do(limited, t.client, call); err != nil {
				return err
			}
			reply, err := call.cmd.Slice()
			if err != nil {
				return err
			}
			if len(reply) != 3 {
				return errStale
			}
			if group != "" && !slices.Contains(groups.Names, group) {
				return fmt.Errorf("group %q of topic %q: %w", group, t.Name, ErrNotFound)
			}
			was = reply[1] == int64(1)
			left = reply[2] == int64(1)
			return nil
		})
		if err != nil {
			return was, err
		}
	}
	return was, nil
}
