package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// program forwards the outbox to Redis, and handles the reminders that are due.
type program struct {
	shop   *shop
	redis  redis.UniversalClient
	prefix string
	router *message.Router // of run
	sent   func(n int)     // called after each mail, with their number in this process
	mails  atomic.Int64    // in this process
	calls  atomic.Int64    // of the handler
}

// run runs the forwarder and the handler on one router, until ctx ends.
func (p *program) run(ctx context.Context) error {
	router, err := message.NewRouter(message.RouterConfig{}, p.shop.log)
	if err != nil {
		return err
	}
	p.router = router
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: p.redis, KeyPrefix: p.prefix}, p.shop.log)
	if err != nil {
		return err
	}
	defer publisher.Close()
	rows, err := subscribeRows(p.shop.db, p.shop.log)
	if err != nil {
		return err
	}
	defer rows.Close()
	_, err = forwarder.NewForwarder(rows, &stepping{publisher, p.shop}, p.shop.log, forwarder.Config{ForwarderTopic: outbox, Router: router})
	if err != nil {
		return err
	}
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:        p.redis,
		KeyPrefix:     p.prefix,
		LeaseDuration: 2 * time.Second, // how long the message of a process that died waits
	}, p.shop.log)
	if err != nil {
		return err
	}
	defer subscriber.Close()
	router.AddConsumerHandler("remind", reminders, subscriber, p.remind)
	return router.Run(ctx)
}

// subscribeRows returns a subscriber of a table of watermill-sql. It takes a row when it is there,
// whether it has a delay or not, and deletes it when its message is acked.
func subscribeRows(db *sql.DB, log watermill.LoggerAdapter) (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), rowsConfig(), log)
}

// rowsConfig returns the configuration of subscribeRows. If Redis is away for longer than
// AckDeadline, or the Subscriber is closed, watermill-sql v4.1.2 deletes all rows of the batch of
// which one was acked. So a batch has one row.
func rowsConfig() wsql.SubscriberConfig {
	return wsql.SubscriberConfig{
		SchemaAdapter:  wsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1},
		OffsetsAdapter: wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		PollInterval:   100 * time.Millisecond, // how much later a short delay may begin
	}
}

// createOutbox makes the table of the outbox.
func createOutbox(ctx context.Context, db *sql.DB) error {
	queries, err := wsql.PostgreSQLQueueSchema{}.SchemaInitializingQueries(wsql.SchemaInitializingQueriesParams{Topic: outbox})
	for _, q := range queries {
		if err == nil {
			_, err = db.ExecContext(ctx, q.Query, q.Args...)
		}
	}
	return err
}

// remind handles a reminder that is due.
func (p *program) remind(msg *message.Message) error {
	p.calls.Add(1)
	p.shop.step("reminder delivered")
	id := string(msg.Payload)
	sent, err := p.shop.remind(msg.Context(), id)
	if err != nil {
		return err
	}
	p.shop.step("mail committed")
	if sent {
		fmt.Printf("Order %s is not paid: a mail was sent.\n", id)
		p.sent(int(p.mails.Add(1)))
	}
	return nil
}

// stepping is a Publisher that calls step before and after it publishes.
type stepping struct {
	message.Publisher
	shop *shop
}

func (s *stepping) Publish(topic string, messages ...*message.Message) error {
	s.shop.step("row read")
	if err := s.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	s.shop.step("reminder in Redis")
	return nil
}
