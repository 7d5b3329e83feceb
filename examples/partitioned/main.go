// Partitioned spreads one topic over six plain ones:
//
//	go run ./examples/partitioned
//
// Parcels report where they are. The reports of one parcel are handled in order, because the parcel
// is their partition key, and the handler has one message of each partition at a time. Different
// parcels are handled side by side. On a Redis Cluster the six plain topics are on different nodes.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if all reports were handled, each parcel's in order, with 1 if not, with 130 if
// it was interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

const (
	topic      = "reports"
	partitions = 6
	parcels    = 12
)

// stages are what each parcel reports, in order.
var stages = []string{"packed", "sent", "delivered"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "partitioned")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	log := watermill.NewSlogLogger(logger)

	subscriber, err := partition.NewSubscriber(partition.SubscriberConfig{
		Partitions:           partitions,
		PartitionMaxInFlight: 1, // the order of each partition
		Subscriber: redisdelay.SubscriberConfig{
			Client:      server.Client,
			KeyPrefix:   server.KeyPrefix,
			MaxInFlight: partitions, // all partitions side by side
		},
	}, log)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	if err := publish(server, logger); err != nil {
		return err
	}

	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	d := &depot{timeline: example.NewTimeline(), done: done, next: map[string]int{}, of: map[string]int{}}
	router.AddConsumerHandler("depot", topic, subscriber, d.handle) // the router closes the subscriber
	if err := router.Run(running); err != nil {
		return err
	}
	return d.summary(why())
}

// publish publishes the reports of all parcels, a call for each stage. They are due in half a
// second.
func publish(server *example.Redis, logger *slog.Logger) error {
	publisher, err := partition.NewPublisher(partition.PublisherConfig{
		Partitions: partitions,
		Publisher:  redisdelay.PublisherConfig{Client: server.Client, KeyPrefix: server.KeyPrefix},
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)
	for _, stage := range stages {
		var messages []*message.Message
		for i := range parcels {
			msg := message.NewMessage(watermill.NewUUID(), []byte(stage))
			partition.SetKey(msg, fmt.Sprint("parcel-", i+1))
			redisdelay.DelayFor(msg, 500*time.Millisecond)
			messages = append(messages, msg)
		}
		if err := publisher.Publish(topic, messages...); err != nil {
			return err
		}
	}
	return nil
}

// depot handles the reports.
type depot struct {
	timeline example.Timeline
	done     func()

	mu      sync.Mutex
	next    map[string]int // the next stage of each parcel
	of      map[string]int // number of reports of each partition
	handled int
}

func (d *depot) handle(msg *message.Message) error {
	time.Sleep(20 * time.Millisecond) // the work
	parcel, stage := msg.Metadata[partition.KeyMetadata], string(msg.Payload)
	delivery, ok := redisdelay.DeliveryFromContext(msg.Context())
	if !ok {
		return errors.New("the message is not from a redisdelay.Subscriber")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timeline.Printf("%-10s %-10s (%s)", parcel, stage, delivery.Topic)
	if d.next[parcel] < len(stages) && stages[d.next[parcel]] == stage {
		d.next[parcel]++
	}
	d.of[delivery.Topic]++
	if d.handled++; d.handled == parcels*len(stages) {
		d.done()
	}
	return nil
}

// summary prints the result, and returns an error if it is wrong.
func (d *depot) summary(why error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := partition.Topics(topic, partitions)
	if err != nil {
		return err
	}
	fmt.Println()
	for _, name := range names {
		fmt.Printf("%-16s %d reports\n", name, d.of[name])
	}
	if why != nil {
		return fmt.Errorf("not all was done: %w", why)
	}
	for parcel, stage := range d.next {
		if stage != len(stages) {
			return fmt.Errorf("the reports of %s were not in order", parcel)
		}
	}
	fmt.Printf("All %d parcels reported %v in order.\n", len(d.next), stages)
	return nil
}
