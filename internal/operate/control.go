package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Ref names a message: by its ID, or by its delay ID while that is taken.
type Ref struct {
	ID      string
	DelayID string
}

// args names the message as scripts take it.
func (r Ref) args() (by, message string) {
	if r.ID != "" {
		return "id", r.ID
	}
	return "name", queue.EncodeName(r.DelayID)
}

func (r Ref) String() string {
	if r.ID != "" {
		return "message " + r.ID
	}
	return fmt.Sprintf("delay ID %q", r.DelayID)
}

// Cancel takes back a message that waits. It returns queue.ErrNotFound, ErrTooLate, or an error of
// Redis.
func (t *Topic) Cancel(ctx context.Context, ref Ref) error {
	operation := t.Keys().Operation(queue.Token())
	return t.WithExisting(ctx, func(groups *queue.Groups) error {
		return t.operate(ctx, ref, groups, t.cancelCall(groups, ref, operation, groups.Recorded, ""))
	})
}

// cancelCall returns a call that takes a message back. With recorded, histories tell of it. at is
// the due time in ms at which the message must wait, "" for any.
func (t *Topic) cancelCall(groups *queue.Groups, ref Ref, operation string, recorded bool, at string) *queue.Call {
	by, message := ref.args()
	return t.NewCall(&queue.CancelScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", operation,
		"version", groups.Version, "by", by, "id", message, "memory", queue.OperationMemory, "recorded", recorded, "at", at)
}

// Reschedule gives a message that waits another due time. It returns queue.ErrNotFound,
// queue.ErrExists, ErrTooLate, or an error of Redis.
func (t *Topic) Reschedule(ctx context.Context, ref Ref, due queue.Due) error {
	return t.RescheduleWithin(ctx, ref, due, nil)
}

// RescheduleWithin is Reschedule for a message that may expire. It returns queue.ErrPastExpiry if
// the message would be due when it is too late for it. A nil expires is never.
func (t *Topic) RescheduleWithin(ctx context.Context, ref Ref, due queue.Due, expires Expires) error {
	operation := t.Keys().Operation(queue.Token())
	for {
		of, until, err := t.expiry(ctx, ref, expires)
		if err != nil {
			return err
		}
		err = t.WithExisting(ctx, func(groups *queue.Groups) error {
			return t.operate(ctx, ref, groups, t.rescheduleCall(groups, ref, due, operation, of, until, "", ""))
		})
		if err != errOther {
			return withExpiry(err, until)
		}
	}
}

// rescheduleCall returns a call that gives a message another due time. of and until are as expiry
// returns them. at is as for cancelCall. record is what a retry must have, "" for any.
func (t *Topic) rescheduleCall(groups *queue.Groups, ref Ref, due queue.Due, operation, of, until, at, record string) *queue.Call {
	by, message := ref.args()
	return t.NewCall(&queue.RescheduleScript, queue.Target{Groups: groups.Names}, "operation", operation, "version", groups.Version,
		"by", by, "id", message, "spec", due, "memory", queue.OperationMemory, "of", of, "expires", until, "at", at, "record", record)
}

// operate runs a call about one message or delay ID, and returns its outcome.
func (t *Topic) operate(ctx context.Context, ref Ref, groups *queue.Groups, call *queue.Call) error {
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	if err := queue.Do(limited, t.Client(), call); err != nil {
		return err
	}
	outcome, about, _ := strings.Cut(queue.Text(call.Cmd().Val()), " ")
	switch {
	case outcome == "late" && about != "":
		return t.recallLate(ref, groups, strings.Fields(about))
	case outcome == "late":
		return t.tooLate(ctx, ref)
	}
	return t.outcome(ref, outcome)
}

// errOther means that another message has the delay ID than the one whose expiry was read.
var errOther = errors.New("another message has the delay ID")

// outcome reads what a call about one message answered.
func (t *Topic) outcome(ref Ref, outcome string) error {
	about := func(err error) error { return fmt.Errorf("%v of topic %q: %w", ref, t.Name, err) }
	switch outcome {
	case "ok":
		return nil
	case "stale":
		return queue.ErrStale
	case "other":
		return errOther
	case "late":
		return about(ErrTooLate)
	case "missing":
		return t.noMessage(ref)
	case "exists":
		return about(queue.ErrExists)
	case "named":
		return about(ErrNamed)
	case "expires":
		return about(queue.ErrPastExpiry)
	default:
		return fmt.Errorf("unexpected outcome %q", outcome)
	}
}

