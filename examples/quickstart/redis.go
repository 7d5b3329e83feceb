package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// connect returns a client of the server at addr or, if addr is empty, of one inside this process.
func connect(ctx context.Context, addr string) (client *redis.Client, disconnect func(), err error) {
	stop := func() {}
	if addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, nil, fmt.Errorf("start an embedded Redis: %w", err)
		}
		addr, stop = embedded.Addr(), embedded.Close
		fmt.Println("Redis: embedded in this process. Set REDIS_ADDR=host:port for one of your own.")
	} else {
		fmt.Println("Redis:", addr)
	}
	client = redis.NewClient(&redis.Options{Addr: addr})
	disconnect = func() {
		_ = client.Close() // nothing is under way any more
		stop()
	}
	if err := client.Ping(ctx).Err(); err != nil {
		disconnect()
		return nil, nil, fmt.Errorf("reach Redis at %s: %w", addr, err)
	}
	return client, disconnect, nil
}

// removeTopic deletes what the run left in Redis. A program that goes on working with its topic needs
// nothing like it.
func removeTopic(client redis.UniversalClient, topic string, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := client.SRem(ctx, keyPrefix+":topics", topic).Err()
	keys := client.Scan(ctx, 0, keyPrefix+":{"+topic+"}:*", 1000).Iterator()
	for err == nil && keys.Next(ctx) {
		err = client.Del(ctx, keys.Val()).Err()
	}
	if err == nil {
		err = keys.Err()
	}
	if err != nil {
		logger.Warn("cannot remove what this run left in Redis", "topic", topic, "error", err)
	}
}

func closeLogged(c io.Closer, logger *slog.Logger) {
	if err := c.Close(); err != nil {
		logger.Error("cannot close", "what", fmt.Sprintf("%T", c), "error", err)
	}
}
