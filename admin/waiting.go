package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Cancel removes a message that waits for its due time or for a retry. In a partitioned topic it is
// looked for in all partitions, whatever their number was.
//
// With ByID it is removed from all groups in which it waits for a retry. A group that has it ready
// or in hand keeps it. If no group keeps it, its delay ID is free again.
//
// With ByDelayID the message that waits for its due time is meant. If there is none, all messages
// are removed that retry under the delay ID, from all groups. If a group has one of them ready, in
// hand or dead, nothing changes. Then the error wraps ErrTooLate, and names the state in each
// group. Errors also wrap ErrInvalidArgument for a Ref that names none.
func (a *Admin) Cancel(ctx context.Context, topic string, message Ref) error {
	return a.about(ctx, topic, message, "cancel", rights.Cancelling, func(t *operate.Topic) error {
		return t.Cancel(ctx, message.ref)
	}, func(t *operate.Topic) error {
		return t.CancelRetries(ctx, message.ref.DelayID)
	})
}

// Reschedule changes the due time of a message that waits for its first delivery, or for a retry in
// one or more groups. The zero When delivers it now. ByID and ByDelayID mean the same messages as
// for Cancel, and errors are the same. A waiting message keeps its delay ID until the new due time.
// A retry keeps its group and its number of deliveries.
//
// Errors wrap ErrPastExpiry if the due time is at or after the message's expires_at, unless
// on_expiry is "deliver". The expiry of a requeued dead letter does not count, nor one that
// Config.Unmarshaler cannot read. They wrap ErrExists if the message was due and another one has
// its delay ID now.
func (a *Admin) Reschedule(ctx context.Context, topic string, message Ref, when When) error {
	if when.err != nil {
		return fmt.Errorf("reschedule: %w", when.err)
	}
	return a.about(ctx, topic, message, "reschedule", rights.Rescheduling, func(t *operate.Topic) error {
		return t.RescheduleWithin(ctx, message.ref, when.due, a.expiryOf(t))
	}, func(t *operate.Topic) error {
		return t.RescheduleRetries(ctx, message.ref.DelayID, when.due, a.expiryOf(t))
	})
}

// expiryOf returns a function that reads from when on it is too late for a message of a topic.
func (a *Admin) expiryOf(t *operate.Topic) operate.Expires {
	return func(o queue.Options, body []byte) time.Time {
		m := a.message(t.Name, t.Name, operate.Stored{Options: o, Body: body})
		if m.OnExpiry != redisdelay.ExpiryDrop && m.OnExpiry != redisdelay.ExpiryDead {
			return time.Time{}
		}
		return m.ExpiresAt
	}
}

// about runs an operation on a message, after it checked the Ref and the permissions. If no message
// waits under a delay ID, it runs the operation on those that retry.
func (a *Admin) about(ctx context.Context, topic string, message Ref, what string, work rights.Work, do, retries func(*operate.Topic) error) error {
	err := message.check()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	in := func(do func(*operate.Topic) error) error {
		_, err := over(ctx, a, topic, func(plain string) (bool, error) {
			t, err := a.topic(ctx, plain, work)
			if err == nil {
				err = do(t)
			}
			return err == nil, err
		}, first)
		return err
	}
	for {
		err = in(do)
		if message.ref.DelayID == "" || !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrTooLate) {
			break
		}
		// A partition in which a group has a message counts, whatever the others have.
		var late error
		again := in(func(t *operate.Topic) error {
			err := retries(t)
			if errors.Is(err, ErrTooLate) {
				late = errors.Join(late, err)
			}
			return err
		})
		if again == nil {
			again = late
		}
		if errors.Is(again, operate.ErrNamed) {
			continue // a message was published under the delay ID meanwhile
		}
		if !errors.Is(again, ErrNotFound) { // else the window may last: ErrTooLate
			err = again
		}
		break
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
