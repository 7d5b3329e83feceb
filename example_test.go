package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// remind publishes a message that is due in 15 minutes, and handles such messages until ctx ends.
func remind(ctx context.Context, client redis.UniversalClient, logger watermill.LoggerAdapter) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, logger)
	if err != nil {
		return err
	}
	defer publisher.Close()
	msg := message.NewMessage(watermill.NewUUID(), []byte("order 123"))
	msg.Metadata.Set("delay", "15m") // or redisdelay.DelayFor(msg, 15*time.Minute)
	if err := publisher.Publish("unpaid-orders", msg); err != nil {
		return err
	}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, logger)
	if err != nil {
		return err
	}
	defer subscriber.Close()
	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("cancel-unpaid-orders", "unpaid-orders", subscriber, cancelOrder)
	return router.Run(ctx)
}

// The code of remind is also in the README.
func Example() {
	server, _, stop := startServer()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	cancelOrder = func(msg *message.Message) error {
		fmt.Println("not paid in time:", string(msg.Payload))
		cancel()
		return nil
	}
	ended := make(chan error)
	go func() { ended <- remind(ctx, server.Client(), watermill.NopLogger{}) }()
	for published := false; !published; time.Sleep(time.Millisecond) {
		_, published = server.AdvanceToNext() // moves the server's clock by 15 minutes
	}
	check(<-ended)

	// Output: not paid in time: order 123
}

var cancelOrder message.NoPublishHandlerFunc

// Each of these clients will do. None of them talks to a server yet. The code is also in
// docs/reference.md.
func Example_clients() {
	addrs := []string{"10.0.0.1:26379", "10.0.0.2:26379"}

	single := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: addrs}) // not ReplicaOnly
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})

	for _, client := range []redis.UniversalClient{single, sentinel, cluster} {
		fmt.Println(redisdelay.PublisherConfig{Client: client}.Validate())
		check(client.Close())
	}

	// Output:
	// <nil>
	// <nil>
	// <nil>
}

// forRequests are the options of a client whose calls end within a second, if Redis hangs.
func forRequests(addr string) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		DialTimeout:           300 * time.Millisecond,
		ReadTimeout:           300 * time.Millisecond,
		WriteTimeout:          300 * time.Millisecond,
		MaxRetries:            1, // two attempts; -1: one
		DialerRetries:         1, // one try to connect in each attempt
		ContextTimeoutEnabled: true,
	}
}

// The code of forRequests is also in docs/reference.md.
func Example_forRequests() {
	client := redis.NewClient(forRequests("localhost:6379"))
	fmt.Println(redisdelay.PublisherConfig{Client: client}.Validate())
	check(client.Close())

	// Output: <nil>
}

func ExamplePublisher() {
	client, stop := startRedis()
	defer stop()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	defer publisher.Close()
	msg := message.NewMessage(watermill.NewUUID(), []byte("order 123"))

	msg.Metadata.Set("delay", "15m") // or redisdelay.DelayFor(msg, 15*time.Minute)
	err = publisher.Publish("unpaid-orders", msg)
	fmt.Println("error:", err)

	msg.Metadata.Set("delay", "15 minutes")
	err = publisher.Publish("unpaid-orders", msg)
	fmt.Println("refused:", errors.Is(err, redisdelay.ErrInvalidDelay))

	// Output:
	// error: <nil>
	// refused: true
}

// The context of a web request bounds the call. What it means for a call that it ends early, the
// error tells.
func ExamplePublisher_PublishContext() {
	_, publisher, stop := startServer()
	defer stop()
	request, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	msg := message.NewMessage("uuid", []byte("order 123"))
	redisdelay.SetDelayID(msg, "order 123", redisdelay.DelayIDKeep) // a second try is no second message
	err := publisher.PublishContext(request, "unpaid-orders", msg)
	switch {
	case errors.Is(err, redisdelay.ErrMaybePublished):
		fmt.Println("it may be there or not: try again")
	case err != nil:
		fmt.Println("not published:", err)
	default:
		fmt.Println("published")
	}

	// Output: published
}

