package redisdelay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// All processes of the group together make at most 50 calls a second, and five at a time.
func ExampleSubscriberConfig_limit() {
	server, publisher, stop := startServer()
	defer stop()
	client, logger := server.Client(), watermill.NopLogger{}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        client,
		ConsumerGroup: "billing",
		MaxInFlight:   5,  // of this process
		Limit:         50, // messages a second, of all processes
		Burst:         10, // at once after a pause
		AtOnce:        5,  // in hand at the same time
	}, logger)
	check(err)
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)
	for range 15 {
		check(publisher.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)))
	}
	for billed := 0; billed < 15; {
		select {
		case msg := <-messages:
			msg.Ack() // after the call
			billed++
		case <-time.After(10 * time.Millisecond): // the burst is used up
			server.Advance(20 * time.Millisecond) // the clock of the example brings one more
		}
	}
	fmt.Println("15 orders are billed")

	// Output: 15 orders are billed
}

// At most two messages of a customer are handled at a time, in all processes.
func ExampleKeyLimit() {
	server, _, stop := startServer()
	defer stop()
	client, logger := server.Client(), watermill.NopLogger{}
	router := message.NewDefaultRouter(logger)
	perCustomer, err := redisdelay.KeyLimit(redisdelay.KeyLimitConfig{Client: client, AtOnce: 2}, logger)
	check(err)
	router.AddMiddleware(perCustomer)

	fmt.Println(router.IsRunning())

	// Output: false
}
