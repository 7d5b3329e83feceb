// Delayed-redisstream adds delays to Redis Streams. A shop publishes reminders and consumes them
// with watermill-redisstream. To delay them, it only replaces its Publisher. A due message moves
// into its stream in one step inside Redis. The consumer does not change.
//
//	go -C examples/delayed-redisstream run .
//
// Redis runs inside this process. It can also use your Redis, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go -C examples/delayed-redisstream run .
//
// It exits with 0 if every reminder came once and none early, with 1 if not, with 130 if it was
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
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes reminders, and checks the messages from the stream.
func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "delayed-redisstream")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	topic := server.KeyPrefix + ":reminders" // also the key of the stream, unique to this run
	log := watermill.NewSlogLogger(logger)

	publisher, err := newPublisher(server, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	subscriber, err := newSubscriber(server, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(subscriber, logger)

	running, done, why := example.Until(ctx, 15*time.Second)
	defer done()
	c := &customer{done: done, times: map[string]int{}}
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("remind", topic, subscriber, c.remind)
	if err := publishReminders(publisher, topic, c); err != nil {
		return err
	}
	if err := router.Run(running); err != nil {
		return err
	}
	return c.summary(why())
}

// newPublisher replaces redisstream.NewPublisher. It also moves due messages, for all processes.
func newPublisher(server *example.Redis, log watermill.LoggerAdapter) (message.Publisher, error) {
	return redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
		Stream:    &redisdelay.StreamConfig{MaxLen: 100_000},
	}, log)
}

// newSubscriber returns the shop's unchanged subscriber.
func newSubscriber(server *example.Redis, log watermill.LoggerAdapter) (message.Subscriber, error) {
	return redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client:        redis.NewClient(&redis.Options{Addr: server.Addr}), // closed by the subscriber
		ConsumerGroup: "customers",
	}, log)
}

// publishReminders publishes one reminder without delay and some with delays.
func publishReminders(publisher message.Publisher, topic string, c *customer) error {
	delays := []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second}
	c.expected = len(delays)
	for _, delay := range delays {
		msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf("remind me in %v", delay)))
		msg.Metadata.Set("not_before", time.Now().Add(delay).Format(time.RFC3339Nano))
		redisdelay.DelayFor(msg, delay) // no delay if it is 0
		if err := publisher.Publish(topic, msg); err != nil {
			return err
		}
	}
	fmt.Printf("Published %d messages for a Redis Stream, 4 of them with delays of 0.5s to 2s.\n\n", c.expected)
	return nil
}