// A Publisher and a Subscriber without a router.
func ExampleNewSubscriber() {
	client, stop := startRedis()
	defer stop()
	ctx := context.Background()

	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	defer publisher.Close()

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        client,
		ConsumerGroup: "billing",
	}, nil)
	check(err)
	defer subscriber.Close()

	messages, err := subscriber.Subscribe(ctx, "orders")
	check(err)

	later := message.NewMessage(watermill.NewUUID(), []byte("later"))
	redisdelay.DelayFor(later, 30*time.Millisecond)
	now := message.NewMessage(watermill.NewUUID(), []byte("now"))
	check(publisher.Publish("orders", later, now))

	for range 2 {
		msg := <-messages
		fmt.Println(string(msg.Payload))
		msg.Ack()
	}

	// Output:
	// now
	// later
}

func ExampleDelayFor() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{})
	defer stop()

	msg := message.NewMessage(watermill.NewUUID(), nil)
	redisdelay.DelayFor(msg, 20*time.Millisecond)
	fmt.Println(msg.Metadata.Get(redisdelay.DelayKey))

	published := time.Now()
	check(publisher.Publish("orders", msg))
	received := <-messages
	received.Ack()
	fmt.Println("early:", time.Since(published) < 20*time.Millisecond)
	fmt.Println("delay that the handler sees:", received.Metadata.Get(redisdelay.DelayKey) != "")

	// Output:
	// 20ms
	// early: false
	// delay that the handler sees: false
}

func ExampleDelayUntil() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{})
	defer stop()

	due := time.Now().Add(200 * time.Millisecond).Truncate(time.Millisecond)
	msg := message.NewMessage(watermill.NewUUID(), nil)
	redisdelay.DelayUntil(msg, due)
	check(publisher.Publish("orders", msg))

	received := <-messages
	received.Ack()
	delivery, _ := redisdelay.DeliveryFromContext(received.Context())
	fmt.Println("due as set:", delivery.DueAt.Equal(due))

	// Output: due as set: true
}

func ExampleDeliveryFromContext() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	defer stop()
	check(publisher.Publish("orders", message.NewMessage("uuid", nil)))

	handle := func(ctx context.Context) { // a function that only gets the context
		if delivery, ok := redisdelay.DeliveryFromContext(ctx); ok {
			fmt.Println(delivery.Topic, delivery.Group, delivery.Number, delivery.Redelivered, len(delivery.ID))
		}
	}
	msg := <-messages
	handle(msg.Context())
	msg.Ack()

	// Output: orders billing 1 false 26
}

// A delay on a message that is nacked is how long it waits for its next delivery. Without one,
// SubscriberConfig.Backoff says it.
func ExampleSubscriber_nackWithDelay() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{})
	defer stop()
	check(publisher.Publish("orders", message.NewMessage("uuid", nil)))

	failed := <-messages
	redisdelay.DelayFor(failed, 20*time.Millisecond)
	nacked := time.Now()
	failed.Nack()

	again := <-messages
	delivery, _ := redisdelay.DeliveryFromContext(again.Context())
	fmt.Println("delivery", delivery.Number, "early:", time.Since(nacked) < 20*time.Millisecond)
	again.Ack()

	// Output: delivery 2 early: false
}

// Watermill's own way to delay a message works too: for instance in a CQRS bus, where there is a
// context and no message.
func Example_watermillDelay() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{})
	defer stop()

	msg := message.NewMessage("uuid", nil)
	msg.SetContext(delay.WithContext(context.Background(), delay.For(20*time.Millisecond)))
	published := time.Now()
	check(publisher.Publish("orders", msg))

	received := <-messages
	received.Ack()
	fmt.Println("early:", time.Since(published) < 20*time.Millisecond)

	// Output: early: false
}

// Watermill's DelayOnError becomes a backoff that is kept in Redis: it grows from delivery to
// delivery, whichever process gets them.
func Example_delayOnError() {
	client, stop := startRedis()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
	check(err)
	defer subscriber.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)

	backoff := middleware.DelayOnError{
		InitialInterval: 10 * time.Millisecond,
		MaxInterval:     time.Minute,
		Multiplier:      3,
	}
	router.AddMiddleware(backoff.Middleware)
	router.AddConsumerHandler("charge", "orders", subscriber, func(msg *message.Message) error {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Printf("delivery %d, waited %q\n", delivery.Number, msg.Metadata.Get(delay.DelayedForKey))
		if delivery.Number < 3 {
			return errors.New("the bank does not answer")
		}
		cancel()
		return nil
	})
	check(publisher.Publish("orders", message.NewMessage("uuid", nil)))
	check(router.Run(ctx))

	// Output:
	// delivery 1, waited ""
	// delivery 2, waited "10ms"
	// delivery 3, waited "30ms"
}

