// Delayed-kafka adds delays to Kafka. A shop publishes reminders to Kafka with Watermill. To delay
// them, it replaces its Publisher and runs a relay. The consumer of the reminders does not change.
// The customer is the key of a record, so the reminders of one are in one partition and in order.
//
//	go -C examples/delayed-kafka run .
//
// Kafka and Redis run inside this process. It can also use your Redis, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go -C examples/delayed-kafka run .
//
// It exits with 0 if every reminder came, in order and none early, with 1 if not, with 130 if it
// was interrupted.
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
	"github.com/redisdelay/watermill-redisdelay/examples/delayed-kafka/kafkaqueue"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// topic is one of Redis, and one of Kafka with three partitions.
const topic = "reminders"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes reminders, relays the due ones, and checks the messages from Kafka.
func run(ctx context.Context, logger *slog.Logger) error {
	redis, err := example.Connect(ctx, "delayed-kafka")
	if err != nil {
		return err
	}
	defer redis.Close(logger)
	brokers, stop, err := kafkaqueue.Start(3, topic)
	if err != nil {
		return err
	}
	defer stop()
	log := watermill.NewSlogLogger(logger)

	toKafka, err := kafkaqueue.NewPublisher(brokers, log)
	if err != nil {
		return err
	}
	publisher, err := newPublisher(redis, toKafka, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	fromKafka, err := kafkaqueue.NewSubscriber(brokers, "mailer", log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(fromKafka, logger)

	running, done, why := example.Until(ctx, 15*time.Second)
	defer done()
	m := newMailer(done)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("mail", topic, fromKafka, m.mail) // the shop's unchanged consumer
	due, err := newRelay(redis, toKafka, log)
	if err != nil {
		return err
	}

	ended := make(chan error, 1)
	go func() { ended <- due.Run(running) }()
	if err := publishReminders(publisher); err != nil {
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
	return m.summary(why())
}

// newPublisher returns the replacement for the Publisher to Kafka. Delayed messages wait in Redis.
func newPublisher(redis *example.Redis, toKafka message.Publisher, log watermill.LoggerAdapter) (*relay.Publisher, error) {
	delayed, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix}, log)
	if err != nil {
		return nil, err
	}
	return relay.NewPublisher(relay.PublisherConfig{Destination: toKafka, Delayed: delayed})
}

// newRelay returns the relay, which publishes due messages to Kafka. It keeps their order.
func newRelay(redis *example.Redis, toKafka message.Publisher, log watermill.LoggerAdapter) (*relay.Relay, error) {
	return relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix},
		Topics:      []string{topic},
		Destination: toKafka,
		Permanent:   kafkaqueue.Refused,
		Ordered:     true,
	}, log)
}

// customers get a reminder after each of the delays.
var (
	customers = []string{"ann", "bob", "cyd", "dee"}
	delays    = []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second}
)

// publishReminders publishes the reminders of all customers.
func publishReminders(publisher message.Publisher) error {
	var reminders []*message.Message
	for i, delay := range delays {
		for _, customer := range customers {
			msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf("remind %s after %v", customer, delay)))
			msg.Metadata.Set(kafkaqueue.KeyOf, customer)
			msg.Metadata.Set("number", fmt.Sprint(i))
			msg.Metadata.Set("not_before", time.Now().Add(delay).Format(time.RFC3339Nano))
			redisdelay.DelayFor(msg, delay) // no delay if it is 0
			reminders = append(reminders, msg)
		}
	}
	if err := publisher.Publish(topic, reminders...); err != nil {
		return err
	}
	fmt.Printf("Published %d messages to topic %s of Kafka, 12 of them with delays of 0.5s to 2s.\n\n", len(reminders), topic)
	return nil
}
