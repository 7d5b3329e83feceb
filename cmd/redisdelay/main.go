// Redisdelay is the library's command-line tool. Its command relay publishes messages that wait in
// Redis to another message queue when they are due:
//
//	redisdelay relay --from unpaid-orders --to nats --nats nats://localhost:4222
//
// See docs/relay.md for its settings, which are flags or environment variables.
//
// It exits with 0 after a clean stop by SIGTERM or SIGINT, with 1 after a failure, and with 2 if
// its settings are invalid. A second signal ends it at once.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // then a second signal ends the program
	redis.SetLogger(redisLog{})
	os.Exit(run(ctx, os.Args[1:], system{
		environment: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, setLogger: slog.SetDefault,
	}))
}
