package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Pause stops the consumers of a topic: its messages become ready and stay that. What is in a consumer's
// hands is settled as ever, retries become ready, leases are extended and run out. It holds for all
// processes at once, and until Resume, through restarts. Messages age meanwhile: those for which it is too late by
// the time of Resume are dropped or dead-lettered then, as they say, and not delivered. In a topic with a Redis
// Stream, what is due waits and does not go into the stream; its consumers go on with what is there. It returns
// since when the topic is paused: a second
// Pause changes nothing.
//
// Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Pause(ctx context.Context, topic string) (since time.Time, err error) {
	return a.pause(ctx, topic, "")
}

// PauseGroup is Pause for one group.
func (a *Admin) PauseGroup(ctx context.Context, topic, group string) (since time.Time, err error) {
	return a.pause(ctx, topic, groupName(group))
}

func (a *Admin) pause(ctx context.Context, topic, group string) (since time.Time, err error) {
	t, err := a.topic(ctx, topic, queue.Pausing)
	if err == nil {
		since, err = t.Pause(ctx, group)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("pause: %w", err)
	}
	return since, nil
}

// Resume ends Pause, and wakes the consumers. Groups that are paused by themselves stay so. It tells whether
// the topic was paused.
//
// Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Resume(ctx context.Context, topic string) (was bool, err error) {
	return a.resume(ctx, topic, "")
}

// ResumeGroup ends PauseGroup. If the topic is paused, the group rests until that ends, too.
func (a *Admin) ResumeGroup(ctx context.Context, topic, group string) (was bool, err error) {
	return a.resume(ctx, topic, groupName(group))
}

func (a *Admin) resume(ctx context.Context, topic, group string) (was bool, err error) {
	t, err := a.topic(ctx, topic, queue.Resuming)
	if err == nil {
		was, err = t.Resume(ctx, group)
	}
	if err != nil {
		return was, fmt.Errorf("resume: %w", err)
	}
	return was, nil
}
