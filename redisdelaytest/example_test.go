package redisdelaytest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// In a test, use Start(t) instead of New and Close.
func Example() {
	server, err := redisdelaytest.New(redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	check(err)
	defer server.Close()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: server.Client()}, nil)
	check(err)
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(context.Background(), "reminders")
	check(err)

	msg := message.NewMessage("uuid", []byte("water the plants"))
	redisdelay.DelayFor(msg, 24*time.Hour)
	check(publisher.Publish("reminders", msg))
	for _, m := range server.Scheduled("reminders") {
		fmt.Println("scheduled for", m.Places[0].At.UTC())
	}

	server.Advance(24 * time.Hour)
	received := <-messages
	fmt.Println(string(received.Payload))
	received.Ack()

	// Output:
	// scheduled for 2026-03-05 12:00:00 +0000 UTC
	// water the plants
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
