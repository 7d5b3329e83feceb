package redistest

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Hook is a hook of a client as one function. It gets the calls that the client is about to send,
// which are one or those of a pipeline, and sends them with next. The calls fail with the error
// that it returns.
type Hook func(ctx context.Context, calls []redis.Cmder, next func() error) error

// DialHook does nothing.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls h with a single call.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, call redis.Cmder) error {
		return h.run(ctx, []redis.Cmder{call}, func() error { return next(ctx, call) })
	}
}

// ProcessPipelineHook calls h with the calls of a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, calls []redis.Cmder) error {
		return h.run(ctx, calls, func() error { return next(ctx, calls) })
	}
}

// run calls h, and has all calls fail with an error that is not the server's answer to one of them.
func (h Hook) run(ctx context.Context, calls []redis.Cmder, next func() error) error {
	var answer error
	err := h(ctx, calls, func() error { answer = next(); return answer })
	if err != nil && !errors.Is(err, answer) {
		for _, call := range calls {
			call.SetErr(err)
		}
	}
	return err
}

// BeforeEach is a hook that calls do with each call before it is sent. The call fails with the
// error of do, unsent.
func BeforeEach(do func(call redis.Cmder) error) Hook {
	return func(_ context.Context, calls []redis.Cmder, next func() error) error {
		for _, call := range calls {
			if err := do(call); err != nil {
				return err
			}
		}
		return next()
	}
}

// AfterEach is a hook that calls do with each call that has succeeded.
func AfterEach(do func(call redis.Cmder)) Hook {
	return func(_ context.Context, calls []redis.Cmder, next func() error) error {
		err := next()
		for _, call := range calls {
			if call.Err() == nil {
				do(call)
			}
		}
		return err
	}
}
