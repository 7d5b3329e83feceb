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

// Queue holds values until their due times, and returns the earliest first.
// Values with equal due times come out in the order in which they went in.
//
// Create one with [New]. Its methods are safe for concurrent use. It must not
// be copied.
type Queue[T any] struct {
	// slots holds one token per item in the queue or about to enter it. A send
	// waits for room. It is nil in an unbounded queue.
	slots chan struct{}

	// timer ticks when the head is due. Every waiting Dequeue receives from
	// it, and only one of them gets the tick. It must then check the head and
	// set the timer again, even if its context has ended.
	//
	// So while there are items, one of these is true whenever mu is free:
	//   - The timer is set for the head.
	//   - Its tick has not been received yet.
	//   - A Dequeue has received the tick and is about to lock mu.
	timer *time.Timer

	done chan struct{} // closed by Close

	mu     sync.Mutex
	items  entryHeap[T]
	seq    uint64 // sequence number of the latest item
	closed bool
}

// New returns an empty queue that holds at most capacity items. A capacity of
// zero or less means no limit. Memory is allocated as items arrive.
//
// In a test with testing/synctest, create the queue in the bubble that uses it.
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

// Enqueue adds a value, which can be dequeued from due on. A due time in the
// past, or the zero time, is due at once.
//
// While the queue is full, Enqueue waits for room. Waiting calls get room in
// the order in which they came.
//
// It returns nil if and only if the queue has the value. It returns ctx.Err()
// if ctx ends first, or ended before the call, and [ErrClosed] if the queue is
// closed.
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
// instead. Each item goes to one caller. If several wait, it is unspecified
// which one gets it.
//
// It returns ctx.Err() if ctx ends first, or ended before the call, and
// [ErrClosed] if the queue is closed. After an error nothing was removed. If an
// item becomes due as ctx ends, the result may be the item or the error.
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
			// ctx is not checked here: see the comment at timer.
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
	// The timer must be set for the head even if no item was taken.
	defer q.setTimer()

	if len(q.items) == 0 || time.Until(q.items[0].due) > 0 {
		var zero T
		return zero, false
	}
	first := q.items.pop()
	if q.slots != nil {
		<-q.slots // never waits, because each item has a token there
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
// returns [ErrClosed]. Items still in the queue are dropped. Closing again does
// nothing.
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

// setTimer makes the timer tick when the head is due, or stops it if there is
// none. It discards an earlier tick that was not received. The caller holds mu.
func (q *Queue[T]) setTimer() {
	if len(q.items) == 0 {
		q.timer.Stop()
		return
	}
	q.timer.Reset(time.Until(q.items[0].due))
}
