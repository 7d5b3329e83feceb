// Outbox writes an order and its reminder in one transaction of a PostgreSQL database. The reminder
// is a row of an outbox, by Watermill's Forwarder and watermill-sql. The Forwarder publishes it to
// Redis, where it waits until it is due. If a process dies at any moment, both are there or neither
// is, and each customer gets one mail.
//
//	scripts/with-postgres.sh go -C examples/outbox run .
//
// It works in a schema of its own in the database at POSTGRES_URL, and removes it. Redis runs
// inside this process. It can also use your Redis at REDIS_ADDR, where it deletes its keys.
//
// It exits with 0 if the right customers got a mail, with 1 if not, with 130 if it was interrupted.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

// run places orders, of which one is paid, and waits until the others have had their reminders.
func run(ctx context.Context, logger *slog.Logger) (err error) {
	defer func() { // the driver's error about a statement that was cancelled does not wrap that of ctx
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
	}()
	server, err := example.Connect(ctx, "outbox")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	db, remove, err := openDatabase(ctx, os.Getenv("POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer remove()
	log := watermill.NewSlogLogger(logger)
	running, done, why := example.Until(ctx, 15*time.Second)
	defer done()
	shop := &shop{db: db, log: log}
	p := &program{shop: shop, redis: server.Client, prefix: server.KeyPrefix, sent: func(n int) {
		if n == 2 {
			done()
		}
	}}
	ended := make(chan error, 1)
	go func() { ended <- p.run(running) }()

	for _, id := range []string{"1", "2", "3"} {
		if err := shop.place(ctx, id, 2*time.Second); err != nil {
			return err
		}
		fmt.Printf("Order %s is placed, with a reminder in 2 seconds.\n", id)
	}
	if err := shop.pay(ctx, "2"); err != nil {
		return err
	}
	fmt.Println("Order 2 is paid.")
	if err := <-ended; err != nil {
		return err
	}
	if err := why(); err != nil {
		return err
	}
	return summary(ctx, db)
}

// summary prints who got a mail, and returns an error unless it is right.
func summary(ctx context.Context, db *sql.DB) error {
	mails := map[string]int{}
	rows, err := db.QueryContext(ctx, `SELECT order_id, count(*) FROM mails GROUP BY order_id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return err
		}
		mails[id] = n
	}
	fmt.Printf("Mails by order: %v\n", mails)
	if len(mails) != 2 || mails["1"] != 1 || mails["3"] != 1 {
		return fmt.Errorf("not one mail for each of orders 1 and 3")
	}
	return rows.Err()
}
