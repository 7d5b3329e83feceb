package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv("OUTBOX_CHILD") != "" {
		child()
	}
	redistest.Main(m)
}

// postgres returns the address of the server, or skips the test.
func postgres(t *testing.T) string {
	t.Helper()
	address := os.Getenv("POSTGRES_URL")
	if address == "" {
		t.Skip("POSTGRES_URL is not set: scripts/with-postgres.sh sets it")
	}
	return address
}

func TestCustomersWhoHaveNotPaidGetOneMail(t *testing.T) {
	postgres(t)
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Contains(t, out, "\nOrder 1 is not paid: a mail was sent.\n")
		require.Contains(t, out, "\nMails by order: map[1:1 3:1]\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	postgres(t)
	exampletest.EndsOnInterrupt(t, placed, func(t *testing.T, out string) {
		require.NotContains(t, out, "Mails by order")
	})
}

func TestItEndsOnARedisThatRefuses(t *testing.T) {
	postgres(t)
	exampletest.EndsOnAServerThatRefuses(t, ".")
}

func TestItSaysThatItNeedsPostgreSQL(t *testing.T) {
	t.Parallel()
	_, _, err := openDatabase(context.Background(), "")
	require.EqualError(t, err, "POSTGRES_URL is not set: begin the command with scripts/with-postgres.sh")
}

var placed = regexp.MustCompile(`(?m)^Order 3 is placed`)

// world is a schema of the database, and keys in Redis.
type world struct {
	*shop
	redis  redis.UniversalClient
	prefix string
	schema string
}

func open(ctx context.Context, schema, prefix, redisAddr string) (*world, error) {
	db, err := openSchema(ctx, os.Getenv("POSTGRES_URL"), schema)
	if err != nil {
		return nil, err
	}
	return &world{
		shop:   &shop{db: db, log: watermill.NopLogger{}},
		redis:  redis.NewClient(&redis.Options{Addr: redisAddr}),
		prefix: prefix,
		schema: schema,
	}, nil
}

// worlds runs a test with a schema of its own, and a Publisher.
func worlds(t *testing.T, test func(t *testing.T, w *world, publisher message.Publisher)) {
	t.Helper()
	postgres(t)
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		w, err := open(context.Background(), "outbox_"+strings.ToLower(watermill.NewULID()), s.Prefix, s.Client.(*redis.Client).Options().Addr)
		require.NoError(t, err)
		publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.redis, KeyPrefix: s.Prefix}, nil)
		require.NoError(t, err)
		defer func() {
			_, err := w.db.Exec(`DROP SCHEMA ` + w.schema + ` CASCADE`)
			require.NoError(t, err)
			require.NoError(t, w.db.Close())
			require.NoError(t, publisher.Close())
			require.NoError(t, w.redis.Close())
		}()
		test(t, w, publisher)
	})
}

// live has a customer place an order until it is placed, and runs the program until ctx ends.
func (w *world) live(ctx context.Context, remindIn time.Duration, sent func()) (*program, error) {
	p := &program{shop: w.shop, redis: w.redis, prefix: w.prefix, sent: func(int) { sent() }}
	if err := w.place(ctx, "1", remindIn); err != nil {
		return p, err
	}
	return p, p.run(ctx)
}

// count returns the number of rows of a table, or -1 if there is no such table.
func (w *world) count(table string) (n int) {
	if err := w.db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil {
		return -1
	}
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
