package queue

import (
	"context"
	"sync/atomic"
	"time"
)

// OperationMemory is how long Redis remembers the result of an operation, so that a repeat after a
// lost reply gets the same. Clients repeat within seconds, unless the process stands still.
const OperationMemory = 2 * time.Minute

// remembered is the context of an operation whose result Redis remembers. It ends before Redis
// forgets the result, so that the client stops to repeat. A later repeat would find the work done
// and take it for the work of another process.
//
// In a Go process whose machine sleeps, timers and deadlines sleep too. So Done compares the time
// of day.
type remembered struct {
	context.Context
	end   context.CancelFunc
	until time.Time // by the time of day
	late  atomic.Bool
}

// WhileRemembered returns a context for one operation. The caller calls end after it.
func WhileRemembered(ctx context.Context) (limited context.Context, end context.CancelFunc) {
	const limit = OperationMemory / 2
	ctx, end = context.WithTimeout(ctx, limit)
	return &remembered{Context: ctx, end: end, until: time.Now().Round(0).Add(limit)}, end
}

// Done is called by the client before each attempt.
func (r *remembered) Done() <-chan struct{} {
	if r.Context.Err() == nil && time.Now().Round(0).After(r.until) {
		r.late.Store(true)
		r.end()
	}
	return r.Context.Done()
}

func (r *remembered) Err() error {
	err := r.Context.Err()
	if err != nil && r.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}
