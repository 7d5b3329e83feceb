package consume

import (
	"cmp"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Message is a claimed message.
type Message struct {
	queue.Leased
	sequence uint64 // its place in the order of claiming, from 1
	used     bool   // the consumer had it, so its token does not go back
	*lease
}

// withoutBody returns what is needed to give the message back. The shell may be reading the body,
// and forgets it.
func (m *Message) withoutBody() Message {
	return Message{Leased: queue.Leased{ID: m.ID, Token: m.Token}, sequence: m.sequence, lease: m.lease}
}

// lease is the lease of all messages of a claim. They are extended together.
type lease struct {
	claimed  time.Time // when the claim was answered
	deadline time.Time // the lease lasts at least until then
	epoch    int64     // of the active subscription that claimed; 0: the group has no such
}

// InHand is a message that is offered to the consumer, or that the consumer has.
type InHand struct {
	Message
	taken    time.Time // when it was taken from the buffer
	handed   time.Time // when the consumer got it, see also Machine.Lingers; zero: it is on offer
	place    int       // its index in Held.inHand
	cause    Cause     // why the delivery has ended, if it was abandoned
	delivery *Delivery // the shell's; the machine does not read it
}

// number counts the deliveries of the message, from 1.
func (h *InHand) number() int { return h.Deliveries + 1 }

// dies reports whether the message gets no further delivery after a failure.
func (h *InHand) dies(f queue.Failure) bool {
	return f.Dead || !f.Postponed && f.Limit > 0 && h.number() >= f.Limit
}

// Held is every message whose lease the subscription has, and that is not settled. Only Held
// changes deadlines and sequence numbers.
type Held struct {
	buffer   buffer    // claimed messages that nobody took yet, in order
	inHand   []*InHand // in no order
	lost     int       // messages whose lease was lost, and that handlers still have
	sequence uint64    // of the message that was claimed last
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

// remove takes a message out of the consumer's hands. It returns false if it was removed before.
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

// each calls f for every message, in no order.
func (h *Held) each(f func(*Message)) {
	for _, in := range h.inHand {
		f(&in.Message)
	}
	for i := range h.buffer.all() {
		f(&h.buffer.all()[i])
	}
}

// inOrder returns what is in hand, in the order of claiming.
func (h *Held) inOrder() []*InHand {
	inHand := slices.Clone(h.inHand)
	slices.SortFunc(inHand, func(a, b *InHand) int { return cmp.Compare(a.sequence, b.sequence) })
	return inHand
}

// leases returns every lease in the order of claiming: first those in hand, then the buffer.
// Messages of the buffer are copied, because one may be taken while Redis is told.
func (h *Held) leases() (all []*queue.Leased) {
	for _, in := range h.inOrder() {
		all = append(all, &in.Leased)
	}
	for _, m := range h.buffer.all() {
		all = append(all, &queue.Leased{ID: m.ID, Token: m.Token})
	}
	return all
}

// extend gives a new deadline to every message up to sequence number last.
func (h *Held) extend(last uint64, deadline time.Time) {
	h.each(func(m *Message) {
		if m.sequence <= last {
			m.deadline = deadline
		}
	})
}

// buffer is a queue of messages. It uses its array again, so that a subscription under load needs
// no other memory.
type buffer struct {
	array []Message
	taken int // the first messages of array, which are taken and empty
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

// unpop puts back the message that was popped last.
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

// remove removes and returns the messages for which gone is true.
func (b *buffer) remove(gone func(*Message) bool) (removed []Message) {
	left := b.taken
	for i := b.taken; i < len(b.array); i++ {
		if gone(&b.array[i]) {
			removed = append(removed, b.array[i])
			continue
		}
		b.array[left] = b.array[i]
		left++
	}
	clear(b.array[left:])
	b.array = b.array[:left]
	return removed
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