// Requeue has dead messages of the group delivered again, a thousand at most, and returns how many.
// dues has when each is due; none means now.
func (g *Group) Requeue(ctx context.Context, ids []string, dues ...queue.Due) (int, error) {
	d := g.topic.Draft(&queue.RequeueScript, queue.Target{Group: g.Name}, "operation", g.topic.Keys().Operation(queue.Token()),
		"group", g.Name, "memory", queue.OperationMemory)
	for i, id := range ids {
		due := queue.In(0)
		if len(dues) > 0 {
			due = dues[i]
		}
		d.Each("message", "id", id, "delay", due)
	}
	reply, err := g.bulk(ctx, d, len(ids))
	switch {
	case err != nil || reply == "":
		return 0, err
	case reply == "unregistered":
		return 0, fmt.Errorf("group %q of topic %q: %w", g.Name, g.topic.Name, queue.ErrNotFound)
	}
	return strconv.Atoi(reply)
}

// Discard deletes dead messages of the group, a thousand at most, and returns how many.
func (g *Group) Discard(ctx context.Context, ids []string) (int, error) {
	discarded, err := g.discard(ctx, ids, "deleted")
	return strings.Count(discarded, "1"), err
}

// discard is Discard, but returns a text with one character for each ID: "1" if the message was
// dead, else "0". how is what the history says of it.
func (g *Group) discard(ctx context.Context, ids []string, how string) (string, error) {
	d := g.topic.Draft(&queue.DiscardScript, queue.Target{Group: g.Name}, "operation", g.topic.Keys().Operation(queue.Token()),
		"memory", queue.OperationMemory, "group", g.Name, "how", how)
	for _, id := range ids {
		d.Each("message", "id", id)
	}
	reply, err := g.bulk(ctx, d, len(ids))
	if err == nil && len(reply) != len(ids) {
		err = fmt.Errorf("discard: unexpected reply %.64q about %d messages", reply, len(ids))
	}
	return reply, err
}

// bulk runs a call about n messages, and returns its reply; "" if n is 0.
func (g *Group) bulk(ctx context.Context, d *queue.Draft, n int) (string, error) {
	if n == 0 {
		return "", nil
	}
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	return run(limited, g.topic, (*redis.Cmd).Text, d.Call())
}

// Pause stops the claims of a group, or of the topic if group is "". With lasts above 0, a
// scheduler ends the pause after that time. A pause that exists keeps since when it is. It returns
// what the script replied.
func (t *Topic) Pause(ctx context.Context, group, by, why string, lasts time.Duration) (queue.Reply, error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return queue.Reply{}, err
	}
	until := ""
	if lasts > 0 {
		until = strconv.FormatInt(queue.CeilMillis(lasts), 10)
	}
	reply, err := ask(ctx, t, t.NewCall(&queue.PauseScript, queue.Target{}, "group", group, "lasts", until, "by", queue.EncodeName(by), "why", why))
	switch {
	case err != nil:
	case reply.Refusal != "" && group == "":
		t.Forget(groups)
		err = fmt.Errorf("topic %q: %w", t.Name, queue.ErrNotFound)
	case reply.Refusal != "":
		err = fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
	}
	return reply, err
}

// Resume lets the claims of a group go on, or of the topic if group is "". It tells whether they
// were stopped.
func (t *Topic) Resume(ctx context.Context, group string) (was bool, err error) {
	operation := t.Keys().Operation(queue.Token())
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	for left := true; left; {
		err := t.WithExisting(limited, func(groups *queue.Groups) error {
			reply, err := ask(limited, t, t.ResumeCall(groups, group, false, operation))
			if err != nil {
				return err
			}
			if group != "" && !slices.Contains(groups.Names, group) {
				return fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
			}
			was, left = reply.Flag("was"), reply.Flag("left")
			return nil
		})
		if err != nil {
			return was, err
		}
	}
	return was, nil
}
