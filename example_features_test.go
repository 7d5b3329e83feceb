package redisdelay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// Six features, with a line of code each. The code is also in the README.
func Example_features() {
	server, publisher, stop := startServer()
	defer stop()
	client, operator, ctx := server.Client(), server.Admin(), context.Background()
	msg := message.NewMessage("uuid", []byte("order 123"))
	redisdelay.DelayFor(msg, 15*time.Minute)
	named := msg.Copy()
	redisdelay.SetDelayID(named, "order 123", redisdelay.DelayIDReplace)
	err := publisher.Publish("unpaid-orders", named)
	check(err)

	// A name: publish it again to move it, or take it back.
	redisdelay.SetDelayID(msg, "order 123", redisdelay.DelayIDReplace)
	err = operator.Cancel(ctx, "unpaid-orders", admin.ByDelayID("order 123"))
	// An hour late is too late.
	redisdelay.ExpireAfter(msg, time.Hour, redisdelay.ExpiryDrop)
	// Retries wait in Redis, here for a second to ten minutes.
	redisdelay.SetBackoff(msg, time.Second, 10*time.Minute)
	// Each consumer group gets each message, whichever starts first.
	billing := redisdelay.SubscriberConfig{Client: client, ConsumerGroup: "billing"}
	// Messages that are due go into Redis Streams, for watermill-redisstream.
	streams := redisdelay.PublisherConfig{Client: client, Stream: &redisdelay.StreamConfig{}}
	// Publish waits until a replica has the message too.
	replicated := redisdelay.PublisherConfig{Client: client, WaitReplicas: 1}

	fmt.Println("cancelled:", err == nil, "and published again:", publisher.Publish("unpaid-orders", msg) == nil)
	fmt.Println("valid:", billing.Validate() == nil, streams.Validate() == nil, replicated.Validate() == nil)

	// Output:
	// cancelled: true and published again: true
	// valid: true true true
}
