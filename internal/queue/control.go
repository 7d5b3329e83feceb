package queue

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// operationMemory is how long the result of an operation is remembered, so that a repeat of it after a
// lost reply gets the same. Clients repeat within seconds.
const operationMemory = 2 * time.Minute

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
	k := t.keys
	operation := k.Operation(Token())
	return t.withExisting(ctx, func(groups *Groups) error {
		by, message := ref.args()
		keys := []string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Names(), k.Taken(), operation}
		for _, g := range groups.Names {
			keys = append(keys, k.Retry(g), k.Deliveries(g))
		}
		return t.operate(ctx, ref, &Call{script: &cancelScript, keys: keys,
			args: []any{groups.Version, by, message, millis(operationMemory)}})
	})
}

// Reschedule gives a message that waits another due time. Errors are ErrNotFound, ErrTooLate, ErrExists,
// or Redis's.
func (t *Topic) Reschedule(ctx context.Context, ref Ref, due Due) error {
	k := t.keys
	operation := k.Operation(Token())
	return t.withExisting(ctx, func(groups *Groups) error {
		by, message := ref.args()
		keys := []string{k.Meta(), k.Messages(), k.Options(), k.Pending(), k.Names(), k.Taken(), k.Scheduler(), operation}
		for _, g := range groups.Names {
			keys = append(keys, k.Retry(g))
		}
		return t.operate(ctx, ref, &Call{script: &rescheduleScript, keys: keys,
			args: []any{groups.Version, by, message, due.encode(), millis(operationMemory)}})
	})
}

// operate runs a call about one message and reads its outcome.
func (t *Topic) operate(ctx context.Context, ref Ref, call *Call) error {
	if err := Do(ctx, t.client, call); err != nil {
		return err
	}
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
	return g.bulk(ctx, &requeueScript, keys, []any{g.Name, millis(operationMemory)}, ids)
}

// Discard forgets dead messages of the group, and returns how many. At most a thousand.
func (g *Group) Discard(ctx context.Context, ids []string) (int, error) {
	k := g.topic.keys
	keys := []string{k.Messages(), k.Options(), k.Refs(), k.Dead(g.Name), k.Deliveries(g.Name), k.Operation(Token())}
	return g.bulk(ctx, &discardScript, keys, []any{millis(operationMemory)}, ids)
}

func (g *Group) bulk(ctx context.Context, s *script, keys []string, args []any, ids []string) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	for _, id := range ids {
		args = append(args, id)
	}
	call := &Call{script: s, keys: keys, args: args}
	if err := Do(ctx, g.topic.client, call); err != nil {
		return 0, err
	}
	reply, err := call.cmd.Text()
	if err != nil {
		return 0, err
	}
	if reply == "unregistered" {
		return 0, fmt.Errorf("group %q of topic %q: %w", g.Name, g.topic.Name, ErrNotFound)
	}
	return strconv.Atoi(reply)
}

// Pause stops the claims of a group, or of the topic if group is "", and returns since when they are.
func (t *Topic) Pause(ctx context.Context, group string) (since time.Time, err error) {
	if _, err := t.existing(ctx); err != nil {
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
		return time.Time{}, fmt.Errorf("group %q of topic %q: %w", group, t.Name, ErrNotFound)
	}
	ms, err := strconv.ParseInt(reply, 10, 64)
	return time.UnixMilli(ms), err
}

// Resume lets the claims of a group go on, or of the topic if group is "", and tells whether they were
// stopped.
func (t *Topic) Resume(ctx context.Context, group string) (was bool, err error) {
	k := t.keys
	stream := false
	for left := true; left; {
		err := t.withExisting(ctx, func(groups *Groups) error {
			keys := []string{k.Meta(), k.Paused()}
			args := []any{groups.Version, group, budget, t.single}
			for _, g := range groups.Names {
				keys = append(keys, k.Resting(g), k.Ready(g), k.Waiters(g))
				args = append(args, g)
			}
			call := &Call{script: &resumeScript, keys: keys, args: args}
			if err := Do(ctx, t.client, call); err != nil {
				return err
			}
			reply, err := call.cmd.Slice()
			if err != nil {
				return err
			}
			if len(reply) != 3 {
				return errStale
			}
			was = was || reply[1] == int64(1)
			left = reply[2] == int64(1)
			stream = groups.Stream
			return nil
		})
		if err != nil {
			return was, err
		}
	}
	if stream { // whose messages it is the scheduler that stopped to move
		return was, t.nudge(ctx)
	}
	return was, nil
}

