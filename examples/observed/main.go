// Observed runs workers and a Prometheus that watches them, and prints what Prometheus says about
// the messages: how many, how late, and what is wrong.
//
//	go -C examples/observed run .
//
// It needs the program prometheus: apt-get install prometheus. Redis runs inside this process. It
// can also use your Redis, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go -C examples/observed run .
//
// It exits with 0 if Prometheus has counted every message, with 1 if not, with 130 if it was
// interrupted.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

const (
	topic  = "invoices"
	orders = 200 // how many messages are published
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes messages, handles them, and asks Prometheus about them.
func run(ctx context.Context, logger *slog.Logger) error {
	redis, err := example.Connect(ctx, "observed")
	if err != nil {
		return err
	}
	defer redis.Close(logger)
	log := watermill.NewSlogLogger(logger)

	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        redis.Client,
		KeyPrefix:     redis.KeyPrefix,
		ConsumerGroup: "billing",
		Backoff:       redisdelay.ExponentialBackoff(200*time.Millisecond, time.Minute),
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(subscriber, logger)
	if err := publishInvoices(publisher); err != nil {
		return err
	}

	running, done, why := example.Until(ctx, 20*time.Second)
	defer done()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLoggerWithLevelMapping(logger,
		map[slog.Level]slog.Level{slog.LevelError: slog.LevelInfo})) // handlers fail on purpose
	if err != nil {
		return err
	}
	router.AddConsumerHandler("send", topic, subscriber, send)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(running) }()
	select {
	case err := <-ended: // it cannot subscribe
		return err
	case <-router.Running():
	}
	err = observe(running, redis)
	done()
	if routed := <-ended; err == nil {
		err = routed
	}
	if cause := why(); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// publishInvoices publishes messages that are due within three seconds.
func publishInvoices(publisher message.Publisher) error {
	var messages []*message.Message
	for i := range orders {
		msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf("invoice %d", i)))
		redisdelay.DelayFor(msg, time.Duration(i)*3*time.Second/orders)
		if i%50 == 0 {
			msg.Metadata.Set("customer", "unknown")
		}
		if i%10 == 5 {
			msg.Metadata.Set("customer", "busy")
		}
		messages = append(messages, msg)
	}
	if err := publisher.Publish(topic, messages...); err != nil {
		return err
	}
	fmt.Printf("Published %d invoices, due within 3s.\n\n", orders)
	return nil
}

// send is the handler. An invoice of an unknown customer is dead, and one of a busy one needs a
// second delivery.
func send(msg *message.Message) error {
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	switch customer := msg.Metadata.Get("customer"); {
	case customer == "unknown":
		err := fmt.Errorf("%s is for nobody", msg.Payload)
		redisdelay.DeadOnNack(msg, err)
		return err
	case customer == "busy" && delivery.Number == 1:
		return fmt.Errorf("%s has to wait", msg.Payload)
	}
	return nil
}
