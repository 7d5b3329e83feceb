// Retry-backoff charges three customers at a bank that fails:
//
//	go run ./examples/retry-backoff
//
// Watermill's DelayOnError middleware sets how long a failed message waits. The wait grows from
// delivery to delivery. The message waits in Redis, so it survives a restart, and the handler can
// handle others meanwhile. A message that fails on its last delivery becomes a dead letter, which
// the program shows.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if the result is right, with 1 if not, with 130 if it was interrupted.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

const (
	topic = "charges"
	group = "bank"

	maxDeliveries = 5
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "retry-backoff")
	if err != nil {
		return err
	}
	defer server.Close(logger)

	c, why, err := charge(ctx, server, logger)
	if err != nil {
		return err
	}
	if err := c.summary(why); err != nil {
		return err
	}
	return showDeadLetter(ctx, server)
}

// charge publishes the charges, and handles them until each is done or dead. It closes the
// subscriber before it returns, so that Redis has the result of the last delivery.
func charge(ctx context.Context, server *example.Redis, logger *slog.Logger) (c *charges, why, err error) {
	log := watermill.NewSlogLogger(logger)
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
		Marshaler: redisdelay.JSONMarshaler{}, // so that people can read the dead letter
	}, log)
	if err != nil {
		return nil, nil, err
	}
	defer example.CloseLogged(publisher, logger)

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        server.Client,
		KeyPrefix:     server.KeyPrefix,
		Unmarshaler:   redisdelay.JSONMarshaler{},
		ConsumerGroup: group,
		MaxDeliveries: maxDeliveries,
	}, log)
	if err != nil {
		return nil, nil, err
	}
	defer example.CloseLogged(subscriber, logger)

	// The router logs errors of handlers as errors. They are expected here, so they get a lower
	// level.
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLoggerWithLevelMapping(logger,
		map[slog.Level]slog.Level{slog.LevelError: slog.LevelInfo}))
	if err != nil {
		return nil, nil, err
	}
	backoff := middleware.DelayOnError{
		InitialInterval: 100 * time.Millisecond,
		MaxInterval:     300 * time.Millisecond,
		Multiplier:      2, // a whole number, because Watermill ignores the fraction
	}
	router.AddMiddleware(backoff.Middleware)

	running, done, ended := example.Until(ctx, 10*time.Second)
	defer done()
	c = newCharges(done)
	router.AddConsumerHandler("charge-customers", topic, subscriber, c.handle)

	if err := c.publish(publisher); err != nil {
		return nil, nil, err
	}
	if err := router.Run(running); err != nil {
		return nil, nil, err
	}
	return c, ended(), nil
}
