package main

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// moveWaiting moves the messages of a topic of watermill-sql's delayed Publisher to Redis, also
// those that wait. It returns how many, when the table has none. Each keeps its due time, UUID,
// payload and metadata. to returns the topic in Redis for a message.
//
// It may be ended and begun again at any time: the delay ID, of the row, keeps a message that is in
// Redis already from coming twice. UUIDs need not differ, and may be empty. Before it begins,
// programs publish to Redis, and the delayed Subscriber has ended.
func moveWaiting(ctx context.Context, db *sql.DB, from string, publisher message.Publisher, to func(*message.Message) string, log watermill.LoggerAdapter) (moved int, err error) {
	config := rowsConfig()
	config.SchemaAdapter = numbered{wsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1}}
	rows, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), config, log)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	messages, err := rows.Subscribe(ctx, from)
	if err != nil {
		return 0, err
	}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for left := 1; left > 0; {
		select {
		case <-ctx.Done():
			return moved, ctx.Err()
		case msg, open := <-messages:
			if !open {
				return moved, ctx.Err()
			}
			row := msg.Metadata.Get(rowKey)
			delete(msg.Metadata, rowKey)
			redisdelay.SetDelayID(msg, from+" "+row, redisdelay.DelayIDKeep)
			redisdelay.SetDelayIDWindow(msg, 24*time.Hour)
			if err := publisher.Publish(to(msg), msg); err != nil {
				msg.Nack() // the row stays
				return moved, err
			}
			msg.Ack()
			moved++
		case <-look.C:
			table := pq.QuoteIdentifier("watermill_" + from)
			if err := db.QueryRowContext(ctx, `SELECT count(*) FROM `+table+` WHERE NOT acked`).Scan(&left); err != nil {
				return moved, err
			}
		}
	}
	return moved, nil
}

// rowKey is the metadata key for the number of the row.
const rowKey = "row"

// numbered is a schema that tells the number of each row.
type numbered struct{ wsql.PostgreSQLQueueSchema }

func (n numbered) UnmarshalMessage(params wsql.UnmarshalMessageParams) (wsql.Row, error) {
	row, err := n.PostgreSQLQueueSchema.UnmarshalMessage(params)
	if err == nil {
		row.Msg.Metadata.Set(rowKey, strconv.FormatInt(row.Offset, 10))
	}
	return row, err
}
