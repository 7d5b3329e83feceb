package operate

import (
	"context"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// staging is how long a moved message waits in its new topic at most, until it is gone from the old
// one.
const staging = time.Minute

// Mover moves dead messages of other topics into this topic. The two topics may be on two servers,
// so there are three steps. It publishes copies that are not due yet. It deletes those originals
// that are still dead. It gives the copies of the deleted originals their due time, and cancels the
// other copies. So a message that others requeue, discard or move meanwhile is not doubled. If the
// program ends after the first step, all copies become due after a minute: no message is lost.
type Mover struct {
	topic     *Topic
	publisher string
	number    uint64
	ids       *queue.IDs
}

// Mover returns a new Mover, for one goroutine.
func (t *Topic) Mover() *Mover {
	return &Mover{topic: t, publisher: queue.Token(), ids: queue.NewIDs()}
}

// Move moves dead messages of a group, a thousand at most, and returns how many it moved. They keep
// their limit of deliveries. dues says when each is due; without it they are due now.
func (m *Mover) Move(ctx context.Context, from *Group, dead []Listed, dues ...queue.Due) (int, error) {
	if len(dead) == 0 {
		return 0, nil
	}
	messages, old := make([]queue.Message, len(dead)), make([]string, len(dead))
	for i, l := range dead {
		id, err := m.ids.Next(time.Now())
		if err != nil {
			return 0, err
		}
		messages[i] = queue.Message{ID: id, Due: queue.In(staging), Body: l.Body, Options: queue.Options{MaxDeliveries: l.Options.MaxDeliveries}}
		old[i] = l.ID
	}
	m.number++
	if err := m.topic.Publish(ctx, m.publisher, m.number, messages); err != nil {
		return 0, err
	}
	discarded, err := from.discard(ctx, old, "moved")
	if err != nil {
		return 0, err
	}
	moved := 0
	var release []step
	for i, was := range discarded {
		s := step{ref: Ref{ID: messages[i].ID}, keep: was == '1', due: queue.In(0)}
		if len(dues) > 0 {
			s.due = dues[i]
		}
		if s.keep {
			moved++
		}
		release = append(release, s)
	}
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), staging/2)
	defer end()
	return moved, m.release(ctx, release)
}

// step says what becomes of a copy.
type step struct {
	ref  Ref
	keep bool // have it come when it is due; else cancel it
	due  queue.Due
}

// release has copies come when they are due, or cancels them.
func (m *Mover) release(ctx context.Context, steps []step) error {
	t := m.topic
	return t.WithExisting(ctx, func(groups *queue.Groups) error {
		calls := make([]*queue.Call, len(steps))
		for i, s := range steps {
			operation := t.Keys().Operation(queue.Token())
			if s.keep {
				calls[i] = t.rescheduleCall(groups, s.ref, s.due, operation, "", "", "", "") // its expiry does not count
			} else {
				calls[i] = t.cancelCall(groups, s.ref, operation, false, "")
			}
		}
		if err := queue.Do(ctx, t.Client(), calls...); err != nil {
			return err
		}
		var left []step
		for i, s := range steps {
			switch err := t.outcome(s.ref, queue.Text(calls[i].Cmd().Val())); {
			case err == queue.ErrStale:
				left = append(left, s)
			case err != nil && !s.keep: // a copy that is to be due, and is gone, was due by itself
				return err
			}
		}
		if steps = left; len(steps) > 0 {
			return queue.ErrStale
		}
		return nil
	})
}
