package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func (a *app) scheduleCommand() *cobra.Command {
	return &cobra.Command{Use: "schedule [TOPIC...]", Short: "do the due-time work of topics while no subscriber does",
		Long: `Does the due-time work of the topics, by default of all, until Ctrl-C: messages become ready when they are due.
Every subscriber does this too, so it is only for topics whose subscribers are gone or come and go.`,
		ValidArgsFunction: a.completeTopic, Example: "  redisdelay schedule orders", RunE: a.runs(a.schedule)}
}

func (a *app) schedule(ctx context.Context, topics []string) error {
	if _, err := a.connected(); err != nil {
		return err
	}
	for _, topic := range topics {
		if _, _, err := a.stats(ctx, topic); err != nil {
			return err // a typo would make a new topic
		}
	}
	if err := a.maySchedule(ctx, topics); err != nil {
		return err
	}
	if len(topics) > 0 {
		operator, err := a.admin()
		if err == nil {
			topics, err = operator.Plain(ctx, topics...)
		}
		if err != nil {
			return err
		}
	} else {
		topics = nil // all
	}
	s, err := scheduler.New(scheduler.Config{Client: a.client, KeyPrefix: *a.keyPrefix, Topics: topics}, watermill.NewSlogLogger(a.logger))
	if err != nil {
		return refuse("%w", err)
	}
	a.out.note("Doing the due-time work, until Ctrl-C.")
	return s.Run(ctx)
}

// maySchedule returns an error that names what the Redis user may not do, one of each server. A
// scheduler would log it and go on, because permissions may come later.
func (a *app) maySchedule(ctx context.Context, topics []string) error {
	client, err := servers.NewClient(a.client)
	if err != nil {
		return err
	}
	var permits rights.Permits
	return a.topics(ctx, topics, func(_ *admin.Admin, topics []string) error {
		for _, topic := range topics {
			_, err := permits.Try(ctx, queue.NewTopic(client, *a.keyPrefix, topic), rights.Scheduling)
			if errors.Is(err, redisdelay.ErrForbidden) {
				return fmt.Errorf("schedule topic %q: %w", topic, err)
			}
		}
		return nil
	})
}
