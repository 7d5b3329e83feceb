package components

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// makeSubscriber makes the group of a handler, so that it misses nothing, however late the handler
// starts.
func makeSubscriber(client redis.UniversalClient, topic string, logger watermill.LoggerAdapter) cqrs.EventProcessorSubscriberConstructorFn {
	return func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
		subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, ConsumerGroup: p.HandlerName}, logger)
		if err != nil {
			return nil, err
		}
		return subscriber, subscriber.SubscribeInitialize(topic)
	}
}

func Example_subscriberConstructor() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	defer server.Close()
	subscriber, err := makeSubscriber(server.Client(), "events", watermill.NopLogger{})(cqrs.EventProcessorSubscriberConstructorParams{HandlerName: "billing"})
	check(err)
	defer func() { check(subscriber.Close()) }()

	stats, err := server.Admin().Stats(context.Background(), "events")
	check(err)
	fmt.Println("there before Subscribe:", stats.Groups[0].Group)

	// Output: there before Subscribe: billing
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
