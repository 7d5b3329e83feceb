package scheduler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// A separate scheduler for all topics under the key prefix. Subscribers run their own scheduler for
// their topics, so this one is for programs whose subscribers come and go.
func Example() {
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	s, err := scheduler.New(scheduler.Config{Client: client}, nil)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()

	// The consumer group exists but has no subscriber. The message still becomes ready.
	publishDelayed(client, "orders", "20ms")
	for client.LLen(ctx, "redisdelay:{orders}:ready:default").Val() == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")

	stop()
	fmt.Println("ended:", <-ended)

	// Output:
	// ready
	// ended: <nil>
}

func publishDelayed(client redis.UniversalClient, topic, delay string) {
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
	check(err)
	check(subscriber.SubscribeInitialize(topic))
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	msg := message.NewMessage("uuid", nil)
	msg.Metadata.Set(redisdelay.DelayKey, delay)
	check(publisher.Publish(topic, msg))
	check(publisher.Close())
	check(subscriber.Close())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
