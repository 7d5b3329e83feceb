package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Cancel removes a message that waits for its due time or for a retry. With ByID it is removed from
// all groups in which it waits for a retry. A group that has it ready or in hand keeps it. If no
// group keeps it, its delay ID is free again. In a partitioned topic, the message is looked for in
// all partitions, whatever its partition key is, and whatever the number of partitions was.
//
// Errors wrap ErrNotFound, ErrTooLate, ErrInvalidArgument, ErrInvalidTopic, ErrForbidden or
// ErrLayout, or come from ctx or Redis.
func (a *Admin) Cancel(ctx context.Context, topic string, message Ref) error {
	return a.about(ctx, topic, message, "cancel", queue.Cancelling, func(t *operate.Topic) error {
		return t.Cancel(ctx, message.ref)
	})
}

// Reschedule changes the due time of a message that waits for its first delivery, or for a retry in
// one or more groups. A pending message keeps its delay ID until the new due time. The delay ID of
// a retrying message is free already, or will be at the end of its window.
//
// Errors wrap ErrNotFound, ErrTooLate, ErrExists, ErrInvalidArgument, ErrInvalidTopic,
// ErrForbidden, ErrServerFull or ErrLayout, or come from ctx or Redis. ErrExists means that the
// message was due and another message has its delay ID now.
func (a *Admin) Reschedule(ctx context.Context, topic string, message Ref, when When) error {
	if when.err != nil {
		return fmt.Errorf("reschedule: %w", when.err)
	}
	return a.about(ctx, topic, message, "reschedule", queue.Rescheduling, func(t *operate.Topic) error {
		return t.Reschedule(ctx, message.ref, when.due)
	})
}

// DeliverNow makes a waiting message due now. It is Reschedule with the zero When.
//
// Errors wrap ErrNotFound, ErrTooLate, ErrExists, ErrInvalidArgument, ErrInvalidTopic,
// ErrForbidden, ErrServerFull or ErrLayout, or come from ctx or Redis.
func (a *Admin) DeliverNow(ctx context.Context, topic string, message Ref) error {
	return a.Reschedule(ctx, topic, message, When{})
}

// about runs an operation on a message, after it checked the Ref and the permissions.
func (a *Admin) about(ctx context.Context, topic string, message Ref, what string, work queue.Work, do func(*operate.Topic) error) error {
	err := message.check()
	if err == nil {
		_, err = over(ctx, a, topic, func(plain string) (bool, error) {
			t, err := a.topic(ctx, plain, work)
			if err == nil {
				err = do(t)
			}
			return err == nil, err
		}, first)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
