package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// work is the worker process. It handles jobs until ctx ends, by a SIGTERM. Then it finishes its
// current jobs, acks them, and returns nil.
func work(ctx context.Context, addr, prefix string, logger *slog.Logger) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer example.CloseLogged(client, logger)
	log := watermill.NewSlogLogger(logger)

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:       client,
		KeyPrefix:    prefix,
		MaxInFlight:  8,
		CloseTimeout: 5 * time.Second, // longer than a job, shorter than the time until a SIGKILL

		TakeoverWindow: -1, // else Redis keeps all jobs for ten seconds, for groups that start later
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(subscriber, logger)

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 6 * time.Second}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("do-jobs", topic, subscriber, func(msg *message.Message) error {
		return do(msg.Context(), string(msg.Payload))
	})
	return router.Run(ctx)
}

// do does a job. Its context does not end with the worker's, but after CloseTimeout, or when the
// job's lease is lost.
func do(ctx context.Context, job string) error {
	select {
	case <-time.After(20 * time.Millisecond): // the work
	case <-ctx.Done():
		return errors.Join(errors.New("job not done"), context.Cause(ctx))
	}
	fmt.Println(doneLine, job) // the parent process counts these
	return nil
}

// doneLine is the start of the line that reports a job.
const doneLine = "done"
