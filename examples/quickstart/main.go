// Quickstart handles timeouts of orders with delayed messages, on a Redis inside this process:
//
//	go run ./examples/quickstart
//
// On your own server, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go run ./examples/quickstart
//
// It exits with 0 if every message came and none early, with 1 if not, with 130 if it was
// interrupted.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// order is the payload of the messages. The example publishes one for each order, due when the time
// to pay is over.
type order struct {
	ID       string        `json:"id"`
	PlacedAt time.Time     `json:"placed_at"` // by the server's clock
	PayIn    time.Duration `json:"pay_in"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// topic is the topic of the timeouts.
const topic = "order-timeouts"

// run publishes the timeouts, handles each when it is due, and checks the result.
func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "quickstart")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	client, log := server.Client, watermill.NewSlogLogger(logger)

	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    client,
		KeyPrefix: server.KeyPrefix,
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:    client,
		KeyPrefix: server.KeyPrefix,
		Backoff:   redisdelay.ExponentialBackoff(200*time.Millisecond, time.Minute),
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(subscriber, logger)

	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	orders, err := publishOrders(ctx, client, publisher)
	if err != nil {
		return err
	}

	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	t := &tally{client: client, left: orders, done: done}
	router.AddConsumerHandler("cancel-unpaid-orders", topic, subscriber, t.handle)
	if err := router.Run(running); err != nil {
		return err
	}
	return t.summary(why())
}

// publishOrders publishes the timeouts of a few orders, and returns how many. If it returns an
// error, Redis has none of them.
func publishOrders(ctx context.Context, client redis.UniversalClient, publisher message.Publisher) (int, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its time: %w", err)
	}
	var messages []*message.Message
	for i, payIn := range []time.Duration{
		3 * time.Second, 0, 250 * time.Millisecond, failsOnce, 1500 * time.Millisecond, 2 * time.Second,
		2250 * time.Millisecond, 2250 * time.Millisecond,
	} {
		payload, err := json.Marshal(order{ID: fmt.Sprintf("A-%d", i+1), PlacedAt: now, PayIn: payIn})
		if err != nil {
			return 0, err
		}
		msg := message.NewMessage(watermill.NewUUID(), payload)
		redisdelay.DelayFor(msg, payIn) // the same as msg.Metadata.Set("delay", "250ms")
		messages = append(messages, msg)
	}
	if err := publisher.Publish(topic, messages...); err != nil {
		return 0, err
	}
	fmt.Printf("Published %d messages to topic %s, due in 0s to 3s.\n\n", len(messages), topic)
	fmt.Println("due           came        order  timeout  delivery")
	return len(messages), nil
}