// The code of it is also in docs/watermill.md.
func Example_deduplicator() {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	repository, err := middleware.NewMapExpiringKeyRepository(time.Hour)
	check(err)

	deduplicator := middleware.Deduplicator{
		KeyFactory: func(msg *message.Message) (string, error) {
			delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
			if delivery.Redelivered {
				return watermill.NewUUID(), nil
			}
			return fmt.Sprintf("%q %q %s", delivery.Topic, delivery.Group, msg.UUID), nil
		},
		Repository: repository,
		Timeout:    time.Second,
	}
	router.AddMiddleware(deduplicator.Middleware)
}

// inOrder returns a Subscriber whose messages wait for one that fails, and a middleware for its
// handlers, which tries that again at longer and longer intervals. The message's lease is extended
// meanwhile. When ctx ends, with which the router runs, the message goes back to its place.
func inOrder(ctx context.Context, client redis.UniversalClient, logger watermill.LoggerAdapter) (*redisdelay.Subscriber, message.HandlerMiddleware, error) {
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        client,
		MaxDeliveries: -1,
		Backoff:       func(int) time.Duration { return 0 },
	}, logger)
	retry := middleware.Retry{
		MaxRetries:      100, // then it is nacked, and begins anew
		InitialInterval: 100 * time.Millisecond,
		MaxInterval:     5 * time.Second, // well below the Subscriber's CloseTimeout
		Multiplier:      1.5,
		ShouldRetry:     func(middleware.RetryParams) bool { return ctx.Err() == nil },
		Logger:          logger,
	}
	return subscriber, retry.Middleware, err
}

// A message that fails holds up those behind it. The code of inOrder is also in docs/watermill.md.
func Example_inOrder() {
	client, stop := startRedis()
	defer stop()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	defer publisher.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	subscriber, retry, err := inOrder(ctx, client, watermill.NopLogger{})
	check(err)
	defer subscriber.Close()

	for _, text := range []string{"first", "second"} {
		check(publisher.Publish("events", message.NewMessage(watermill.NewUUID(), []byte(text))))
	}
	tries := 0
	router.AddConsumerHandler("events", "events", subscriber, func(msg *message.Message) error {
		tries++
		fmt.Println(string(msg.Payload))
		switch {
		case tries == 1:
			return errors.New("not yet")
		case tries == 3:
			cancel()
		}
		return nil
	}).AddMiddleware(retry)
	check(router.Run(ctx))

	// Output:
	// first
	// first
	// second
}

// repeat is a handler that does its job, and has its message come again some time later.
func repeat(publisher message.Publisher, every time.Duration, job func() error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if err := job(); err != nil {
			return err // Backoff says when it is tried again
		}
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		next := msg.Copy()
		redisdelay.DelayFor(next, every)
		redisdelay.SetDelayID(next, delivery.DelayID, redisdelay.DelayIDReplace)
		return publisher.Publish(delivery.Topic, next)
	}
}

// The process dies when it has published the next, before its ack. The code of repeat is also in
// docs/watermill.md.
func Example_repeat() {
	publisher, messages, stop := pubSub(redisdelay.SubscriberConfig{Backoff: func(int) time.Duration { return 0 }})
	defer stop()
	handle := repeat(publisher, 500*time.Millisecond, func() error { return nil })

	first := message.NewMessage(watermill.NewUUID(), []byte("clean up"))
	redisdelay.SetDelayID(first, "clean up", redisdelay.DelayIDReplace)
	check(publisher.Publish("orders", first))

	msg := <-messages
	check(handle(msg))
	msg.Nack() // as if its lease had run out
	again := <-messages
	check(handle(again))
	again.Ack()

	for range 3 {
		msg := <-messages
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Printf("%s, delivery %d of %q\n", msg.Payload, delivery.Number, delivery.DelayID)
		check(handle(msg))
		msg.Ack()
		select {
		case <-messages:
			fmt.Println("and another one")
		case <-time.After(20 * time.Millisecond):
		}
	}

	// Output:
	// clean up, delivery 1 of "clean up"
	// clean up, delivery 1 of "clean up"
	// clean up, delivery 1 of "clean up"
}

