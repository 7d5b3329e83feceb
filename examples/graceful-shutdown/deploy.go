package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// deploy lets one worker do part of the jobs, then another take over. When it returns, all
// processes have ended. It returns the tally even with an error.
func deploy(ctx context.Context, server *example.Redis) (*tally, error) {
	t := newTally()
	first, err := start(ctx, server, "worker 1", t)
	if err != nil {
		return t, err
	}
	if err := await(ctx, t, handOver, first); err != nil {
		return t, errors.Join(err, first.stop())
	}
	second, err := start(ctx, server, "worker 2", t)
	if err != nil {
		return t, errors.Join(err, first.stop())
	}
	ended := make(chan error, 1)
	go func() { ended <- first.stop() }()
	err = await(ctx, t, jobs, second)
	return t, errors.Join(err, <-ended, second.stop())
}

// await waits until done jobs are done. It returns an error if the worker ends earlier.
func await(ctx context.Context, t *tally, done int, w *worker) error {
	for t.jobs() < done {
		select {
		case <-t.more:
		case <-w.ended:
			if ctx.Err() == nil {
				return fmt.Errorf("%s ended too early", w.name)
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // which ends the worker too
			return fmt.Errorf("%d of %d jobs are done: %w", t.jobs(), jobs, ctx.Err())
		}
	}
	return nil
}
