package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// A message comes while the partner is closed. It waits for an hour, and its only delivery is not
// used up.
func ExamplePostpone() {
	server, publisher, stop := startServer()
	defer stop()
	messages, stopSubscriber := subscribeOn(server, "orders", redisdelay.SubscriberConfig{MaxDeliveries: 1})
	defer stopSubscriber()
	check(publisher.Publish("orders", message.NewMessage("order 123", nil)))

	msg := <-messages
	check(redisdelay.Postpone(msg, time.Hour))
	msg.Nack()
	untilLeft(server, "orders", 1)
	server.Advance(time.Hour)
	msg = <-messages
	fmt.Println("again:", msg.UUID)
	msg.Ack()

	// Output: again: order 123
}

// Both services get every order. The processes of one service share its orders.
func ExampleSubscriberConfig_consumerGroup() {
	server, publisher, stop := startServer()
	defer stop()
	billing, stopBilling := subscribeOn(server, "orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	defer stopBilling()
	shipping, stopShipping := subscribeOn(server, "orders", redisdelay.SubscriberConfig{ConsumerGroup: "shipping"})
	defer stopShipping()
	check(publisher.Publish("orders", message.NewMessage("order 123", nil)))

	for _, messages := range []<-chan *message.Message{billing, shipping} {
		msg := <-messages
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Println(delivery.Group, "gets", msg.UUID)
		msg.Ack()
	}

	// Output:
	// billing gets order 123
	// shipping gets order 123
}

// Each process gets every message, such as to empty its cache.
func ExampleSubscriberConfig_broadcast() {
	server, publisher, stop := startServer()
	defer stop()
	first, stopFirst := subscribeOn(server, "prices", redisdelay.SubscriberConfig{Broadcast: true})
	defer stopFirst()
	second, stopSecond := subscribeOn(server, "prices", redisdelay.SubscriberConfig{Broadcast: true})
	defer stopSecond()
	check(publisher.Publish("prices", message.NewMessage("price of tea", nil)))

	for _, messages := range []<-chan *message.Message{first, second} {
		msg := <-messages
		fmt.Println(msg.UUID)
		msg.Ack()
	}

	// Output:
	// price of tea
	// price of tea
}

// A router's handler returns an error, and the message waits in Redis for its next try.
func ExampleSubscriber_router() {
	client, stop := startRedis()
	defer stop()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        client,
		MaxDeliveries: 5,
		Backoff:       redisdelay.ExponentialBackoff(20*time.Millisecond, time.Minute),
	}, nil)
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	router.AddMiddleware(redisdelay.KeepError) // admin shows the error while the message waits
	router.AddConsumerHandler("charge", "orders", subscriber, func(msg *message.Message) error {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Println("delivery", delivery.Number)
		if delivery.Number < 3 {
			return errors.New("the bank does not answer")
		}
		cancel()
		return nil
	})
	check(publisher.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)))
	check(router.Run(ctx))
	check(subscriber.Close()) // now Redis has every ack and nack

	// Output:
	// delivery 1
	// delivery 2
	// delivery 3
}

// Close waits for the message in hand. The other one goes back, and the next process gets it at
// once.
func ExampleSubscriber_Close() {
	server, publisher, stop := startServer()
	defer stop()
	check(publisher.Publish("orders", message.NewMessage("order 1", nil), message.NewMessage("order 2", nil)))
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:       server.Client(),
		CloseTimeout: 20 * time.Second, // less than the time until the process is killed
	}, nil)
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)

	msg := <-messages
	closed := make(chan error)
	go func() { closed <- subscriber.Close() }() // as on SIGTERM
	fmt.Println("done:", msg.UUID)
	msg.Ack()
	fmt.Println("closed:", <-closed)

	next, stopNext := subscribeOn(server, "orders", redisdelay.SubscriberConfig{})
	defer stopNext()
	msg = <-next
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	fmt.Println("the next process gets", msg.UUID, "in delivery", delivery.Number)
	msg.Ack()

	// Output:
	// done: order 1
	// closed: <nil>
	// the next process gets order 2 in delivery 1
}
