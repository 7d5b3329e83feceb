package delayqueue

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// ErrClosed is returned by [Queue.Enqueue] and [Queue.Dequeue] once the queue
// is closed.
var ErrClosed = errors.New("delayqueue: queue is closed")

// Queue holds values until their due times and hands them out earliest first.
// Values with equal due times come out in the order in which they went in.
//
// Make one with [New]. Its methods may be called by any number of goroutines
// at once. It must not be copied.
type Queue[T any] struct {
	// slots holds one token per item, in the queue or about to be. A send to
	// it waits for room. It is nil in an unbounded queue.
	slots chan struct{}

	// timer ticks when the head is due. Every waiting Dequeue receives from
	// it, and the runtime gives a tick to one of them only. That one must look
	// at the head and set the timer again, whatever became of its context.
	//
	// So while there are items, one of these holds whenever mu is free: the
	// timer is set for the head, or its tick waits to be received, or a
	// Dequeue has received the tick and is about to take mu.
	timer *time.Timer

	done chan struct{} // closed by Close

	mu     sync.Mutex
	items  entryHeap[T]
	seq    uint64 // of the latest item
	closed bool
}

// New returns an empty queue that holds at most capacity items. A capacity of
// zero or less means no limit. Memory is taken as items arrive, not up front.
//
// Within a testing/synctest bubble, make the queue in the bubble that uses it.
func New[T any](capacity int) *Queue[T] {
	q := &Queue[T]{
		timer: time.NewTimer(math.MaxInt64),
		done:  make(chan struct{}),
	}
	q.timer.Stop()
	if capacity > 0 {
		q.slots = make(chan struct{}, capacity)
	}
	return q
}

// Enqueue adds value, to be handed out at due or as soon after as somebody
// asks. A due time in the past, or the zero time, is due at once.
//
// While the queue is full, Enqueue waits for room. Those who wait get it in the
// order in which they came.
//
// It returns nil if and only if the queue took the value. It returns ctx.Err()
// if ctx ended first, without trying if ctx had ended before the call, and
// [ErrClosed] if the queue is closed.
func (q *Queue[T]) Enqueue(ctx context.Context, value T, due time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if q.slots != nil {
		select {
		case q.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-q.done:
			return ErrClosed
		}
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	q.seq++
	q.items.push(entry[T]{due: due, seq: q.seq, value: value})
	if q.items[0].seq == q.seq {
		q.setTimer()
	}
	return nil
}

// Dequeue waits until the earliest item is due, then removes and returns it.
// If an item with an earlier due time arrives meanwhile, it waits for that one
// instead. An item goes to one caller only, but which of several waiting
// callers gets it is not specified.
//
// It returns ctx.Err() if ctx ended first, without taking anything if ctx had
// ended before the call, and [ErrClosed] if the queue is closed. With an error
// nothing was removed. If an item becomes due just as ctx ends, either may win.
func (q *Queue[T]) Dequeue(ctx context.Context) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	for {
		if value, ok := q.TryDequeue(); ok {
			return value, nil
		}
		select {
		case <-q.timer.C:
			// No look at ctx here: see the comment at timer.
		case <-ctx.Done():
			return zero, ctx.Err()
		case <-q.done:
			return zero, ErrClosed
		}
	}
}

// TryDequeue removes and returns the earliest item if it is due. Otherwise, and
// once the queue is closed, it returns false. It never waits.
func (q *Queue[T]) TryDequeue() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// After this call the timer is set for the head, whoever called and
	// whether or not an item was taken.
	defer q.setTimer()

	if len(q.items) == 0 || time.Until(q.items[0].due) > 0 {
		var zero T
		return zero, false
	}
	first := q.items.pop()
	if q.slots != nil {
		<-q.slots // never waits: the item had put a token there
	}
	return first.value, true
}

// Len returns the number of items in the queue, due or not.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}

// Close closes the queue. Every waiting and every later Enqueue and Dequeue
// returns [ErrClosed]. Items still in the queue are dropped: they cannot be
// taken out any more. Closing again does nothing.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	q.items = nil
	q.setTimer()
	close(q.done)
}

// setTimer makes the timer tick when the head is due, or not at all if there
// is none. A tick for an earlier head that nobody received is discarded. The
// caller holds mu.
func (q *Queue[T]) setTimer() {
	if len(q.items) == 0 {
		q.timer.Stop()
		return
	}
	q.timer.Reset(time.Until(q.items[0].due))
}
