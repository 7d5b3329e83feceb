package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

const (
	outbox    = "outbox"    // topic of watermill-sql, and so a table, of messages on their way to Redis
	reminders = "reminders" // topic in Redis
)

// shop has the orders.
type shop struct {
	db  *sql.DB
	log watermill.LoggerAdapter
	at  func(step string) // called between steps, unless nil: tests end the process there
}

// place writes an order and its reminder, both or neither. A customer who gets no answer places the
// order again. It is there once, and has one reminder.
func (s *shop) place(ctx context.Context, id string, remindIn time.Duration) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	written, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
	if err != nil {
		return err
	}
	if n, err := written.RowsAffected(); err != nil || n == 0 {
		return err // it was placed before, with its reminder
	}
	s.step("order written")
	if err := s.remindLater(tx, id, time.Now().Add(remindIn)); err != nil {
		return err
	}
	s.step("reminder written")
	if err := tx.Commit(); err != nil {
		return err
	}
	s.step("order committed")
	return nil
}

// remindLater writes a reminder of an order into the outbox, in the transaction of the order. Its
// delay ID has the ID of the order. So the Forwarder may publish it twice, and it comes once.
func (s *shop) remindLater(tx *sql.Tx, id string, at time.Time) error {
	rows, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: wsql.PostgreSQLQueueSchema{}}, s.log)
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewUUID(), []byte(id))
	redisdelay.DelayUntil(msg, at) // DelayFor would begin when the Forwarder publishes
	redisdelay.SetDelayID(msg, "order "+id, redisdelay.DelayIDKeep)
	redisdelay.SetDelayIDWindow(msg, 24*time.Hour) // the Forwarder may come back after the delivery
	if err := redisdelay.CheckMetadata(msg); err != nil {
		return err // Publish would refuse it, after the transaction
	}
	return forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: outbox}).Publish(reminders, msg)
}

// pay notes that an order is paid, so that its reminder has no effect any more.
func (s *shop) pay(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE orders SET paid = true WHERE id = $1`, id)
	return err
}

// remind mails the customer of an order that is not paid, once. A message may come twice, so the
// row of the order decides.
func (s *shop) remind(ctx context.Context, id string) (sent bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	due, err := tx.ExecContext(ctx, `UPDATE orders SET reminded = true WHERE id = $1 AND NOT paid AND NOT reminded`, id)
	if err != nil {
		return false, err
	}
	if n, err := due.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO mails (order_id) VALUES ($1)`, id); err != nil {
		return false, err
	}
	s.step("mail written")
	return true, tx.Commit()
}

func (s *shop) step(name string) {
	if s.at != nil {
		s.at(name)
	}
}
