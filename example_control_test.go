package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// Each change puts the search index off. Only the last of them is left, and due ten seconds after
// it.
func ExampleSetDelayID_replace() {
	server, publisher, stop := startServer()
	defer stop()
	for _, change := range []string{"first", "second", "last"} {
		msg := message.NewMessage(change, nil)
		redisdelay.DelayFor(msg, 10*time.Second)
		redisdelay.SetDelayID(msg, "reindex order 123", redisdelay.DelayIDReplace)
		check(publisher.Publish("orders", msg))
		server.Advance(3 * time.Second)
	}
	for _, m := range server.Scheduled("orders") {
		fmt.Println(m.UUID, "in", m.Places[0].At.Sub(server.Now()))
	}

	// Output: last in 7s
}

// The first one stays; the others are left out, without an error.
func ExampleSetDelayID_keep() {
	server, publisher, stop := startServer()
	defer stop()
	for _, attempt := range []string{"first", "second"} {
		msg := message.NewMessage(attempt, nil)
		redisdelay.DelayFor(msg, 15*time.Minute)
		redisdelay.SetDelayID(msg, "timeout of order 123", redisdelay.DelayIDKeep)
		fmt.Println(publisher.Publish("orders", msg))
	}
	for _, m := range server.Scheduled("orders") {
		fmt.Println(m.UUID)
	}

	// Output:
	// <nil>
	// <nil>
	// first
}

func ExampleSetDelayID_reject() {
	_, publisher, stop := startServer()
	defer stop()
	for range 2 {
		msg := message.NewMessage(watermill.NewUUID(), nil)
		redisdelay.DelayFor(msg, 15*time.Minute)
		redisdelay.SetDelayID(msg, "timeout of order 123", redisdelay.DelayIDReject)
		err := publisher.Publish("orders", msg)
		fmt.Println("taken:", errors.Is(err, redisdelay.ErrExists))
	}

	// Output:
	// taken: false
	// taken: true
}

// A mail goes out at once, and the same one not again for an hour.
func ExampleSetDelayIDWindow() {
	server, publisher, stop := startServer()
	defer stop()
	send := func() {
		msg := message.NewMessage(watermill.NewUUID(), nil)
		redisdelay.SetDelayID(msg, "welcome Ann", redisdelay.DelayIDReject)
		redisdelay.SetDelayIDWindow(msg, time.Hour)
		err := publisher.Publish("mails", msg)
		fmt.Println("sent:", err == nil)
	}
	send()
	server.Advance(59 * time.Minute)
	send()
	server.Advance(time.Minute)
	send()

	// Output:
	// sent: true
	// sent: false
	// sent: true
}

// After an hour nobody wants to be reminded any more.
func ExampleExpireAfter() {
	server, publisher, stop := startServer()
	defer stop()
	for _, uuid := range []string{"dropped", "dead-lettered", "delivered"} {
		msg := message.NewMessage(uuid, nil)
		switch uuid {
		case "dropped":
			redisdelay.ExpireAfter(msg, time.Hour, redisdelay.ExpiryDrop)
		case "dead-lettered":
			redisdelay.ExpireAfter(msg, time.Hour, redisdelay.ExpiryDead)
		}
		check(publisher.Publish("reminders", msg))
	}
	server.Advance(2 * time.Hour) // nobody subscribes

	messages, stopSubscriber := subscribeOn(server, "reminders", redisdelay.SubscriberConfig{})
	msg := <-messages
	fmt.Println("delivered:", msg.UUID)
	msg.Ack()
	untilLeft(server, "reminders", 1)
	page, err := server.Admin().List(context.Background(), "reminders", admin.Query{State: admin.Dead})
	check(err)
	stopSubscriber()
	for _, m := range page.Messages {
		fmt.Println(m.UUID+":", m.Places[0].Reason)
	}

	// Output:
	// delivered: delivered
	// dead-lettered: not delivered in time
}

// The offer ends at midnight.
func ExampleExpireAt() {
	server, publisher, stop := startServer()
	defer stop()
	msg := message.NewMessage("offer", nil)
	redisdelay.ExpireAt(msg, time.Date(2026, time.March, 5, 0, 0, 0, 0, time.UTC), redisdelay.ExpiryDrop)
	check(publisher.Publish("mails", msg))
	fmt.Println(msg.Metadata.Get("expires_at"), msg.Metadata.Get("on_expiry"))

	server.Advance(11 * time.Hour) // it is 23:00
	messages, stopSubscriber := subscribeOn(server, "mails", redisdelay.SubscriberConfig{})
	defer stopSubscriber()
	received := <-messages
	fmt.Println(received.UUID)
	received.Ack()

	// Output:
	// 2026-03-05T00:00:00Z drop
	// offer
}

// This one is tried again every minute, whatever the subscriber's Backoff says.
func ExampleSetBackoff() {
	server, publisher, stop := startServer()
	defer stop()
	messages, stopSubscriber := subscribeOn(server, "orders", redisdelay.SubscriberConfig{
		Backoff: redisdelay.ExponentialBackoff(time.Hour, 24*time.Hour),
	})
	defer stopSubscriber()
	msg := message.NewMessage("uuid", nil)
	redisdelay.SetBackoff(msg, time.Minute, time.Minute)
	check(publisher.Publish("orders", msg))

	(<-messages).Nack()
	untilLeft(server, "orders", 1)
	nacked := server.Now()
	next, _ := server.AdvanceToNext()
	fmt.Println("again after", next.Sub(nacked))
	(<-messages).Ack()

	// Output: again after 1m0s
}

