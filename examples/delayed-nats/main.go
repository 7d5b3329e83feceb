// Delayed-nats adds delays to NATS JetStream. A shop publishes reminders to NATS with Watermill. To
// delay them, it replaces its Publisher and runs a relay. The consumer of the reminders does not
// change.
//
//	go -C examples/delayed-nats run .
//
// NATS and Redis run inside this process. It can also use your Redis, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go -C examples/delayed-nats run .
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
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// topic is a subject of NATS, in a stream of the same name.
const topic = "reminders"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes reminders, relays the due ones, and checks the messages from NATS.
func run(ctx context.Context, logger *slog.Logger) error {
	redis, err := example.Connect(ctx, "delayed-nats")
	if err != nil {
		return err
	}
	defer redis.Close(logger)
	nats, err := startNATS()
	if err != nil {
		return err
	}
	defer nats.stop()
	log := watermill.NewSlogLogger(logger)

	toNATS, err := nats.publisher(log)
	if err != nil {
		return err
	}
	publisher, err := newPublisher(redis, toNATS, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	fromNATS, err := nats.subscriber(log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(fromNATS, logger)

	running, done, why := example.Until(ctx, 15*time.Second)
	defer done()
	c := &customer{done: done, times: map[string]int{}, ids: map[string]bool{}}
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("remind", topic, fromNATS, c.remind) // the shop's unchanged consumer
	due, err := newRelay(redis, toNATS, log)
	if err != nil {
		return err
	}

	ended := make(chan error, 1)
	go func() { ended <- due.Run(running) }()
	if err := publishReminders(publisher, c); err != nil {
		done()
		<-ended
		return err
	}
	err = router.Run(running)
	if relayed := <-ended; err == nil {
		err = relayed
	}
	if err != nil {
		return err
	}
	return c.summary(why())
}

// newPublisher returns the replacement for the Publisher to NATS. Delayed messages wait in Redis.
func newPublisher(redis *example.Redis, toNATS message.Publisher, log watermill.LoggerAdapter) (*relay.Publisher, error) {
	delayed, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    redis.Client,
		KeyPrefix: redis.KeyPrefix,
	}, log)
	if err != nil {
		return nil, err
	}
	return relay.NewPublisher(relay.PublisherConfig{Destination: toNATS, Delayed: delayed})
}

// newRelay returns the relay, which publishes due messages to NATS. It may run in other processes.
func newRelay(redis *example.Redis, toNATS message.Publisher, log watermill.LoggerAdapter) (*relay.Relay, error) {
	return relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix},
		Topics:      []string{topic},
		Destination: toNATS,
		Permanent:   tooLarge,
	}, log)
}

// publishReminders publishes one reminder without delay and some with delays.
func publishReminders(publisher message.Publisher, c *customer) error {
	var reminders []*message.Message
	for _, delay := range []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf("remind me in %v", delay)))
		msg.Metadata.Set("not_before", time.Now().Add(delay).Format(time.RFC3339Nano))
		redisdelay.DelayFor(msg, delay) // no delay if it is 0
		reminders = append(reminders, msg)
	}
	c.expected = len(reminders)
	if err := publisher.Publish(topic, reminders...); err != nil {
		return err
	}
	fmt.Printf("Published %d messages to topic %s of NATS, 4 of them with delays of 0.5s to 2s.\n\n", len(reminders), topic)
	return nil
}
