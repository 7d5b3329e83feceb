package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// system is one of those that are compared.
type system struct {
	name string
	open func(e *env, o options) (*queue, error)
}

// options are what systems are opened with.
type options struct {
	subscribers int // how many there are, each with a client of its own
	inFlight    int // messages that each of them has at once
	payload     int // bytes of the largest payload; 0: nothing special
}

// queue is a system with one topic and one consumer group on the server. Calls that need no answer may
// be nil.
type queue struct {
	// publish sends messages in one call, if the system has one for several. due is nil for messages
	// that are due now.
	publish func(messages []*message.Message, due []time.Time) error

	// consume begins to call handle with each payload, and acks when it returns.
	consume func(handle func(payload []byte)) error

	// unsettled counts the messages that are not acked yet.
	unsettled func() (int64, error)

	close func() error
}

// load says what is published.
type load struct {
	messages int
	callers  int                   // goroutines that publish
	perCall  int                   // messages in one call
	payload  int                   // bytes
	due      func(i int) time.Time // whole milliseconds; nil: now
}

func (l load) String() string {
	text := fmt.Sprintf("%d messages, %d %s, %d a call", l.messages, l.callers, plural(l.callers, "caller"), l.perCall)
	if l.due != nil {
		text += ", delayed"
	}
	return text
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// smallPayload is how many bytes messages have where nothing else is said.
const smallPayload = 100

// publishAll publishes a load and returns when all of it is published.
func (q *queue) publishAll(l load) error {
	var next atomic.Int64
	failed := make([]error, l.callers)
	var callers sync.WaitGroup
	for c := range l.callers {
		callers.Go(func() {
			for failed[c] == nil {
				first := int(next.Add(int64(l.perCall))) - l.perCall
				if first >= l.messages {
					return
				}
				failed[c] = q.publish(l.call(first))
			}
		})
	}
	callers.Wait()
	return errors.Join(failed...)
}

// call makes the messages of one call, beginning with the one that is numbered first. Making them is part
// of what is measured, since no program can do without.
func (l load) call(first int) (messages []*message.Message, due []time.Time) {
	n := min(l.perCall, l.messages-first)
	messages = make([]*message.Message, n)
	if l.due != nil {
		due = make([]time.Time, n)
	}
	for i := range messages {
		payload := make([]byte, max(l.payload, 8))
		binary.LittleEndian.PutUint64(payload, uint64(first+i))
		messages[i] = message.NewMessage(watermill.NewUUID(), payload)
		messages[i].Metadata.Set("kind", "benchmark")
		if due != nil {
			due[i] = l.due(first + i)
		}
	}
	return messages, due
}

// patience is how long no message may arrive before those that are missing count as lost.
const patience = 45 * time.Second

// tally notes which of n messages arrived, and when.
type tally struct {
	arrived []atomic.Int64 // Unix nanoseconds
	left    atomic.Int64
	twice   atomic.Int64
	all     chan struct{}
}

func newTally(n int) *tally {
	t := &tally{arrived: make([]atomic.Int64, n), all: make(chan struct{})}
	t.left.Store(int64(n))
	return t
}

// arrive notes the message with this payload.
func (t *tally) arrive(payload []byte) {
	i := binary.LittleEndian.Uint64(payload)
	if !t.arrived[i].CompareAndSwap(0, time.Now().UnixNano()) {
		t.twice.Add(1)
	} else if t.left.Add(-1) == 0 {
		close(t.all)
	}
}

// wait returns when all messages have arrived, with an error if one came twice or is lost.
func (t *tally) wait() error {
	for left := t.left.Load(); ; left = t.left.Load() {
		select {
		case <-t.all:
			return t.check()
		case <-time.After(patience):
			if t.left.Load() == left {
				return fmt.Errorf("%d of %d messages are lost", left, len(t.arrived))
			}
		}
	}
}

func (t *tally) check() error {
	if n := t.twice.Load(); n > 0 {
		return fmt.Errorf("%d messages arrived more than once", n)
	}
	return nil
}

// checkOrder fails if the messages did not arrive in the order of their numbers.
func (t *tally) checkOrder() error {
	for i := 1; i < len(t.arrived); i++ {
		if t.arrived[i].Load() < t.arrived[i-1].Load() {
			return fmt.Errorf("message %d arrived before message %d", i, i-1)
		}
	}
	return nil
}

// finish closes a queue whose messages have all been handled. It fails if one of them came again or is not
// settled.
func (q *queue) finish(t *tally) error {
	var left int64
	var err error
	for range 100 {
		if left, err = q.unsettled(); err != nil || left == 0 {
			break
		}
		time.Sleep(settle)
	}
	if err == nil && left != 0 {
		err = fmt.Errorf("%d messages were acked, and are still there", left)
	}
	return errors.Join(err, q.close(), t.check())
}
