// Command river has the settings of River's own benchmark (FetchCooldown 2 ms, FetchPollInterval
// 20 ms, 1,000 workers), and InsertManyFast for several jobs, as its documentation recommends. The
// interval of its scheduler is fixed: every 5 s it prepares the jobs that become due in the next
// 5 s. A stuck job is rescued after the lease instead of an hour, and tried again at once.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

func main() {
	driver.Main(driver.System{Setup: setup, Produce: produce, Consume: consume})
}

// job is what River stores of a message.
type job struct {
	Payload json.RawMessage `json:"payload"`
}

func (job) Kind() string { return "peers" }

func connect(ctx context.Context, o driver.Options, connections int) (*pgxpool.Pool, error) {
	return pgxpool.New(ctx, driver.PostgresURL(o, connections))
}

func setup(ctx context.Context, o driver.Options) error {
	pool, err := connect(ctx, o, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func produce(ctx context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	pool, err := connect(ctx, o, o.Producers)
	if err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	return func(ctx context.Context, _ int, batch []driver.Message) error {
		if len(batch) == 1 {
			_, err := client.Insert(ctx, job{batch[0].Payload}, &river.InsertOpts{ScheduledAt: batch[0].Due})
			return err
		}
		jobs := make([]river.InsertManyParams, len(batch))
		for i, m := range batch {
			jobs[i] = river.InsertManyParams{Args: job{m.Payload}, InsertOpts: &river.InsertOpts{ScheduledAt: m.Due}}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		return err
	}, err
}

// atOnce tries a job again without a delay.
type atOnce struct{}

func (atOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

func consume(ctx context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	pool, err := connect(ctx, o, 10)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, j *river.Job[job]) error {
		handle(j.Args.Payload)
		return nil
	}))
	var client *river.Client[pgx.Tx]
	client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:        2 * time.Millisecond,
		FetchPollInterval:    20 * time.Millisecond,
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		Workers:              workers,
		JobTimeout:           o.Lease / 2,
		RescueStuckJobsAfter: o.Lease,
		RetryPolicy:          atOnce{},
		Logger:               slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, err
	}
	return func() error { return client.Stop(ctx) }, client.Start(ctx)
}
