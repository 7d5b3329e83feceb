package publish

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// line is where concurrent Publish calls for one topic wait and are joined. A caller that finds the
// line free makes its call to Redis itself. Meanwhile others wait, and go together next: a
// goroutine makes calls for them while any wait. So a lone caller never waits, and many callers
// cost few round trips. A caller that may leave never makes its call itself.
type line struct {
	send     sender
	patience time.Duration   // how long a call waits for replicas at most
	underWay *sync.WaitGroup // counts the goroutine

	mu      sync.Mutex
	joining joining

	comeback comeback // only for the goroutine
}

// sender makes one call to Redis with the messages of these batches, and waits for replicas as long
// as patience. The line has one under way at a time.
type sender func(messages []queue.Message, together []*Batch, patience time.Duration) error

// publish returns when the outcome of the batch is known, as far as it can be.
func (l *line) publish(ctx context.Context, b *Batch) error {
	b.ctx = ctx
	ended := ctx.Done() // it may be the user's code, and must not panic while the batch waits
	l.mu.Lock()
	goes := l.joining.enter(b)
	l.mu.Unlock()
	if !goes {
		return l.wait(b, ended)
	}
	if b.Bounded { // the call may have to go on without the caller
		l.underWay.Add(1)
		go l.serve([]*Batch{b})
		return l.wait(b, ended)
	}
	defer l.handOver() // also if a hook of the client calls runtime.Goexit, because others wait
	l.call([]*Batch{b}, nil)
	return b.err
}

// wait waits until the batch's call is over. If the context ends before the call is under way, or
// after the call was refused for the sake of another batch, the batch leaves. If it ends while the
// call is under way, the caller of a Bounded batch leaves.
func (l *line) wait(b *Batch, ended <-chan struct{}) error {
	if ended == nil { // then a select would only cost time
		<-b.done
	} else {
		select {
		case <-b.done:
		case <-ended:
			l.mu.Lock()
			left := l.joining.leave(b)
			l.mu.Unlock()
			if !left && !l.outcome(b) {
				return fmt.Errorf("%w: %w", queue.ErrMaybePublished, guard.Err(b.ctx))
			}
		}
	}
	if b.err == errLeft {
		return guard.Err(b.ctx)
	}
	return b.err
}

// outcome returns true when the call with the batch is over, or false at once if the caller does
// not wait for that.
func (l *line) outcome(b *Batch) bool {
	if b.Bounded {
		select {
		case <-b.done:
		default:
			b.gone = true
		}
		return !b.gone
	}
	<-b.done
	return true
}

// handOver starts the goroutine if batches have come meanwhile.
func (l *line) handOver() {
	if together := l.next(); together != nil {
		l.underWay.Add(1)
		go l.serve(together)
	}
}

func (l *line) next() []*Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.joining.next()
}

// serve makes calls for waiting batches, until there are none.
func (l *line) serve(together []*Batch) {
	defer l.underWay.Done()
	returned := false
	defer guard.OnExit(&returned, func() { l.exited(together) })
	ran := make(chan struct{}, 1)
	var room []queue.Message
	for together != nil {
		var done []*Batch
		done, room = l.call(together, room)
		l.answer(done, ran)
		together = l.next()
	}
	returned = true
}

// exited answers the callers of a call in which a hook of the client has called runtime.Goexit, and
// has another goroutine go on.
func (l *line) exited(together []*Batch) {
	l.mu.Lock()
	err := fmt.Errorf("%w: %w", queue.ErrMaybePublished, guard.Exited("a call to Redis"))
	done := l.joining.settle(together, outcome{fate: failed, err: err})
	l.mu.Unlock()
	for _, b := range done {
		b.done <- struct{}{}
	}
	l.handOver()
}

// call sends batches to Redis together, and returns those that are done. It joins their messages in
// room, and returns that, emptied, for the next call.
func (l *line) call(together []*Batch, room []queue.Message) (done []*Batch, _ []queue.Message) {
	messages := together[0].Messages
	if len(together) > 1 {
		for _, b := range together {
			room = append(room, b.Messages...)
		}
		messages = room
		defer clear(room)
	}
	patience := l.patience
	if l.joining.hasten { // only next and settle change it, and none runs now
		patience = 0 // the sender asks once and does not wait
	}
	o := judge(l.send(messages, together, patience))
	var ended []*Batch
	if o.fate == refused && len(together) > 1 {
		// Contexts may be users' code, so they are asked without the mutex.
		for _, b := range together {
			if guard.Err(b.ctx) != nil {
				ended = append(ended, b)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range ended {
		l.joining.leave(b)
	}
	return l.joining.settle(together, o), room[:0]
}

// answer wakes the callers of batches that are done. Callers often publish again at once, so answer
// waits until as many batches wait as were answered. These go together in the next call. It does
// not wait for a single caller, which has nobody to be joined with. Nor does it wait while there
// are batches that were put back, because these go first.
func (l *line) answer(done []*Batch, ran chan struct{}) {
	if len(done) <= 1 || l.comeback.skip > 0 || l.hasPutBack() {
		l.comeback.skip = max(l.comeback.skip-1, 0)
		for _, b := range done {
			b.done <- struct{}{}
		}
		return
	}
	began := time.Now()
	l.wake(done, ran)
	l.await(len(done))
	l.comeback.took(len(done), time.Since(began))
}

func (l *line) hasPutBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.joining.hasPutBack()
}

// wake wakes the callers of done batches, and returns when most of them have run. It sleeps until
// its processor has run the callers that are queued there, while an idle processor takes some of
// them. If it yielded (runtime.Gosched) instead, the idle processor would take this goroutine,
// which would yield again and again.
func (l *line) wake(done []*Batch, ran chan struct{}) {
	last := len(done) - 1
	for _, b := range done[:last] {
		b.done <- struct{}{}
	}
	// A new goroutine runs next, unless another is woken after it. Then it runs after all that were
	// queued before.
	go func() { ran <- struct{}{} }()
	done[last].done <- struct{}{}
	<-ran
}

// await yields until as many batches wait as were answered, or no further one has come for some
// microseconds.
func (l *line) await(answered int) {
	came, last := 0, time.Now()
	for yields := 0; came < answered && yields < mostYields; yields++ {
		runtime.Gosched()
		now := time.Now()
		switch waiting := l.waiting(); {
		case waiting > came:
			came, last = waiting, now
		case now.Sub(last) > straggle:
			return
		}
	}
}

// waiting returns how many batches wait.
func (l *line) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.joining.waiting)
}

// straggle is how long await waits for the next batch. A clock that stands still, as in a bubble of
// testing/synctest, never reaches that, so the number of yields is limited too.
const (
	straggle   = 10 * time.Microsecond
	mostYields = 10_000
)

// comeback says for how many answers the line does not wait until callers come back.
type comeback struct {
	skip int // answers to come that do not wait
	slow int // waits in a row that took too long
}

// took notes how long the callers took to come back. Each runs for microseconds; a millisecond more
// means that other goroutines keep the processors busy. After three such waits in a row, the next
// thousand answers do not wait.
func (c *comeback) took(answered int, wait time.Duration) {
	if wait < time.Millisecond+time.Duration(answered)*10*time.Microsecond {
		c.slow = 0
		return
	}
	if c.slow++; c.slow == 3 {
		c.slow, c.skip = 0, 1000
	}
}
