package queue

import (
	"context"
	"time"
)

// staging is how long what is moved waits in its new topic at most, until it is gone from the old one.
const staging = time.Minute

// Mover moves dead messages of other topics into this one. Two topics may be on two servers, so it takes three
// steps: publish them, not due yet; forget those in the old topic that are dead still; and have what was forgotten
// due now, and take back the others. So what somebody else requeues, forgets or moves meanwhile is his alone. If the
// program ends after the first step, all of them are due after a while: none is lost.
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

// Move makes new messages of dead ones of a group, a thousand at most, and returns how many. They are due now, and
// keep their limit of deliveries.
func (m *Mover) Move(ctx context.Context, from *Group, dead []Listed) (int, error) {
	if len(dead) == 0 {
		return 0, nil
	}
	messages, old := make([]Message, len(dead)), make([]string, len(dead))
	for i, l := range dead {
		id, err := m.ids.Next(time.Now())
		if err != nil {
			return 0, err
		}
		messages[i] = Message{ID: id, Due: In(staging), Body: l.Body, Options: Options{MaxDeliveries: l.Options.MaxDeliveries}}
		old[i] = l.ID
	}
	m.number++
	if err := m.topic.Publish(ctx, m.publisher, m.number, messages); err != nil {
		return 0, err
	}
	discarded, err := from.discard(ctx, old)
	if err != nil {
		return 0, err
	}
	moved := 0
	var release []step
	for i, was := range discarded {
		s := step{ref: Ref{ID: messages[i].ID}, keep: was == '1'}
		if s.keep {
			moved++
		}
		release = append(release, s)
	}
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), staging/2)
	defer end()
	return moved, m.release(ctx, release)
}

// step is what becomes of a message that was published and is not due yet.
type step struct {
	ref  Ref
	keep bool // it is due now; else it is taken back
}

func (m *Mover) release(ctx context.Context, steps []step) error {
	t := m.topic
	return t.withExisting(ctx, func(groups *Groups) error {
		calls := make([]*Call, len(steps))
		for i, s := range steps {
			operation := t.keys.Operation(Token())
			if s.keep {
				calls[i] = t.rescheduleCall(groups, s.ref, In(0), operation)
			} else {
				calls[i] = t.cancelCall(groups, s.ref, operation)
			}
		}
		if err := Do(ctx, t.client, calls...); err != nil {
			return err
		}
		var left []step
		for i, s := range steps {
			switch err := t.outcome(s.ref, calls[i]); {
			case err == errStale:
				left = append(left, s)
			case err != nil && !s.keep: // what is kept, and not there any more, was due by itself
				return err
			}
		}
		if steps = left; len(steps) > 0 {
			return errStale
		}
		return nil
	})
}