// whenOpen is a handler that sends a message while the partner is open, and else an hour later.
// Its router has the middleware redisdelay.PostponeOnError.
func whenOpen(open func() bool, send message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if !open() {
			return &redisdelay.PostponeError{Delay: time.Hour, Err: errors.New("the partner is closed")}
		}
		return send(msg)
	}
}

// Each wait is spread by a fifth either way.
func ExampleExponentialBackoff() {
	config := redisdelay.SubscriberConfig{
		Backoff: redisdelay.ExponentialBackoff(time.Second, time.Minute),
	}
	for delivery, about := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 20: time.Minute} {
		wait := config.Backoff(delivery)
		if wait < about*8/10 || wait > about*12/10 {
			fmt.Println("delivery", delivery, "waits", wait)
		}
	}
	fmt.Println("1s, 2s, 4s, ... 1m0s")

	// Output: 1s, 2s, 4s, ... 1m0s
}

// startRedis starts a server in this process.
func startRedis() (client redis.UniversalClient, stop func()) {
	server, err := miniredis.Run()
	check(err)
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() {
		check(client.Close())
		server.Close()
	}
}

// pubSub returns a publisher and the messages of the topic "orders".
func pubSub(config redisdelay.SubscriberConfig) (_ *redisdelay.Publisher, _ <-chan *message.Message, stop func()) {
	client, stopRedis := startRedis()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	check(err)
	config.Client = client
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), "orders")
	check(err)
	return publisher, messages, func() {
		check(publisher.Close())
		check(subscriber.Close())
		stopRedis()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// giveDelays takes a Publisher to NATS, or to any other queue. It returns one that knows delays,
// and a relay, whose Run publishes due messages to NATS: here, or in any number of other processes.
func giveDelays(client redis.UniversalClient, nats message.Publisher, logger watermill.LoggerAdapter) (*relay.Publisher, *relay.Relay, error) {
	delayed, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, logger)
	if err != nil {
		return nil, nil, err
	}
	publisher, err := relay.NewPublisher(relay.PublisherConfig{Destination: nats, Delayed: delayed})
	if err != nil {
		return nil, nil, err
	}
	due, err := relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: client},
		Topics:      []string{"unpaid-orders"},
		Destination: nats,
	}, logger)
	return publisher, due, err
}

// intoStreams takes the place of redisstream.NewPublisher. Subscribers of watermill-redisstream
// stay as they are.
func intoStreams(client redis.UniversalClient, logger watermill.LoggerAdapter) (message.Publisher, error) {
	return redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: client,
		Stream: &redisdelay.StreamConfig{MaxLen: 1_000_000},
	}, logger)
}

// XREAD is in the place of a subscriber of watermill-redisstream.
func Example_streams() {
	client, stop := startRedis()
	defer stop()
	publisher, err := intoStreams(client, watermill.NopLogger{})
	check(err)
	defer publisher.Close()

	later := message.NewMessage("1", []byte("not paid in time"))
	redisdelay.DelayFor(later, 50*time.Millisecond)
	check(publisher.Publish("unpaid-orders", later, message.NewMessage("2", []byte("placed"))))
	for last, n := "0", 0; n < 2; n++ {
		read, err := client.XRead(context.Background(), &redis.XReadArgs{Streams: []string{"unpaid-orders", last}, Count: 1, Block: time.Minute}).Result()
		check(err)
		entry := read[0].Messages[0]
		last = entry.ID
		fmt.Println(entry.Values["payload"])
	}

	// Output:
	// placed
	// not paid in time
}

// A gochannel is in the place of NATS.
func Example_relay() {
	client, stop := startRedis()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	nats := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	orders, err := nats.Subscribe(ctx, "unpaid-orders")
	check(err)
	publisher, due, err := giveDelays(client, nats, watermill.NopLogger{})
	check(err)
	defer publisher.Close()

	var running sync.WaitGroup
	running.Go(func() { check(due.Run(ctx)) })
	running.Go(func() {
		later := message.NewMessage("1", []byte("not paid in time"))
		redisdelay.DelayFor(later, 50*time.Millisecond)
		check(publisher.Publish("unpaid-orders", later, message.NewMessage("2", []byte("placed"))))
	})
	for range 2 {
		order := <-orders
		fmt.Printf("%s, relayed: %v\n", order.Payload, order.Metadata.Get(relay.IDKey) != "")
		order.Ack()
	}
	cancel()
	running.Wait()

	// Output:
	// placed, relayed: false
	// not paid in time, relayed: true
}
