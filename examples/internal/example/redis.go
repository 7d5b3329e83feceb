// Package example has the code that the examples share: connecting to Redis and ending the program.
package example

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Redis is the server that an example runs on.
type Redis struct {
	Client *redis.Client
	Addr   string

	// KeyPrefix is the start of this run's keys. It is unique, so that two runs on one server do
	// not mix. A real program has a fixed one.
	KeyPrefix string

	stop func()
}

// Connect connects to the server at REDIS_ADDR or, if that is not set, to one inside this process.
func Connect(ctx context.Context, name string) (*Redis, error) {
	r := &Redis{
		Addr:      os.Getenv("REDIS_ADDR"),
		KeyPrefix: name + "-" + watermill.NewShortUUID(),
		stop:      func() {},
	}
	if r.Addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("start an embedded Redis: %w", err)
		}
		r.Addr, r.stop = embedded.Addr(), embedded.Close
		fmt.Println("Redis: embedded in this process. Set REDIS_ADDR=host:port for one of your own.")
	} else {
		fmt.Printf("Redis: %s, keys %s:*\n", r.Addr, r.KeyPrefix)
	}
	r.Client = redis.NewClient(&redis.Options{Addr: r.Addr})
	if err := r.Client.Ping(ctx).Err(); err != nil {
		_ = r.Client.Close()
		r.stop()
		return nil, fmt.Errorf("reach Redis at %s: %w", r.Addr, err)
	}
	return r, nil
}

// Close deletes the keys of this run, and closes the connection.
func (r *Redis) Close(logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.deleteKeys(ctx); err != nil {
		logger.Warn("cannot delete what this run left in Redis", "keys", r.KeyPrefix+":*", "error", err)
	}
	_ = r.Client.Close() // errors do not matter any more
	r.stop()
}

func (r *Redis) deleteKeys(ctx context.Context) error {
	keys := r.Client.Scan(ctx, 0, r.KeyPrefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := r.Client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// CloseLogged closes a publisher or subscriber, and logs it if that fails.
func CloseLogged(c io.Closer, logger *slog.Logger) {
	if err := c.Close(); err != nil {
		logger.Error("cannot close", "what", fmt.Sprintf("%T", c), "error", err)
	}
}
