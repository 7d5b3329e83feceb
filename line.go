package redisdelay

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// What goes to Redis together at most, when concurrent calls are joined.
const (
	joinedMessages = 1000
	joinedBytes    = 1 << 20
)

// line is where calls of Publish for one topic queue up. One call to Redis is under way at a time;
// whoever comes meanwhile waits, and all who wait go together next. So a lone call never waits, and
// many cost few round trips. The first of those who wait makes the call for all: there is no
// goroutine of the line's own.
type line struct {
	publisher *Publisher
	topic     *queue.Topic

	mu      sync.Mutex
	busy    bool
	waiting []*batch

	// The leader's:
	number uint64 // of the last call to Redis
	hurry  int    // calls that do not wait for others to join
}

// batch is the messages of one Publish call.
type batch struct {
	messages []queue.Message
	bytes    int
	turn     chan turn
}

// turn ends the wait of a batch: either it was published with the result err, or it is to make the
// call to Redis for all of lead, itself included.
type turn struct {
	lead []*batch
	err  error
}

// publish returns when the batch is in Redis, or is not going to be.
func (l *line) publish(ctx context.Context, b *batch) error {
	l.mu.Lock()
	if err := l.identify(b); err != nil {
		l.mu.Unlock()
		return err
	}
	lead := []*batch{b}
	if l.busy {
		b.turn = make(chan turn, 1)
		l.waiting = append(l.waiting, b)
		l.mu.Unlock()
		t := l.wait(ctx, b)
		if t.lead == nil {
			return t.err
		}
		lead = t.lead
	} else {
		l.busy = true
		l.mu.Unlock()
	}
	return l.send(lead)
}

// identify gives the messages their IDs, in the order in which they queue up. l.mu is held.
func (l *line) identify(b *batch) error {
	now := time.Now()
	for i := range b.messages {
		id, err := l.publisher.ids.Next(now)
		if err != nil {
			return err
		}
		b.messages[i].ID = id
	}
	return nil
}

// wait waits for the batch's turn. If the context ends before, the batch leaves the line.
func (l *line) wait(ctx context.Context, b *batch) turn {
	select {
	case t := <-b.turn:
		return t
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, b)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return turn{err: ctx.Err()}
	}
	return <-b.turn // it is on its way
}

// send publishes the batches of the lead, the first of which is the caller's, and passes the lead on.
func (l *line) send(lead []*batch) error {
	others := 0
	for _, b := range lead[1:] {
		others += len(b.messages)
	}
	messages := slices.Grow(lead[0].messages, others)
	for _, b := range lead[1:] {
		messages = append(messages, b.messages...)
	}
	patience := l.publisher.config.WaitTimeout
	err := l.call(messages, patience)
	var errs []error // of each, if that is not the same
	if len(lead) > 1 && (errors.Is(err, ErrExists) || errors.Is(err, ErrTopicFull)) {
		// Nothing was written, and it is the fault of some of them only.
		errs = make([]error, len(lead))
		for i, b := range lead {
			if errs[i] = l.call(b.messages, patience); errors.Is(errs[i], ErrNotReplicated) {
				patience = 0 // the replicas were waited for long enough, by all together
			}
		}
		err = errs[0]
	}

	for i, b := range lead[1:] {
		if errs != nil {
			b.turn <- turn{err: errs[i+1]}
		} else {
			b.turn <- turn{err: err}
		}
	}
	l.join(len(lead))
	l.mu.Lock()
	next := l.next()
	l.busy = next != nil
	l.mu.Unlock()
	if next != nil {
		next[0].turn <- turn{lead: next}
	}
	return err
}

// call is one call to Redis, and the wait for its replicas, for as long as patience.
func (l *line) call(messages []queue.Message, patience time.Duration) error {
	l.number++
	p := l.publisher
	err := p.checkServer(l.topic)
	if err == nil {
		err = l.topic.PublishWithin(p.ctx, p.id, l.number, messages, p.config.MaxWaiting)
	}
	if err == nil && p.config.WaitReplicas > 0 {
		err = l.topic.AwaitReplicas(p.ctx, p.id, l.number, p.config.WaitReplicas, patience)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = endedCall{err}
	}
	if err != nil && p.ctx.Err() != nil {
		err = errors.Join(ErrClosed, err)
	}
	return err
}

// endedCall is the error of a call to Redis that ended by a context which is not the caller's: by a timeout of the
// client, of WaitTimeout, or by Close. It is not the error of a context, which says that nothing was published.
type endedCall struct{ error }

func (e endedCall) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.error, target)
}

func (e endedCall) As(target any) bool { return errors.As(e.error, target) }

// join waits for those to come back whose calls were answered. They often have more to publish, which then goes
// with the next call. Each runs as soon as this goroutine yields, so the wait is over when nobody has come for some
// microseconds. Where others keep the processors busy, yielding takes too long, and is not done again soon.
func (l *line) join(answered int) {
	if l.hurry > 0 {
		l.hurry--
		return
	}
	if answered == 1 { // nobody waited
		return
	}
	joined, last := 0, time.Now()
	for joined < answered {
		runtime.Gosched()
		now := time.Now()
		l.mu.Lock()
		waiting := len(l.waiting)
		l.mu.Unlock()
		switch {
		case now.Sub(last) > time.Millisecond:
			l.hurry = 1000
			return
		case waiting > joined:
			joined, last = waiting, now
		case now.Sub(last) > straggle:
			return
		}
	}
}

// straggle is how long join waits for the next to come.
const straggle = 20 * time.Microsecond

// next takes from those who wait what goes to Redis together. l.mu is held.
func (l *line) next() []*batch {
	count, bytes, n := 0, 0, 0
	for ; n < len(l.waiting); n++ {
		b := l.waiting[n]
		if n > 0 && (count+len(b.messages) > joinedMessages || bytes+b.bytes > joinedBytes) {
			break
		}
		count += len(b.messages)
		bytes += b.bytes
	}
	if n == 0 {
		return nil
	}
	lead := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return lead
}
