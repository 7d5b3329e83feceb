// Command asynq has one queue, which asynq serves fastest. Scheduled tasks are looked for every
// second instead of every five; asynq keeps whole seconds. Concurrency is 32. It has no call for
// several tasks, and its lease of 30 s is fixed.
package main

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

func main() {
	driver.Main(driver.System{Produce: produce, Consume: consume})
}

func produce(_ context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	client := asynq.NewClientFromRedisClient(redis.NewClient(&redis.Options{Addr: o.Addr, PoolSize: o.Producers}))
	return func(ctx context.Context, _ int, batch []driver.Message) error {
		for _, m := range batch {
			if _, err := client.EnqueueContext(ctx, asynq.NewTask("peers", m.Payload), asynq.ProcessAt(m.Due)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func consume(_ context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	client := redis.NewClient(&redis.Options{Addr: o.Addr, PoolSize: 64})
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency:              32,
		DelayedTaskCheckInterval: time.Second,
		// The default after a crash is minutes, by the number of attempts.
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
		LogLevel:       asynq.FatalLevel,
	})
	stop := func() error {
		server.Shutdown()
		return client.Close()
	}
	return stop, server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		handle(task.Payload())
		return nil
	}))
}
