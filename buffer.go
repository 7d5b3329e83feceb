package redisdelay

import (
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// leased is a message that a claim brought: in the buffer, and then part of a delivery.
type leased struct {
	queue.Leased
	sequence uint64 // by which messages are in order
	*lease
}

// lease is that of all messages of a claim: they are extended together, or lost.
type lease struct {
	claimed  time.Time // when the claim was answered
	deadline time.Time // until when it holds at least
}

// buffer is what was claimed and not handed out, in order. What is taken from it leaves room for what comes, so that
// a subscription under load needs no other memory for it.
type buffer struct {
	array []leased
	taken int // of array, from its beginning; they are empty
}

func (b *buffer) len() int { return len(b.array) - b.taken }

// all is valid until the next change.
func (b *buffer) all() []leased { return b.array[b.taken:] }

func (b *buffer) first() *leased { return &b.array[b.taken] }

func (b *buffer) pop() leased {
	m := b.array[b.taken]
	b.array[b.taken] = leased{} // or its body would stay in memory
	b.taken++
	return m
}

// unpop puts back what was popped last.
func (b *buffer) unpop(m leased) {
	b.array = slices.Insert(b.array, b.taken, m)
}

func (b *buffer) append(more []leased) {
	if b.taken > 0 && len(b.array)+len(more) > cap(b.array) {
		n := copy(b.array, b.all())
		clear(b.array[n:])
		b.array, b.taken = b.array[:n], 0
	}
	b.array = append(b.array, more...)
}

// remove removes those that are gone, and returns whether any was.
func (b *buffer) remove(gone func(*leased) bool) bool {
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