// eraseGroups is how many groups one step of Erase removes at most: of nine keys each, which takes the server a
// fraction of a millisecond.
const eraseGroups = 100

// Erase forgets the topic and all that it holds: in one step, or, with many groups, in several. If it ends
// between those, the topic is there without groups, and what they have goes as that of other groups that are
// being removed.
func (t *Topic) Erase(ctx context.Context) error {
	k := t.keys
	own := []string{k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Scheduler(), k.Names(), k.Taken(), k.Paused()}
	keysOf := func(groups []string) (keys []string) {
		for _, g := range groups {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Deliveries(g), k.Waiters(g),
				k.Dead(g), k.Resting(g), k.Stats(g))
		}
		return keys
	}
	begun := false
	err := t.withExisting(ctx, func(groups *Groups) error {
		begun = true
		// Those that are being removed are out of the set, and hold something still. More of them would have
		// changed the set.
		removing, err := t.removing(ctx)
		if err != nil {
			return err
		}
		version, names := groups.Version, slices.Concat(groups.Names, removing)
		if len(names) > eraseGroups {
			fresh := Token()
			if err := t.erase(ctx, version, "first", fresh, own, names); err != nil {
				return err
			}
			version = fresh
			for some := range slices.Chunk(names, eraseGroups) {
				if err := t.erase(ctx, version, "some", "", keysOf(some), some); err != nil {
					return err
				}
			}
			names = nil
		}
		return t.erase(ctx, version, "last", "", slices.Concat(own, keysOf(names)), nil)
	})
	if begun && errors.Is(err, ErrNotFound) {
		err = nil // it is gone by a call whose reply was lost
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.groups = nil
	t.mu.Unlock()
	if err := t.client.SRem(ctx, Registry(t.prefix), t.Name).Err(); err != nil {
		return err
	}
	// Somebody who used it meanwhile has made it anew, and thinks that it is in the registry.
	if there, err := t.client.Exists(ctx, k.Meta()).Result(); err != nil || there == 0 {
		return err
	}
	return t.enroll(ctx)
}

func (t *Topic) erase(ctx context.Context, version, step, fresh string, keys, groups []string) error {
	args := []any{version, step, fresh}
	for _, g := range groups {
		args = append(args, g)
	}
	call := &Call{script: &eraseScript, keys: append([]string{t.keys.Meta(), t.keys.Groups(), t.keys.Idle()}, keys...), args: args}
	if err := Do(ctx, t.client, call); err != nil {
		return err
	}
	if call.cmd.Val() == "stale" {
		return errStale
	}
	return nil
}

// flag is a condition as scripts take it.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// Mover publishes messages of another topic in this one.
type Mover struct {
	topic     *Topic
	publisher string
	number    uint64
	ids       *IDs
}

// Mover returns one, for one goroutine.
func (t *Topic) Mover() *Mover {
	return &Mover{topic: t, publisher: Token(), ids: NewIDs()}
}

// Publish makes new messages of others, in one step. They are due now, and keep their limit of deliveries.
func (m *Mover) Publish(ctx context.Context, from []Listed) error {
	messages := make([]Message, len(from))
	for i, l := range from {
		id, err := m.ids.Next(time.Now())
		if err != nil {
			return err
		}
		messages[i] = Message{ID: id, Body: l.Body, Options: Options{MaxDeliveries: l.Options.MaxDeliveries}}
	}
	if len(messages) == 0 {
		return nil
	}
	m.number++
	return m.topic.Publish(ctx, m.publisher, m.number, messages)
}
