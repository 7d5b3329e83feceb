package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Pause stops the deliveries of a topic in all processes, until Resume, even after a restart. It
// returns since when the topic is paused; a second Pause changes nothing.
//
// Messages still become ready when due, but are not delivered. Messages that consumers hold are
// settled as usual. Retries become ready, and leases are extended or expire. A message that has
// expired by the time of Resume is then dropped or dead-lettered, as its OnExpiry says. In a topic
// with a Redis Stream, due messages do not go into the stream; its consumers continue with the
// entries that are there.
//
// Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Pause(ctx context.Context, topic string) (since time.Time, err error) {
	return a.pause(ctx, topic, "")
}

// PauseGroup pauses one group.
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

// Resume ends Pause, and wakes the consumers. It returns whether the topic was paused. Groups that
// were paused by PauseGroup stay paused.
//
// Errors wrap ErrNotFound, or come from ctx or Redis.
func (a *Admin) Resume(ctx context.Context, topic string) (was bool, err error) {
	return a.resume(ctx, topic, "")
}

// ResumeGroup ends PauseGroup. If the topic is paused, the group stays paused until Resume.
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
