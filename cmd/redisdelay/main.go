// Redisdelay is the library's tool. Its command relay publishes messages that wait in Redis to another message queue
// when they are due, without a program of one's own:
//
//	redisdelay relay --from unpaid-orders --to nats --nats nats://localhost:4222
//
// See docs/relay.md for its settings, which are flags or environment variables.
//
// It exits with 0 when it was told to end (SIGTERM, SIGINT) and has ended cleanly, with 1 when something failed, with 2
// when it cannot run as it is told to. A second signal ends it at once.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal does what signals do
	redis.SetLogger(redisLog{})
	os.Exit(run(ctx, os.Args[1:], system{environment: os.Environ(), stdout: os.Stdout, stderr: os.Stderr}))
}
