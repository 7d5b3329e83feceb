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

	// mayBeEarly tells that a message which arrives before it is due is no fault.
	mayBeEarly bool
}

// options are what systems are opened with.
type options struct {
	subscribers int    // how many there are, each with a client of its own
	inFlight    int    // messages that each of them has at once
	payload     int    // bytes of the largest payload; 0: nothing special
	topic       string // "": a new one
	pending     int    // messages that are there to stay
}

// queue is a system with one topic and one consumer group on the server.
type queue struct {
	// publish sends messages in one call, if the system has one for several. due is nil for
	// messages that are due now.
	publish func(messages []*message.Message, due []time.Time) error

	// consume begins to call handle with each payload, and acks when it returns.
	consume func(handle func(payload []byte)) error

	// stored counts the messages that are in Redis where none was consumed; nil where that is not
	// asked.
	stored func() (int64, error)

	// unsettled counts the messages that are not acked yet.
	unsettled func() (int64, error)

	close func() error
}

// load says what is published.
type load struct {
	messages int
	callers  int // goroutines that publish
	perCall  int // messages in one call
	payload  int // bytes

	due  func(i int) time.Time // nil: now
	by   string                // how long that is from now, for the name of the row; "": not said
	dues []time.Time           // where they are noted; nil: nowhere
}

func (l load) String() string {
	text := fmt.Sprintf("%s messages, %d %s, %d a call", count(l.messages), l.callers, plural(l.callers, "caller"), l.perCall)
	if l.due != nil {
		text += ", delayed"
		if l.by != "" {
			text += " by " + l.by
		}
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

// call makes the messages of one call, beginning with the one that is numbered first. Making them
// is part of what is measured, since no program can do without.
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
			if l.dues != nil {
				l.dues[first+i] = due[i]
			}
		}
	}
	return messages, due
}

// finishStored closes a queue whose n messages were only published. It fails if Redis does not have
// them all.
func (q *queue) finishStored(n int) error {
	stored, err := q.stored()
	if err == nil && stored != int64(n) {
		err = fmt.Errorf("%d of %d published messages are in Redis", stored, n)
	}
	return errors.Join(err, q.close())
}

// finish closes a queue whose messages have all been handled. It fails if one of them came again or
// is not settled.
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
