package publish

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Batch is the messages of one Publish call. The caller fills Messages and Bytes before it gives
// the batch to the engine, and frees it after the call.
type Batch struct {
	Messages []queue.Message
	Bytes    int // of all bodies
	// Bounded tells that the caller does not wait longer than its context, also if the call is
	// under way. Then the bodies must not have memory of the caller.
	Bounded bool

	prepared time.Time // by Now; zero until it is called

	ctx  context.Context // of the caller; its end takes a waiting batch back
	turn turn            // the joining's
	err  error           // what the call came to, once done has a value
	done chan struct{}   // has one value when the caller may read err
	gone bool            // the caller has left it to a call under way

	one    [1]queue.Message // memory for the message of most calls
	bodies []byte           // memory for bodies; its length is what Take has given away
}

// Now returns the time at which the batch was prepared: the same for all its messages.
func (b *Batch) Now() time.Time {
	if b.prepared.IsZero() {
		b.prepared = time.Now()
	}
	return b.prepared
}

// mostKept is how many bytes for bodies a batch keeps at most for the next call.
const mostKept = 16 << 10

// Take returns memory for a body of that size, which is the caller's until it frees the batch. A
// large body gets memory of its own, which is not kept.
func (b *Batch) Take(size int) []byte {
	if size > mostKept/4 {
		return make([]byte, 0, size)
	}
	if size > cap(b.bodies)-len(b.bodies) { // bodies that were taken stay where they are
		b.bodies = make([]byte, 0, max(size, min(2*cap(b.bodies), mostKept)))
	}
	from := len(b.bodies)
	b.bodies = b.bodies[:from+size]
	return b.bodies[from : from : from+size]
}

// refusedAlone returns the error of a batch that would be refused in any call, or nil. first is the
// index of its first message in the call that was refused.
func (b *Batch) refusedAlone(first int, refusal *queue.Refusal) error {
	if i, is := b.among(refusal.Taken, first); is {
		return queue.IsTaken(&b.Messages[i])
	}
	if i, is := b.among(refusal.Reserved, first); is {
		return queue.IsReserved(&b.Messages[i])
	}
	if refusal.Full && len(b.Messages) > refusal.Room && b.needsRoom() {
		return refusal
	}
	return nil
}

// needsRoom tells whether each message of the batch needs room in a topic.
func (b *Batch) needsRoom() bool {
	needsNone := func(m queue.Message) bool { return m.Options.DelayID != "" && m.Options.Mode != queue.Reject }
	return !slices.ContainsFunc(b.Messages, needsNone)
}

// parts returns the number of messages of each batch that is refused if a topic is full: of one
// alone, or of those that any call would refuse.
func parts(together []*Batch) (sizes []int) {
	for _, b := range together {
		if len(together) == 1 || b.needsRoom() {
			sizes = append(sizes, len(b.Messages))
		}
	}
	return sizes
}

// among finds the first of the batch's messages whose index in the call is one of indexes, which
// ascend. first is the index of the batch's first message in the call.
func (b *Batch) among(indexes []int, first int) (i int, is bool) {
	next, _ := slices.BinarySearch(indexes, first)
	if next == len(indexes) || indexes[next] >= first+len(b.Messages) {
		return 0, false
	}
	return indexes[next] - first, true
}

// batches keeps batches for the next calls, so that most calls need no memory of their own.
type batches struct{ pool sync.Pool }

// get returns an empty batch for so many messages.
func (p *batches) get(messages int) *Batch {
	b, _ := p.pool.Get().(*Batch)
	if b == nil {
		b = &Batch{done: make(chan struct{}, 1)}
	}
	if messages == 1 {
		b.Messages = b.one[:]
	} else {
		b.Messages = make([]queue.Message, messages)
	}
	return b
}

// put takes a batch back that nobody else has any more.
func (p *batches) put(b *Batch) {
	*b = Batch{done: b.done, bodies: b.bodies[:0]}
	p.pool.Put(b)
}
