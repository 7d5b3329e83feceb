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
)

// Wait is a message that waits for its due time, or for a retry in a group.
type Wait struct {
	ID    string
	Group string    // has the retry; "": the message waits for its due time
	At    time.Time // when it is due; zero in a call of RescheduleWaits: at any time

	// Due is when it is to be due, for RescheduleWaits. Too late is from Expires on; zero is never.
	// Record is what a retry must have in its Group, in the text of Redis; "" is any.
	Due     queue.Due
	Expires time.Time
	Record  string
}

// ref returns what names the message, and At as scripts take it.
func (w Wait) ref() (ref Ref, at string) {
	switch {
	case !w.At.IsZero():
		at = strconv.FormatInt(w.At.UnixMilli(), 10)
	case w.Group == "":
		at = "first"
	}
	return Ref{ID: w.ID}, at
}

// CancelWaits takes back messages that wait, a hundred at most. A message in a retry is taken from
// its Group alone. It returns the outcome of each: nil, ErrGone, or another error about it.
func (t *Topic) CancelWaits(ctx context.Context, waits []Wait) ([]error, error) {
	return t.inWaits(ctx, waits, func(groups *queue.Groups, w Wait, operation string) *queue.Call {
		ref, at := w.ref()
		return t.cancelCall(groups, ref, operation, groups.Recorded, at)
	})
}

// RescheduleWaits gives messages that wait their Due, a hundred at most. A message in a retry gets
// it in its Group alone. It returns the outcome of each: nil, ErrGone, queue.ErrExists,
// queue.ErrPastExpiry, or another error about it.
func (t *Topic) RescheduleWaits(ctx context.Context, waits []Wait) ([]error, error) {
	return t.inWaits(ctx, waits, func(groups *queue.Groups, w Wait, operation string) *queue.Call {
		ref, at := w.ref()
		until := ""
		if !w.Expires.IsZero() {
			until = strconv.FormatInt(w.Expires.Add(time.Millisecond-1).UnixMilli(), 10)
		}
		return t.rescheduleCall(groups, ref, w.Due, operation, w.ID, until, at, w.Record)
	})
}

// ErrGone means that a message does not wait any more, or not for the same time.
var ErrGone = errors.New("the message does not wait for that time any more")

// inWaits runs a call about each message in one pipeline, and returns the outcomes. It makes calls
// again that found the group set changed.
func (t *Topic) inWaits(ctx context.Context, waits []Wait, call func(*queue.Groups, Wait, string) *queue.Call) ([]error, error) {
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	outcomes := make([]error, len(waits))
	left := make([]int, len(waits))
	for i := range left {
		left[i] = i
	}
	err := t.WithExisting(limited, func(groups *queue.Groups) error {
		var calls []*queue.Call
		var of []int
		for _, i := range left {
			these := *groups
			if g := waits[i].Group; g != "" {
				if !slices.Contains(groups.Names, g) {
					outcomes[i] = ErrGone
					continue
				}
				these.Names = []string{g}
			}
			calls, of = append(calls, call(&these, waits[i], t.Keys().Operation(queue.Token()))), append(of, i)
		}
		if err := queue.Do(limited, t.Client(), calls...); err != nil {
			return err
		}
		left = left[:0]
		for n, c := range calls {
			i := of[n]
			outcome, _, _ := strings.Cut(queue.Text(c.Cmd().Val()), " ")
			switch outcome {
			case "stale":
				left = append(left, i)
			case "late", "missing", "moved":
				outcomes[i] = ErrGone
			default:
				outcomes[i] = t.outcome(Ref{ID: waits[i].ID}, outcome)
				if errors.Is(outcomes[i], queue.ErrPastExpiry) {
					outcomes[i] = fmt.Errorf("%w, which is %s", outcomes[i], waits[i].Expires.UTC().Format(time.RFC3339Nano))
				}
			}
		}
		if len(left) > 0 {
			return queue.ErrStale
		}
		return nil
	})
	return outcomes, err
}
