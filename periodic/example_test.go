package periodic_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// recur has each process of a program publish a message at nine on weekdays, in Berlin. Only one of
// them does, for each day.
func recur(ctx context.Context, publisher *redisdelay.Publisher, logger watermill.LoggerAdapter) error {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		return err
	}
	p, err := periodic.New(periodic.Config{Publisher: publisher}, logger)
	if err != nil {
		return err
	}
	err = p.Add(periodic.Schedule{
		Name:     "daily-report",
		Topic:    "reports",
		Spec:     "0 9 * * 1-5",
		Location: berlin,
		Message: func(o periodic.Occurrence) (*message.Message, error) {
			return message.NewMessage(watermill.NewUUID(), []byte(o.At.Format(time.DateOnly))), nil
		},
	})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// Two processes run a schedule. It is Friday evening.
func Example() {
	server, err := redisdelaytest.New(redisdelaytest.Config{Now: time.Date(2026, 1, 2, 18, 0, 0, 0, time.UTC)})
	check(err)
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for range 2 {
		publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
		check(err)
		defer publisher.Close()
		go func() { ended <- recur(ctx, publisher, nil) }()
	}
	for len(server.Scheduled("reports")) == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, msg := range server.Scheduled("reports") {
		fmt.Printf("%s is due at %s\n", msg.Payload, msg.Places[0].At.UTC().Format(time.DateTime))
	}
	cancel()
	for range 2 {
		check(<-ended)
	}

	// Output:
	// 2026-01-05 is due at 2026-01-05 08:00:00
}

// A test has two days pass over which Berlin moves its clocks.
func Example_test() {
	now := time.Date(2026, time.March, 27, 0, 0, 0, 0, time.UTC)
	server, err := redisdelaytest.New(redisdelaytest.Config{Now: now}) // in a test, StartWith(t, ...)
	check(err)
	defer server.Close()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: server.Client()}, nil)
	check(err)
	defer subscriber.Close()
	reports, err := subscriber.Subscribe(context.Background(), "reports")
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { check(recur(ctx, publisher, nil)) })
	for len(server.Scheduled("reports")) == 0 { // in a test, AwaitScheduled(t, "reports", 1)
		time.Sleep(time.Millisecond)
	}

	for range 2 {
		server.AdvanceToNext()
		report := <-reports
		fmt.Printf("%s at %s\n", report.Payload, server.Now().UTC().Format("15:04"))
		report.Ack()
	}
	cancel()
	running.Wait()

	// Output:
	// 2026-03-27 at 08:00
	// 2026-03-30 at 07:00
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