// The only delivery of the message is not used up while the partner is closed.
func ExamplePostponeOnError() {
	server, publisher, stop := startServer()
	defer stop()
	messages, stopSubscriber := subscribeOn(server, "orders", redisdelay.SubscriberConfig{MaxDeliveries: 1})
	defer stopSubscriber()
	check(publisher.Publish("orders", message.NewMessage("uuid", nil)))

	openFrom := server.Now().Add(90 * time.Minute)
	open := func() bool { return !server.Now().Before(openFrom) }
	handler := whenOpen(open, func(*message.Message) error { return nil })
	// As a router does with router.AddMiddleware(redisdelay.PostponeOnError).
	handle := redisdelay.PostponeOnError(func(msg *message.Message) ([]*message.Message, error) { return nil, handler(msg) })
	for sent := false; !sent; {
		received := <-messages
		delivery, _ := redisdelay.DeliveryFromContext(received.Context())
		_, err := handle(received)
		fmt.Println("delivery", delivery.Number, "again:", delivery.Redelivered, "error:", err)
		if sent = err == nil; sent {
			received.Ack()
			break
		}
		received.Nack()
		untilLeft(server, "orders", 1)
		server.AdvanceToNext()
	}

	// Output:
	// delivery 1 again: false error: postponed by 1h0m0s: the partner is closed
	// delivery 1 again: true error: postponed by 1h0m0s: the partner is closed
	// delivery 1 again: true error: <nil>
}

// The error of the handler is there to be read while the message waits for its retry, and with its
// dead letter.
func ExampleKeepError() {
	server, publisher, stop := startServer()
	defer stop()
	messages, stopSubscriber := subscribeOn(server, "orders", redisdelay.SubscriberConfig{})
	defer stopSubscriber()
	msg := message.NewMessage("uuid", nil)
	redisdelay.SetMaxDeliveries(msg, 1)
	check(publisher.Publish("orders", msg))

	// As a router does with router.AddMiddleware(redisdelay.KeepError).
	handler := redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("the bank does not answer")
	})
	received := <-messages
	if _, err := handler(received); err != nil {
		received.Nack()
	}
	untilLeft(server, "orders", 1)
	page, err := server.Admin().List(context.Background(), "orders", admin.Query{State: admin.Dead})
	check(err)
	fmt.Println(page.Messages[0].Places[0].Reason)

	// Output: nacked on the last of 1 deliveries: the bank does not answer
}

// At most two messages may wait. Nothing of a call that would be too much is published.
func ExamplePublisherConfig_maxWaiting() {
	server, _, stop := startServer()
	defer stop()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client(), MaxWaiting: 2}, nil)
	check(err)
	defer publisher.Close()
	order := func() *message.Message {
		msg := message.NewMessage(watermill.NewUUID(), nil)
		redisdelay.DelayFor(msg, time.Hour)
		return msg
	}
	check(publisher.Publish("orders", order()))
	err = publisher.Publish("orders", order(), order())
	fmt.Println("full:", errors.Is(err, redisdelay.ErrTopicFull), "waiting:", len(server.Scheduled("orders")))
	fmt.Println(publisher.Publish("orders", order()))

	// Output:
	// full: true waiting: 1
	// <nil>
}

// startServer starts a server whose clock stands still, on a day at noon, and a publisher.
// accept publishes a message of an HTTP request, whose headers are its metadata.
func accept(publisher message.Publisher, msg *message.Message) error {
	redisdelay.StripMetadata(msg)
	redisdelay.DelayFor(msg, time.Minute)
	return publisher.Publish("orders", msg)
}

// A header asks for delivery in a year, and has no effect.
func ExampleStripMetadata() {
	server, publisher, stop := startServer()
	defer stop()
	msg := message.NewMessage("uuid", []byte("order 123"))
	msg.Metadata.Set(redisdelay.DelayKey, "8760h")
	msg.Metadata.Set("customer", "ann")
	check(accept(publisher, msg))

	waiting := server.Scheduled("orders")[0]
	fmt.Println("due in", waiting.Places[0].At.Sub(server.Now()), "for", waiting.Metadata["customer"])

	// Output: due in 1m0s for ann
}

// Setters return no error. CheckMetadata tells what Publish would refuse, such as before a message
// goes into an outbox.
func ExampleCheckMetadata() {
	msg := message.NewMessage(watermill.NewUUID(), []byte("order 123"))
	redisdelay.DelayFor(msg, -time.Minute)
	redisdelay.SetMaxDeliveries(msg, 0)

	err := redisdelay.CheckMetadata(msg)
	fmt.Println("the delay:", errors.Is(err, redisdelay.ErrInvalidDelay))
	fmt.Println("other metadata:", errors.Is(err, redisdelay.ErrInvalidMetadata))

	// Output:
	// the delay: true
	// other metadata: true
}

func startServer() (*redisdelaytest.Server, *redisdelay.Publisher, func()) {
	server, err := redisdelaytest.New(redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	check(err)
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	return server, publisher, func() {
		check(publisher.Close())
		server.Close()
	}
}

func subscribeOn(server *redisdelaytest.Server, topic string, config redisdelay.SubscriberConfig) (<-chan *message.Message, func()) {
	config.Client = server.Client()
	subscriber, err := redisdelay.NewSubscriber(config, nil)
	check(err)
	messages, err := subscriber.Subscribe(context.Background(), topic)
	check(err)
	return messages, func() { check(subscriber.Close()) }
}

// untilLeft waits until nothing is ready or in hand any more, and so many are retrying or dead.
func untilLeft(server *redisdelaytest.Server, topic string, left int) {
	for {
		stats, err := server.Admin().Stats(context.Background(), topic)
		check(err)
		g := stats.Groups[0]
		if g.Ready+g.InHand == 0 && g.Retrying+g.Dead == left {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
