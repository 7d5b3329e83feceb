package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hibiken/asynq"
)

const asynqName = "asynq"

// asynq cuts due times to whole seconds.
var asynqSystem = system{name: asynqName, open: openAsynq, mayBeEarly: true}

// openAsynq gives a message's UUID to its task as ID, and its metadata as headers. There is one
// queue, as asynq serves that fastest. Scheduled tasks are looked for every second instead of every
// five; more often makes no sense, since asynq keeps whole seconds. inFlight is its Concurrency.
// Its other intervals are left, of which the one for an empty queue, a second, shows where it
// starts with nothing to do.
func openAsynq(e *env, o options) (*queue, error) {
	name := e.topic()
	redisClient := e.newClient()
	client := asynq.NewClientFromRedisClient(redisClient)
	server := asynq.NewServerFromRedisClient(redisClient, asynq.Config{
		Concurrency:              o.inFlight,
		Queues:                   map[string]int{name: 1},
		DelayedTaskCheckInterval: time.Second,
		Logger:                   silent{},
		LogLevel:                 asynq.FatalLevel,
	})

	return &queue{
		publish: func(messages []*message.Message, due []time.Time) error {
			for i, msg := range messages {
				task := asynq.NewTaskWithHeaders("benchmark", msg.Payload, msg.Metadata)
				options := []asynq.Option{asynq.TaskID(msg.UUID), asynq.Queue(name)}
				if due != nil {
					options = append(options, asynq.ProcessAt(due[i]))
				}
				if _, err := client.Enqueue(task, options...); err != nil {
					return err
				}
			}
			return nil
		},
		consume: func(handle func(payload []byte)) error {
			return server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
				handle(task.Payload())
				return nil
			}))
		},
		stored: func() (int64, error) {
			waiting, err := redisClient.LLen(ctx, "asynq:{"+name+"}:pending").Result()
			delayed, delayedErr := redisClient.ZCard(ctx, "asynq:{"+name+"}:scheduled").Result()
			return waiting + delayed, errors.Join(err, delayedErr)
		},
		unsettled: func() (int64, error) {
			return redisClient.LLen(ctx, "asynq:{"+name+"}:active").Result()
		},
		close: func() error {
			server.Shutdown()
			return redisClient.Close()
		},
	}, nil
}

// silent logs nothing.
type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}
