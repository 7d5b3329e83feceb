// Package delayqueue is an in-memory queue of items with due times. A
// scheduler can be built on it: enqueue each task with its time, and
// [Queue.Dequeue] waits until the earliest is due.
//
// # Guarantees
//
//   - No item comes out before its due time. The earliest comes first, and
//     items with equal due times come in the order in which they went in.
//   - An item whose Enqueue returned nil comes out exactly once, or is dropped
//     by Close. A context that ends at the same moment loses nothing.
//   - A new earlier head moves the one timer and wakes no goroutine. When the
//     head is due, one waiting Dequeue wakes. If its context ends at that
//     moment, it takes the item or leaves the wake-up to another Dequeue.
//   - The queue keeps no reference to a value that was taken out.
//
// The timers of the Go runtime decide how late an item comes: on an idle
// machine, typically up to a millisecond.
//
// Nothing is stored outside the process. There is one mutex, one timer and no
// goroutine, so a queue that is no longer used need not be closed.
//
// # Clocks
//
// A due time with a monotonic clock reading, such as time.Now().Add(d), is not
// affected when the wall clock is set. A due time without one, such as the
// result of [time.UnixMilli] or of decoding, is compared with the wall clock.
// When that is set, a waiting Dequeue may notice only at the end of its
// present wait. Use only one kind in a queue: after the wall clock was set,
// the order between the two kinds is undefined.
package delayqueue
