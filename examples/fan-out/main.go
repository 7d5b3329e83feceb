// Fan-out runs two services that both handle every order, at their own pace:
//
//	go run ./examples/fan-out
//
// Each service is a consumer group: billing and shipping both get each order when it is due. Within
// a group, one worker gets it; billing has two workers. Shipping fails once and gets that order
// again, without an effect on billing.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if each service handled each order, with 1 if not, with 130 if it was
// interrupted.
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
	topic  = "orders"
	orders = 6

	// Services get an order when it can no longer be changed. In reality that is after half an
	// hour.
	changeable = 750 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run runs both services. In reality each is a separate program.
func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "fan-out")
	if err != nil {
		return err
	}
	defer server.Close(logger)

	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	b := newBook(done)
	billing, err := newService("billing", 2, server, logger, b.bill)
	if err != nil {
		return err
	}
	shipping, err := newService("shipping", 1, server, logger, b.ship)
	if err != nil {
		return err
	}
	if err := publish(server, b, logger); err != nil {
		return err
	}

	ended := make(chan error, 2)
	go func() { ended <- billing.Run(running) }()
	go func() { ended <- shipping.Run(running) }()
	first := <-ended
	done() // if one fails, the other ends too
	if err := errors.Join(first, <-ended); err != nil {
		return err
	}
	return b.summary(why())
}

// newService returns the router of a service with a number of workers.
func newService(name string, workers int, server *example.Redis, logger *slog.Logger, handle func(worker string, msg *message.Message) error) (*message.Router, error) {
	log := watermill.NewSlogLogger(logger)
	// The router logs errors of handlers as errors. One is expected here, so it gets a lower level.
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLoggerWithLevelMapping(logger,
		map[slog.Level]slog.Level{slog.LevelError: slog.LevelInfo}))
	if err != nil {
		return nil, err
	}
	for i := range workers {
		subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
			Client:        server.Client,
			KeyPrefix:     server.KeyPrefix,
			ConsumerGroup: name,
			Backoff:       redisdelay.ExponentialBackoff(100*time.Millisecond, time.Minute),
		}, log)
		if err != nil {
			return nil, err
		}
		// From here on the group gets all due messages, even before it runs.
		if err := subscriber.SubscribeInitialize(topic); err != nil {
			return nil, err
		}
		worker := name + "-" + strconv.Itoa(i+1)
		router.AddConsumerHandler(worker, topic, subscriber, func(msg *message.Message) error { // the router closes the subscriber
			return handle(worker, msg)
		})
	}
	return router, nil
}

// publish places the orders. Redis stores each message once, whatever the number of groups.
func publish(server *example.Redis, b *book, logger *slog.Logger) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)

	var messages []*message.Message
	for i := range orders {
		msg := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i+1)))
		redisdelay.DelayFor(msg, changeable)
		messages = append(messages, msg)
	}
	b.timeline.Printf("%d orders placed", orders)
	return publisher.Publish(topic, messages...)
}
