package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// This file acts on messages that retry, by their delay ID. names in Redis forgets the delay ID of
// a message that is due, so the retries are searched by the options of their messages. The search
// goes in steps, and a single step then acts on all that it found.

// ErrNamed means that a message that waits for its first delivery has the delay ID by now.
var ErrNamed = errors.New("delay ID has another message by now")

// Expires returns from when on it is too late to deliver a message; the zero time is never. The
// body is nil if it is lost.
type Expires func(o queue.Options, body []byte) time.Time

// recalled limits the messages that one step acts on, together over the groups.
const recalled = 1000

// Retrying returns the IDs of the messages that retry in some group and have a delay ID, in order.
// It returns queue.ErrNotFound if there is no such topic. It looks at a thousand retries a step.
func (t *Topic) Retrying(ctx context.Context, delayID string) (ids []string, err error) {
	err = t.WithExisting(ctx, func(groups *queue.Groups) error {
		ids = nil
		for group, score, id := 1, "", ""; group > 0 && group <= len(groups.Names); {
			reply, err := ask(ctx, t, t.NewCall(&queue.SeekScript, queue.Target{Groups: groups.Names}, "version", groups.Version,
				"name", queue.EncodeName(delayID), "group", group, "score", score, "id", id))
			if err != nil {
				return err
			}
			group, score, id = reply.Number("group"), reply.Text("score"), reply.Text("id")
			for _, one := range reply.Each() {
				ids = append(ids, one.Text("found"))
			}
		}
		return nil
	})
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// FindRetrying returns the message that was published last of those that retry under a delay ID, or
// queue.ErrNotFound.
func (t *Topic) FindRetrying(ctx context.Context, delayID string) (Found, error) {
	ref := Ref{DelayID: delayID}
	ids, err := t.Retrying(ctx, delayID)
	for _, id := range slices.Backward(ids) {
		found, _, err := t.find(ctx, Ref{ID: id}, id)
		if !errors.Is(err, queue.ErrNotFound) {
			return found, err
		}
	}
	if err == nil {
		err = t.outcome(ref, "missing")
	}
	return Found{}, err
}

// CancelRetries takes back all messages that retry under a delay ID, or none. It returns
// queue.ErrNotFound, ErrTooLate if a group has one of them and does not wait for it, ErrNamed, or
// an error of Redis.
func (t *Topic) CancelRetries(ctx context.Context, delayID string) error {
	return t.recall(ctx, delayID, "", nil)
}

// RescheduleRetries gives all messages that retry under a delay ID another due time, or none. It
// returns the errors of CancelRetries, and queue.ErrPastExpiry. A nil expires is never.
func (t *Topic) RescheduleRetries(ctx context.Context, delayID string, due queue.Due, expires Expires) error {
	return t.recall(ctx, delayID, due, expires)
}

// recall acts on all messages that retry under a delay ID: a due time, or "" to take them back.
func (t *Topic) recall(ctx context.Context, delayID string, due any, expires Expires) error {
	ref := Ref{DelayID: delayID}
	ids, err := t.Retrying(ctx, delayID)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return t.outcome(ref, "missing")
	}
	// While its window lasts, the delay ID means a message that was due. A group may have it, and
	// wait only for older ones.
	owner, err := t.Find(ctx, ref)
	switch {
	case err == nil && !slices.Contains(ids, owner.ID):
		ids = append(ids, owner.ID)
	case err != nil && !errors.Is(err, queue.ErrNotFound) && !errors.Is(err, ErrTooLate):
		return err
	}
	untils := map[string]string{}
	for _, id := range ids {
		_, until, err := t.expiry(ctx, Ref{ID: id}, expires)
		if err != nil {
			return err
		}
		untils[id] = until
	}
	groups, err := t.Existing(ctx)
	if err != nil {
		return err
	}
	// So many messages retry under one delay ID in tests only: then it takes several steps.
	some := max(1, recalled/(len(groups.Names)+1))
	missing := 0
	for part := range slices.Chunk(ids, some) {
		operation := t.Keys().Operation(queue.Token())
		err := t.WithExisting(ctx, func(groups *queue.Groups) error {
			call := t.recallCall(groups, delayID, due, part, untils, operation)
			err := t.operate(ctx, ref, groups, call)
			if errors.Is(err, queue.ErrPastExpiry) {
				_, id, _ := strings.Cut(queue.Text(call.Cmd().Val()), " ")
				err = withExpiry(err, untils[id])
			}
			return err
		})
		if errors.Is(err, queue.ErrNotFound) && some < len(ids) {
			if missing += len(part); missing < len(ids) {
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Topic) recallCall(groups *queue.Groups, delayID string, due any, ids []string, untils map[string]string, operation string) *queue.Call {
	d := t.Draft(&queue.RecallScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", operation,
		"version", groups.Version, "delay_id", queue.EncodeName(delayID), "spec", due, "memory", queue.OperationMemory, "recorded", groups.Recorded)
	for _, id := range ids {
		d.Each("message", "id", id, "expires", untils[id])
	}
	return d.Call()
}

// expiry returns the ID of a message, and in ms from when on it is too late for it; "" is never. If
// there is no such message, the ID is "-", so that none fits. A nil expires does not look: the ID
// is "".
func (t *Topic) expiry(ctx context.Context, ref Ref, expires Expires) (id, until string, err error) {
	if expires == nil {
		return "", "", nil
	}
	found, err := t.Find(ctx, ref)
	switch {
	case errors.Is(err, queue.ErrNotFound), errors.Is(err, ErrTooLate):
		return "-", "", nil
	case err != nil:
		return "", "", err
	}
	if at := expires(found.Options, found.Body); !at.IsZero() {
		until = strconv.FormatInt(at.Add(time.Millisecond-1).UnixMilli(), 10)
	}
	return found.ID, until, nil
}

// withExpiry adds to queue.ErrPastExpiry when that is, as expiry returned it.
func withExpiry(err error, until string) error {
	if errors.Is(err, queue.ErrPastExpiry) {
		err = fmt.Errorf("%w, which is %s", err, queue.Instant(until).UTC().Format(time.RFC3339Nano))
	}
	return err
}

// tooLate returns the error for a message that does not wait, or not in all groups. It names the
// states, which it reads: the operation has changed nothing.
func (t *Topic) tooLate(ctx context.Context, ref Ref) error {
	found, err := t.Find(ctx, ref)
	if err != nil { // it is gone, or nobody may look
		return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrTooLate)
	}
	return t.notWaiting(ref, found)
}

// notWaiting is ErrTooLate with the state of a message in each group.
func (t *Topic) notWaiting(ref Ref, found Found) error {
	what := "it"
	if ref.ID == "" {
		what = "message " + found.ID
	}
	var each []string
	for _, g := range found.Places { // none if it waits by now
		if g.State == Waiting {
			continue
		}
		each = append(each, fmt.Sprintf("%s in group %q", texts.State(g.State), g.Group))
	}
	if len(each) == 0 {
		return fmt.Errorf("%v of topic %q: %w", ref, t.Name, ErrTooLate)
	}
	return fmt.Errorf("%v of topic %q: %w: %s is %s", ref, t.Name, ErrTooLate, what, strings.Join(each, ", "))
}

// recallLate reads the answer "late" of the recall script, behind that word.
func (t *Topic) recallLate(ref Ref, groups *queue.Groups, about []string) error {
	if len(about) != 3 || len(about[2]) != len(groups.Names) {
		return fmt.Errorf("recall: unexpected reply about %q", about)
	}
	f := facts{id: about[0], refs: count(about[1])}
	for _, state := range about[2] {
		var g groupFacts
		switch state {
		case 'r':
			g.retry = "0"
		case 'u':
			g.unack = "0"
		case 'd':
			g.dead = "0"
		}
		f.groups = append(f.groups, g)
	}
	return t.notWaiting(ref, f.found(groups, 0))
}
