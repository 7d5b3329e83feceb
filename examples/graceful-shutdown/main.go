// Graceful-shutdown deploys a new version of a worker under load:
//
//	go run ./examples/graceful-shutdown
//
// It starts itself as a worker process. In the middle of the work it starts a second one, and sends
// the first a SIGTERM. The first finishes its current jobs and ends. The second gets the jobs that
// the first had claimed but not begun at once. The program checks that every message is handled
// once, and that none waits for a lease to expire.
//
// It runs on a Redis inside this process, to which the workers connect, or on the one at
// REDIS_ADDR, where it deletes its keys. It exits with 0 if the result is right, with 1 if not,
// with 130 if it was interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

const (
	topic    = "jobs"
	jobs     = 500
	spread   = time.Second // the jobs become due over this time
	handOver = jobs / 4    // after so many jobs the first worker is stopped
)

func main() {
	worker := flag.String("worker", "", "be the worker of that name, on the Redis at REDIS_ADDR (the program starts these itself)")
	prefix := flag.String("prefix", "", "the worker's key prefix")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	if *worker != "" {
		example.Exit(ctx, logger, work(ctx, os.Getenv("REDIS_ADDR"), *prefix, logger.With("worker", *worker)))
	}
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once; the workers finish their jobs
	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes the jobs, runs the two workers, and checks the result.
func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "graceful-shutdown")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	if err := publish(server, logger); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // half the time of a lease
	defer cancel()
	done, err := deploy(ctx, server)
	left, asked := server.Client.HLen(context.WithoutCancel(ctx), server.KeyPrefix+":{"+topic+"}:messages").Result()
	counted := done.summary(left)
	return cmp.Or(errors.Join(err, asked), counted)
}

// publish publishes all jobs in one step, before the workers start.
func publish(server *example.Redis, logger *slog.Logger) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)

	var messages []*message.Message
	for i := range jobs {
		msg := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i+1)))
		redisdelay.DelayFor(msg, spread*time.Duration(i)/jobs)
		messages = append(messages, msg)
	}
	if err := publisher.Publish(topic, messages...); err != nil {
		return err
	}
	fmt.Printf("%d jobs published, due within %v.\n", jobs, spread)
	return nil
}
