package queue_test

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// recorder keeps the script calls that go through a client.
type recorder struct {
	mu    sync.Mutex
	calls [][]any
}

// record has every script call of the client recorded.
func (w *world) record() *recorder {
	r := &recorder{}
	w.Client.AddHook(r)
	return r
}

// take returns the calls since the last time, but for those that were sent again in full.
func (r *recorder) take() [][]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *recorder) note(cmd redis.Cmder) {
	if cmd.Name() == "evalsha" {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls = append(r.calls, slices.Clone(cmd.Args()))
	}
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.note(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.note(cmd)
		}
		return next(ctx, cmds)
	}
}

// keysOf are the keys that a recorded call declares.
func keysOf(call []any) []string {
	keys := make([]string, call[2].(int))
	for i := range keys {
		keys[i] = call[3+i].(string)
	}
	return keys
}
