package consume

import (
	"cmp"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Message is a message that a claim brought: first in the buffer, then in hand.
type Message struct {
	queue.Leased
	sequence uint64 // its place in the order of claiming, from 1
	*lease
}

// lease is shared by all messages of a claim: they are extended together.
type lease struct {
	claimed  time.Time // when the claim was answered
	deadline time.Time // the lease holds at least until then
}

// InHand is a message that the consumer is offered or has.
type InHand struct {
	Message
	taken    time.Time // from the buffer
	handed   time.Time // to the consumer; zero: it is on offer
	place    int       // in Held.inHand
	delivery *Delivery // the shell's view of it; the machine never looks into it
}

// number counts the deliveries, from 1.
func (h *InHand) number() int { return h.Deliveries + 1 }

// dies reports whether the message gets no further delivery after a failure.
func (h *InHand) dies(f queue.Failure) bool {
	return f.Dead || f.Limit > 0 && h.number() >= f.Limit
}

// Held is every message whose lease the subscription has. It alone changes deadlines and sequence numbers.
type Held struct {
	buffer   buffer    // claimed, not taken, in order
	inHand   []*InHand // taken, not ended, in no order
	sequence uint64    // of the message that was claimed last
}

// shrink lets go of the buffer's memory, if it is empty: nothing is ready, so no more comes soon.
func (h *Held) shrink() {
	if h.buffer.len() == 0 && cap(h.buffer.array) > manyBrought {
		h.buffer = buffer{}
	}
}

func (h *Held) len() int { return len(h.inHand) + h.buffer.len() }

// number gives the messages of a claim their places in the order, and their lease.
func (h *Held) number(messages []Message, l *lease) {
	for i := range messages {
		h.sequence++
		messages[i].sequence, messages[i].lease = h.sequence, l
	}
}

// take moves the first message of the buffer into in, which is in hand from now on.
func (h *Held) take(now time.Time, in *InHand) {
	in.Message, in.taken, in.place = h.buffer.pop(), now, len(h.inHand)
	h.inHand = append(h.inHand, in)
}

func (h *Held) has(in *InHand) bool {
	return in.place < len(h.inHand) && h.inHand[in.place] == in
}

// remove ends what the consumer has of a message. It returns false if that has ended before.
func (h *Held) remove(in *InHand) bool {
	if !h.has(in) {
		return false
	}
	last := len(h.inHand) - 1
	moved := h.inHand[last]
	h.inHand[in.place], moved.place = moved, in.place
	h.inHand[last] = nil
	h.inHand = h.inHand[:last]
	return true
}

// each calls f for every message held, in no order.
func (h *Held) each(f func(*Message)) {
	for _, in := range h.inHand {
		f(&in.Message)
	}
	for i := range h.buffer.all() {
		f(&h.buffer.all()[i])
	}
}

// inOrder returns what is in hand, in the order of claiming. All of it comes before the buffer.
func (h *Held) inOrder() []*InHand {
	sorted := slices.Clone(h.inHand)
	slices.SortFunc(sorted, func(a, b *InHand) int { return cmp.Compare(a.sequence, b.sequence) })
	return sorted
}

// leases returns every lease, in the order of claiming. Those of the buffer are copies, since messages may be taken from it
// while Redis is told.
func (h *Held) leases() []*queue.Leased {
	var all []*queue.Leased
	for _, in := range h.inOrder() {
		all = append(all, &in.Leased)
	}
	for _, m := range h.buffer.all() {
		all = append(all, &queue.Leased{ID: m.ID, Token: m.Token})
	}
	return all
}

// extend gives a new deadline to every message up to the one with sequence number last.
func (h *Held) extend(last uint64, deadline time.Time) {
	h.each(func(m *Message) {
		if m.sequence <= last {
			m.deadline = deadline
		}
	})
}

// firstDeadline is the earliest deadline, or no if that is earlier.
func (h *Held) firstDeadline(no time.Time) time.Time {
	h.each(func(m *Message) { no = earlier(no, m.deadline) })
	return no
}

// offers reports whether a message was taken that the consumer does not have yet.
func (h *Held) offers() bool {
	return slices.ContainsFunc(h.inHand, func(in *InHand) bool { return in.handed.IsZero() })
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// buffer is what was claimed and not taken, in order. What is taken leaves room for what comes, so that a subscription
// under load needs no other memory.
type buffer struct {
	array []Message
	taken int // of array, from its beginning; they are empty
}

func (b *buffer) len() int { return len(b.array) - b.taken }

// all is valid until the next change.
func (b *buffer) all() []Message { return b.array[b.taken:] }

func (b *buffer) first() *Message { return &b.array[b.taken] }

func (b *buffer) pop() Message {
	m := b.array[b.taken]
	b.array[b.taken] = Message{} // or its body would stay in memory
	b.taken++
	return m
}

// unpop puts back what was popped last.
func (b *buffer) unpop(m Message) {
	b.array = slices.Insert(b.array, b.taken, m)
}

func (b *buffer) append(more []Message) {
	if b.taken > 0 && len(b.array)+len(more) > cap(b.array) {
		n := copy(b.array, b.all())
		clear(b.array[n:])
		b.array, b.taken = b.array[:n], 0
	}
	b.array = append(b.array, more...)
}

// remove removes the messages for which gone is true, and reports whether there was any.
func (b *buffer) remove(gone func(*Message) bool) bool {
	left := b.taken
	for i := b.taken; i < len(b.array); i++ {
		if !gone(&b.array[i]) {
			b.array[left] = b.array[i]
			left++
		}
	}
	some := left < len(b.array)
	clear(b.array[left:])
	b.array = b.array[:left]
	return some
}
