package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Cancel takes back a message that waits: for its due time, or for a retry. By its ID, it is taken from all
// groups in which it waits for a retry; a group that has it ready or in hand keeps it. If no group
// does, its delay ID is free again.
//
// Errors wrap ErrNotFound or ErrTooLate, or come from ctx or Redis.
func (a *Admin) Cancel(ctx context.Context, topic string, message Ref) error {
	return a.about(ctx, topic, message, "cancel", queue.Cancelling, func(t *operate.Topic) error {
		return t.Cancel(ctx, message.ref)
	})
}

// Reschedule gives a message that waits another due time: of its first delivery, or of its retry in all groups
// in which it waits for one. The delay ID of one that was not due yet stays taken until the new due time. Of one that waits
// for a retry it is free already, or when its window is over.
//
// Errors wrap ErrNotFound, ErrTooLate, ErrInvalidArgument, or ErrExists if the message was due and another
// has its delay ID by now; or they come from ctx or Redis.
func (a *Admin) Reschedule(ctx context.Context, topic string, message Ref, when When) error {
	if when.err != nil {
		return fmt.Errorf("reschedule: %w", when.err)
	}
	return a.about(ctx, topic, message, "reschedule", queue.Rescheduling, func(t *operate.Topic) error {
		return t.Reschedule(ctx, message.ref, when.due)
	})
}

// DeliverNow makes a message that waits due now. It is Reschedule with the zero When.
func (a *Admin) DeliverNow(ctx context.Context, topic string, message Ref) error {
	return a.Reschedule(ctx, topic, message, When{})
}

func (a *Admin) about(ctx context.Context, topic string, message Ref, what string, work queue.Work, do func(*operate.Topic) error) error {
	err := message.check()
	var t *operate.Topic
	if err == nil {
		t, err = a.topic(ctx, topic, work)
	}
	if err == nil {
		err = do(t)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
