package relay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// A gochannel stands for the queue that gets delays, such as NATS.
func Example() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	defer server.Close()
	queue := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
	ctx, cancel := context.WithCancel(context.Background())
	orders, err := queue.Subscribe(context.Background(), "orders")
	check(err)

	delayed, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	publisher, err := relay.NewPublisher(relay.PublisherConfig{Destination: queue, Delayed: delayed})
	check(err)
	due, err := relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: server.Client()},
		Topics:      []string{"orders"},
		Destination: queue,
	}, nil)
	check(err)
	ended := make(chan error)
	go func() { ended <- due.Run(ctx) }()

	later := message.NewMessage("later", nil)
	redisdelay.DelayFor(later, time.Hour)
	check(publisher.Publish("orders", later))
	server.Advance(time.Hour)
	msg := <-orders
	fmt.Println(msg.UUID, "is relayed:", msg.Metadata.Get(relay.IDKey) != "")
	msg.Ack()

	cancel()
	check(<-ended)
	check(publisher.Close())

	// Output: later is relayed: true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
