package partition_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// order returns a message of a customer. Those of one customer are in one partition.
func order(customer, text string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(text))
	partition.SetKey(msg, customer)
	return msg
}

// One topic over 12 plain ones. The orders of one customer are handled one after the other.
func Example() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	defer server.Close()

	publisher, err := partition.NewPublisher(partition.PublisherConfig{
		Partitions: 12,
		Publisher:  redisdelay.PublisherConfig{Client: server.Client()},
	}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := partition.NewSubscriber(partition.SubscriberConfig{
		Partitions:           12,
		PartitionMaxInFlight: 1,
		Subscriber:           redisdelay.SubscriberConfig{Client: server.Client(), MaxInFlight: 12},
	}, nil)
	check(err)
	defer subscriber.Close()

	messages, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)
	check(publisher.Publish("orders", order("ann", "a book"), order("ann", "a pen")))
	for range 2 {
		msg := <-messages
		fmt.Println(msg.Metadata[partition.KeyMetadata], "orders", string(msg.Payload))
		msg.Ack()
	}

	// Output:
	// ann orders a book
	// ann orders a pen
}

// A call over several partitions is not atomic as a whole. The error has the messages to publish
// again. To publish the whole call again would double the others.
func ExamplePublishError() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	defer server.Close()
	publisher, err := partition.NewPublisher(partition.PublisherConfig{
		Partitions: 12,
		Publisher:  redisdelay.PublisherConfig{Client: server.Client(), MaxWaiting: 1}, // of each partition
	}, nil)
	check(err)
	defer publisher.Close()

	check(publisher.Publish("orders", order("ann", "a book"))) // the partition of ann is full
	err = publisher.Publish("orders", order("ann", "a pen"), order("bob", "a lamp"))

	var partial *partition.PublishError
	if errors.As(err, &partial) {
		for _, msg := range partial.Published {
			fmt.Println("published:", string(msg.Payload))
		}
		for _, msg := range partial.Failed {
			fmt.Println("to be published again:", string(msg.Payload))
		}
	}
	fmt.Println("full:", errors.Is(err, redisdelay.ErrTopicFull))

	// Output:
	// published: a lamp
	// to be published again: a pen
	// full: true
}

// The names of the plain topics, for package admin and the tool.
func ExampleTopics() {
	names, err := partition.Topics("orders", 3)
	check(err)
	fmt.Println(names)
	ofAnn, err := partition.TopicOf("orders", 3, "ann")
	check(err)
	fmt.Println(ofAnn)

	// Output:
	// [orders-p0-40 orders-p1-1147 orders-p2-401]
	// orders-p2-401
}
