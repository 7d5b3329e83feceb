package redisdelay

import (
	"context"
	"sync"
	"time"
)

// A delivery is the context of its message: it has the values of Subscribe's context and the delivery, and ends with
// the delivery. Most handlers never look whether it has, so a context of which that can be seen is made for the
// first who does, and everything about it is that one's.

var _ context.Context = (*delivery)(nil)

// Deadline is context.Context's. There is none: leases are extended.
func (d *delivery) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done is context.Context's.
func (d *delivery) Done() <-chan struct{} { return d.ending.seen(d.of.values).Done() }

// Err is context.Context's.
func (d *delivery) Err() error {
	if ctx := d.ending.seenBefore(d.of.values); ctx != nil {
		return ctx.Err()
	}
	return nil
}

// Value is context.Context's. What the context package asks by keys of its own, so as to end with this one, and for the
// cause, the one that was made knows.
func (d *delivery) Value(key any) any {
	if key == (deliveryKey{}) {
		return d
	}
	if ctx := d.ending.seenBefore(d.of.values); ctx != nil {
		return ctx.Value(key)
	}
	return d.of.values.Value(key)
}

// String is what is printed of a context: of all that a delivery has, some may only be read under s.mu.
func (d *delivery) String() string { return "redisdelay.Delivery(" + d.ID + ")" }

// ending is the end of a delivery for those who have its context.
type ending struct {
	mu     sync.Mutex
	cause  error           // nil: it has not ended
	ctx    context.Context // nil: nobody has looked
	cancel context.CancelCauseFunc
}

// end ends the context. The first cause counts.
func (e *ending) end(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		return
	}
	e.cause = cause
	if e.cancel != nil {
		e.cancel(cause)
	}
}

// seen is a context with those values of which the end can be seen.
func (e *ending) seen(values context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.made(values)
}

// seenBefore is that too, or nil if there is no end yet, and nobody has looked for it.
func (e *ending) seenBefore(values context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil {
		return e.ctx
	}
	return e.made(values)
}

// made makes it, if it is not there. e.mu is held.
func (e *ending) made(values context.Context) context.Context {
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(values)
		if e.cause != nil {
			e.cancel(e.cause)
		}
	}
	return e.ctx
}
