// Webhooks sends reminders to a customer's web server when they are due:
//
//	go run ./examples/webhooks
//
// Reminders wait in Redis. A relay sends each as a request, signed as Standard Webhooks says. The
// receiver checks the signature. It fails now and then, asks for a pause once, and refuses one
// reminder for good. Nothing is lost: what fails comes again with the same ID, and what is refused
// is a dead letter that says why.
//
// The command "redisdelay relay --to http" does the same without a program, and more: it refuses
// private addresses, for instance.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if every reminder came or is a dead letter, with 1 if not, with 130 if it was
// interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const (
	topic     = "reminders"
	reminders = 8
	every     = 100 * time.Millisecond // between two of them
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "webhooks")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	running, done, why := example.Until(ctx, 20*time.Second)
	defer done()

	key := newKey() // which sender and receiver both have
	customer := startReceiver(key, done)
	defer customer.close()
	due, err := relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{
			Client:    server.Client,
			KeyPrefix: server.KeyPrefix,
			Backoff:   redisdelay.ExponentialBackoff(200*time.Millisecond, time.Second),
		},
		Topics:        []string{topic},
		Destination:   &sender{url: customer.url, key: key},
		Permanent:     refusedForGood,
		BatchMessages: 1, // a request is one message
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	if err := publish(server, logger); err != nil {
		return err
	}
	if err := forge(ctx, customer.url); err != nil {
		return err
	}
	if err := due.Run(running); err != nil { // it settles what is under way before it returns
		return err
	}
	if err := why(); err != nil {
		return err
	}
	customer.summary()
	return deadLetters(ctx, server)
}

// publish publishes reminders, which are due one after the other.
func publish(server *example.Redis, logger *slog.Logger) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	var all []*message.Message
	for i := range reminders {
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"reminder":%d}`, i+1))
		redisdelay.DelayFor(msg, every*time.Duration(i+1))
		all = append(all, msg)
	}
	return publisher.Publish(topic, all...)
}

// deadLetters prints why messages are dead letters.
func deadLetters(ctx context.Context, server *example.Redis) error {
	operator, err := admin.New(admin.Config{Client: server.Client, KeyPrefix: server.KeyPrefix})
	if err != nil {
		return err
	}
	page, err := operator.List(ctx, topic, admin.Query{State: admin.Dead, Group: relay.DefaultConsumerGroup})
	if err != nil {
		return err
	}
	for _, msg := range page.Messages {
		fmt.Printf("Dead letter %s: %s\n", msg.Payload, msg.Places[0].Reason)
	}
	if len(page.Messages) != 1 {
		return errors.New("there should be one dead letter")
	}
	return nil
}
