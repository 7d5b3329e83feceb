package redisdelay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// The group keeps a line about each message that ended.
func ExampleSubscriberConfig_history() {
	server, publisher, stop := startServer()
	defer stop()
	client, logger := server.Client(), watermill.NopLogger{}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:           client,
		ConsumerGroup:    "billing",
		HistoryRetention: 24 * time.Hour,
		MaxHistory:       100_000, // default 10,000
	}, logger)
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)
	check(publisher.Publish("orders", message.NewMessage("4711", nil)))
	msg := <-messages
	msg.Ack()
	check(subscriber.Close()) // Redis has the ack by then

	operator, err := admin.New(admin.Config{Client: client})
	check(err)
	page, err := operator.History(context.Background(), "orders", admin.HistoryFilter{UUID: "4711"})
	check(err)
	fmt.Println(page.Ended[0].How, "after deliveries:", page.Ended[0].Deliveries)

	// Output:
	// acked after deliveries: 1
}
