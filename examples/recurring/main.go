// Recurring has two processes run the same schedules:
//
//	go run ./examples/recurring
//
// A heartbeat comes each second, once, although both processes publish it. A backup is wanted each
// second too, and takes longer: while one is made, the next ones are skipped.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if all occurrences came as they should, with 1 if not, with 130 if it was
// interrupted.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "recurring")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	log := watermill.NewSlogLogger(logger)

	running, done, why := example.Until(ctx, 20*time.Second)
	defer done()
	h := newHouse(done)
	ended := make(chan error, 2)
	for range 2 {
		if err := h.process(running, server, log, ended); err != nil {
			return err
		}
	}
	return errors.Join(<-ended, <-ended, h.summary(why()))
}

// process starts what a process of its own would be: it publishes what is due, and handles it.
func (h *house) process(ctx context.Context, server *example.Redis, log watermill.LoggerAdapter, ended chan<- error) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client, KeyPrefix: server.KeyPrefix}, log)
	if err != nil {
		return err
	}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:      server.Client,
		KeyPrefix:   server.KeyPrefix,
		MaxInFlight: 4,
	}, log)
	if err != nil {
		return err
	}
	schedules, err := periodic.New(periodic.Config{Publisher: publisher, Ahead: 4 * time.Second, Poll: time.Second}, log)
	if err != nil {
		return err
	}
	err = schedules.Add(
		periodic.Schedule{Name: "heartbeat", Topic: "heartbeats", Spec: "@every 1s", Message: h.message},
		periodic.Schedule{Name: "backup", Topic: "backups", Spec: "@every 1s", Message: h.message},
	)
	if err != nil {
		return err
	}
	skip, err := periodic.Overlap(periodic.OverlapConfig{Client: server.Client, KeyPrefix: server.KeyPrefix}, log)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("heartbeat", "heartbeats", subscriber, h.onHeartbeat)
	router.AddConsumerHandler("backup", "backups", subscriber, h.onBackup).AddMiddleware(skip)
	schedules.AddHandler(router)
	go func() {
		err := router.Run(ctx)
		ended <- errors.Join(err, publisher.Close())
	}()
	return nil
}
