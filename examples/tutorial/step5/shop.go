package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

type shop struct {
	client      redis.UniversalClient
	logger      watermill.LoggerAdapter
	publisher   *redisdelay.Publisher
	subscribers []*redisdelay.Subscriber
}

func newShop(client redis.UniversalClient, logger watermill.LoggerAdapter) (*shop, error) {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, logger)
	return &shop{client: client, logger: logger, publisher: publisher}, err
}

// place publishes the order's timeout, and then stores the order. After an error, call it again.
func (s *shop) place(ctx context.Context, id string, timeToPay time.Duration) error {
	timeout := message.NewMessage(watermill.NewUUID(), []byte(id))
	redisdelay.DelayFor(timeout, timeToPay)
	redisdelay.SetDelayID(timeout, id, redisdelay.DelayIDKeep)
	if err := s.publisher.Publish("timeouts", timeout); err != nil {
		return err
	}
	status, err := s.set(ctx, id, "unpaid")
	if err == nil {
		fmt.Println(id, "is", status)
	}
	return err
}

// onTimeout handles the end of an order's time to pay.
func (s *shop) onTimeout(msg *message.Message) error {
	id := string(msg.Payload)
	status, err := s.end(msg.Context(), id, "cancelled")
	if err == nil {
		fmt.Println("time is over:", id, "is", status)
	}
	return err
}

// serve handles messages until ctx ends.
func (s *shop) serve(ctx context.Context) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 22 * time.Second}, s.logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(redisdelay.KeepError)
	router.AddConsumerHandler("timeouts", "timeouts", s.subscriber("timeouts", "shop"), s.onTimeout)
	router.AddConsumerHandler("payments", "payments", s.subscriber("payments", "shop"), s.onPayment)
	router.AddConsumerHandler("mail", "ended", s.subscriber("ended", "mail"), onEnded("mail"))
	router.AddConsumerHandler("books", "ended", s.subscriber("ended", "books"), onEnded("books"))
	err = router.Run(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil // ctx ended while the router started
	}
	for _, subscriber := range s.subscribers {
		err = errors.Join(err, subscriber.Close()) // now Redis has every ack and nack
	}
	return err
}

// subscriber returns a Subscriber in a consumer group, and creates the group. The first group of a
// topic gets all that waits there. A later group gets what becomes due from then on.
func (s *shop) subscriber(topic, group string) message.Subscriber {
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        s.client,
		ConsumerGroup: group,
		CloseTimeout:  20 * time.Second,
		Backoff:       redisdelay.ExponentialBackoff(500*time.Millisecond, 10*time.Minute),
	}, s.logger)
	check(err)
	check(subscriber.SubscribeInitialize(topic))
	s.subscribers = append(s.subscribers, subscriber)
	return subscriber
}

// set gives an order a status, and returns the status that the order has then. A new order can
// become unpaid or cancelled, and an unpaid one paid or cancelled. Otherwise set changes nothing.
// A Redis hash stands for the shop's database.
func (s *shop) set(ctx context.Context, id, status string) (string, error) {
	return setScript.Run(ctx, s.client, []string{"shop:orders"}, id, status).Text()
}

var setScript = redis.NewScript(`
	local old = redis.call('HGET', KEYS[1], ARGV[1]) or 'new'
	if (old == 'new' and ARGV[2] ~= 'paid') or (old == 'unpaid' and ARGV[2] ~= 'unpaid') then
		redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
		return ARGV[2]
	end
	return old`)
