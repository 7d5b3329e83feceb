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
		return t.operate(ctx, ref, groups, t.cancelCall(groups, ref, operation))
	})
}

func (t *Topic) cancelCall(groups *queue.Groups, ref Ref, operation string) *queue.Call {
	k := t.Keys()
	by, message := ref.args()
	keys := []string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Names(), k.Taken(), operation}
	for _, g := range groups.Names {
		keys = append(keys, k.Retry(g), k.Deliveries(g))
	}
	if groups.Window != "" {
		keys = append(keys, k.Ready(groups.Window))
	}
	return queue.NewCall(&queue.CancelScript, keys, groups.Version, by, message, queue.OperationMemory)
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
			return t.operate(ctx, ref, groups, t.rescheduleCall(groups, ref, due, operation, of, until))
		})
		if err != errOther {
			return withExpiry(err, until)
		}
	}
}

func (t *Topic) rescheduleCall(groups *queue.Groups, ref Ref, due queue.Due, operation, of, until string) *queue.Call {
	k := t.Keys()
	by, message := ref.args()
	keys := []string{k.Meta(), k.Messages(), k.Options(), k.Pending(), k.Names(), k.Taken(), k.Scheduler(), operation}
	for _, g := range groups.Names {
		keys = append(keys, k.Retry(g), k.Deliveries(g))
	}
	return queue.NewCall(&queue.RescheduleScript, keys, groups.Version, by, message, due, queue.OperationMemory, of, until)
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
		return about(queue.ErrNotFound)
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
	var args []any
	for i, id := range ids {
		due := queue.In(0)
		if len(dues) > 0 {
			due = dues[i]
		}
		args = append(args, id, due)
	}
	k := g.topic.Keys()
	keys := []string{k.Groups(), k.Messages(), k.Dead(g.Name), k.Deliveries(g.Name), k.Retry(g.Name), k.Scheduler(),
		k.Operation(queue.Token())}
	reply, err := g.bulk(ctx, &queue.RequeueScript, keys, append([]any{g.Name, queue.OperationMemory}, args...), len(ids))
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
	discarded, err := g.discard(ctx, ids)
	return strings.Count(discarded, "1"), err
}

// discard is Discard, but returns a text with one character for each ID: "1" if the message was
// dead, else "0".
func (g *Group) discard(ctx context.Context, ids []string) (string, error) {
	k := g.topic.Keys()
	keys := []string{k.Messages(), k.Options(), k.Refs(), k.Dead(g.Name), k.Deliveries(g.Name), k.Operation(queue.Token())}
	args := []any{queue.OperationMemory}
	for _, id := range ids {
		args = append(args, id)
	}
	reply, err := g.bulk(ctx, &queue.DiscardScript, keys, args, len(ids))
	if err == nil && len(reply) != len(ids) {
		err = fmt.Errorf("discard: unexpected reply %.64q about %d messages", reply, len(ids))
	}
	return reply, err
}

// bulk runs a script about n messages, and returns its reply; "" if n is 0.
func (g *Group) bulk(ctx context.Context, s *queue.Script, keys []string, args []any, n int) (string, error) {
	if n == 0 {
		return "", nil
	}
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	return run(limited, g.topic, (*redis.Cmd).Text, s, keys, args...)
}

// Pause stops the claims of a group, or of the topic if group is "". With lasts above 0, a
// scheduler ends the pause after that time. A pause that exists keeps its Since.
func (t *Topic) Pause(ctx context.Context, group, by, why string, lasts time.Duration) (Pause, error) {
	groups, err := t.Existing(ctx)
	if err != nil {
		return Pause{}, err
	}
	k := t.Keys()
	until := ""
	if lasts > 0 {
		until = strconv.FormatInt(queue.CeilMillis(lasts), 10)
	}
	reply, err := run(ctx, t, (*redis.Cmd).StringSlice, &queue.PauseScript, []string{k.Meta(), k.Groups(), k.Paused(), k.Resumes(), k.Scheduler()},
		group, until, queue.EncodeName(by), why)
	switch {
	case err != nil:
		return Pause{}, err
	case len(reply) == 1 && group == "":
		t.Forget(groups)
		return Pause{}, fmt.Errorf("topic %q: %w", t.Name, queue.ErrNotFound)
	case len(reply) == 1:
		return Pause{}, fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
	case len(reply) != 2:
		return Pause{}, fmt.Errorf("pause: unexpected reply of %d parts", len(reply))
	}
	return Pause{Since: queue.Instant(reply[0]), By: by, Why: why, Until: queue.Instant(reply[1])}, nil
}

// Resume lets the claims of a group go on, or of the topic if group is "". It tells whether they
// were stopped.
func (t *Topic) Resume(ctx context.Context, group string) (was bool, err error) {
	operation := t.Keys().Operation(queue.Token())
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	for left := true; left; {
		err := t.WithExisting(limited, func(groups *queue.Groups) error {
			call := t.ResumeCall(groups, group, false, operation)
			if err := queue.Do(limited, t.Client(), call); err != nil {
				return err
			}
			reply, err := call.Cmd().Slice()
			if err != nil {
				return err
			}
			if len(reply) != 4 {
				return queue.ErrStale
			}
			if group != "" && !slices.Contains(groups.Names, group) {
				return fmt.Errorf("group %q of topic %q: %w", group, t.Name, queue.ErrNotFound)
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
