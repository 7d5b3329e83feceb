// Retry-kafka gives retries to a consumer of Kafka, which has none. A message that its handler
// fails to handle waits in Redis, and comes back to its own topic. The partition does not wait for
// it. There are no retry topics, and no consumer sleeps.
//
//	go -C examples/retry-kafka run .
//
// Kafka and Redis run inside this process. It can also use your Redis, where it deletes its keys:
//
//	REDIS_ADDR=localhost:6379 go -C examples/retry-kafka run .
//
// It exits with 0 if every order was charged or is dead, with 1 if not, with 130 if it was
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
	"github.com/redisdelay/watermill-redisdelay/examples/delayed-kafka/kafkaqueue"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// Both topics have one partition, in which everything would wait for a retry that blocks.
const topic, deadTopic = "orders", "orders-dead"

// firstWait is how long a message waits after its first failure.
const firstWait = 300 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run publishes orders, handles them with retries, and checks what became of them.
func run(ctx context.Context, logger *slog.Logger) error {
	redis, err := example.Connect(ctx, "retry-kafka")
	if err != nil {
		return err
	}
	defer redis.Close(logger)
	brokers, stop, err := kafkaqueue.Start(1, topic, deadTopic)
	if err != nil {
		return err
	}
	defer stop()
	log := watermill.NewSlogLogger(logger)

	toKafka, err := kafkaqueue.NewPublisher(brokers, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(toKafka, logger)
	delayed, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(delayed, logger)
	back, err := relay.New(relay.Config{ // any number of processes may run it
		Subscriber:  redisdelay.SubscriberConfig{Client: redis.Client, KeyPrefix: redis.KeyPrefix},
		Topics:      []string{topic},
		Destination: toKafka,
		Permanent:   kafkaqueue.Refused,
	}, log)
	if err != nil {
		return err
	}

	running, done, why := example.Until(ctx, 15*time.Second)
	defer done()
	s := newShop(done)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	r := retries{topic: topic, dead: deadTopic, tries: 3, first: firstWait, most: time.Minute, delayed: delayed, queue: toKafka}
	for name, h := range map[string]struct { // each name is the consumer group, too
		topic   string
		handle  message.NoPublishHandlerFunc
		retries bool
	}{
		"charge": {topic, s.charge, true},
		"audit":  {topic, s.audit, true},
		"bury":   {deadTopic, s.bury, false},
	} {
		fromKafka, err := kafkaqueue.NewSubscriber(brokers, name, log)
		if err != nil {
			return err
		}
		defer example.CloseLogged(fromKafka, logger)
		handler := router.AddConsumerHandler(name, h.topic, fromKafka, h.handle)
		if h.retries {
			if err := r.addTo(handler); err != nil {
				return err
			}
		}
	}

	ended := make(chan error, 1)
	go func() { ended <- back.Run(running) }()
	if err := publishOrders(toKafka); err != nil {
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
	return s.summary(why())
}

// publishOrders publishes to Kafka, without any delay.
func publishOrders(toKafka message.Publisher) error {
	var all []*message.Message
	for i := range orders {
		all = append(all, message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "order %d", i+1)))
	}
	if err := toKafka.Publish(topic, all...); err != nil {
		return err
	}
	fmt.Printf("Published %d orders to topic %s of Kafka.\n\n", orders, topic)
	return nil
}
