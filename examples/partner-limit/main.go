// Partner-limit sends invoices to a partner whose API takes 50 calls a second, and five at a time:
//
//	go run ./examples/partner-limit
//
// All invoices are due in the same millisecond, and three workers handle them. Each worker could
// make five calls at a time. The limit is a setting of their group: Redis counts over all workers,
// so the partner never gets more than it takes. Invoices that may not begin yet wait in Redis.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if the partner got every invoice within its limits, with 1 if not, with 130 if it
// was interrupted.
package main

import (
	"context"
	"errors"
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
	topic    = "invoices"
	group    = "partner"
	workers  = 3
	invoices = 120

	// due is when all invoices are sent. In reality that is at midnight.
	due = 300 * time.Millisecond
)

// The limits of the partner.
const (
	rate   = 50 // calls a second
	burst  = 10 // calls at once after a pause
	atOnce = 5  // calls that run at the same time
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run runs all workers. In reality each is a separate process.
func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "partner-limit")
	if err != nil {
		return err
	}
	defer server.Close(logger)

	running, done, why := example.Until(ctx, 20*time.Second)
	defer done()
	p := newPartner(done)
	var all []*message.Router
	for i := range workers {
		router, err := newWorker("worker-"+strconv.Itoa(i+1), server, logger, p)
		if err != nil {
			return err
		}
		all = append(all, router)
	}
	if err := publish(server, logger); err != nil {
		return err
	}
	p.timeline.Printf("%d invoices, all due in %v", invoices, due)

	ended := make(chan error, workers)
	for _, router := range all {
		go func() { ended <- router.Run(running) }()
	}
	var errs []error
	for range all {
		errs = append(errs, <-ended)
		done() // if one fails, the others end too
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.summary(why())
}

// newWorker returns the router of one worker.
func newWorker(name string, server *example.Redis, logger *slog.Logger, p *partner) (*message.Router, error) {
	log := watermill.NewSlogLogger(logger)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return nil, err
	}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        server.Client,
		KeyPrefix:     server.KeyPrefix,
		ConsumerGroup: group,
		MaxInFlight:   5, // of this worker

		Limit:  rate, // of all workers together
		Burst:  burst,
		AtOnce: atOnce,
	}, log)
	if err != nil {
		return nil, err
	}
	// From here on the group gets all due messages, even before the worker runs.
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return nil, err
	}
	router.AddConsumerHandler(name, topic, subscriber, func(msg *message.Message) error { // the router closes the subscriber
		p.call(name)
		return nil
	})
	return router, nil
}

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
	for i := range invoices {
		msg := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i+1)))
		redisdelay.DelayFor(msg, due)
		messages = append(messages, msg)
	}
	return publisher.Publish(topic, messages...)
}
