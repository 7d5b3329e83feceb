// Command watermillsql is the delayed Publisher and Subscriber of watermill-sql. Messages are
// deleted on ack. The Subscriber looks for due ones every 100 ms instead of every second. There is
// one, because each locks the rows that the others would read. The rest are defaults. The due time
// is set by hand, because delay.Message cuts it to whole seconds.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

const topic = "peers"

func main() {
	driver.Main(driver.System{Setup: setup, Produce: produce, Consume: consume})
}

func connect(ctx context.Context, o driver.Options, connections int) (sql.Beginner, error) {
	pool, err := pgxpool.New(ctx, driver.PostgresURL(o, connections))
	return sql.BeginnerFromPgx(pool), err
}

func newSubscriber(ctx context.Context, o driver.Options) (message.Subscriber, error) {
	db, err := connect(ctx, o, 4)
	if err != nil {
		return nil, err
	}
	return sql.NewDelayedPostgreSQLSubscriber(db, sql.DelayedPostgreSQLSubscriberConfig{
		DeleteOnAck: true,
		OverrideSubscriberConfig: func(config *sql.SubscriberConfig) error {
			config.PollInterval = 100 * time.Millisecond
			return nil
		},
	})
}

func setup(ctx context.Context, o driver.Options) error {
	subscriber, err := newSubscriber(ctx, o)
	if err != nil {
		return err
	}
	initializer, ok := subscriber.(message.SubscribeInitializer)
	if !ok {
		return errors.New("the subscriber of watermill-sql does not initialize a topic")
	}
	return initializer.SubscribeInitialize(topic)
}

func produce(ctx context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	db, err := connect(ctx, o, o.Producers)
	if err != nil {
		return nil, err
	}
	publisher, err := sql.NewDelayedPostgreSQLPublisher(db, sql.DelayedPostgreSQLPublisherConfig{})
	return func(_ context.Context, _ int, batch []driver.Message) error {
		messages := make([]*message.Message, len(batch))
		for i, m := range batch {
			messages[i] = message.NewMessage(watermill.NewUUID(), m.Payload)
			delay.Message(messages[i], delay.Until(m.Due))
			messages[i].Metadata.Set(delay.DelayedUntilKey, m.Due.UTC().Format(time.RFC3339Nano))
		}
		return publisher.Publish(topic, messages...)
	}, err
}

func consume(ctx context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	subscriber, err := newSubscriber(ctx, o)
	if err != nil {
		return nil, err
	}
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	go func() {
		for msg := range messages {
			handle(msg.Payload)
			msg.Ack()
		}
	}()
	return subscriber.Close, nil
}
