package redisdelay

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// What goes to Redis together at most, when concurrent calls are joined.
const (
	joinedMessages = 1000
	joinedBytes    = 1 << 20
)

// line is where calls of Publish for one topic queue up. One call to Redis is under way at a time;
// whoever comes meanwhile waits, and all who wait go together next. So a lone call never waits, and
// many cost few round trips. While any wait, a goroutine makes the calls for them.
type line struct {
	publisher *Publisher
	topic     *queue.Topic

	mu      sync.Mutex
	busy    bool
	waiting []*batch

	// Whose call is under way:
	number      uint64    // of the last call to Redis
	most        int       // batches that go together at most, of those that were put back; 0: as many as may
	unconfirmed bool      // whether replicas did not confirm the last call of those
	slow        int       // how often in a row those who were answered took too long to come back
	hurry       int       // calls that do not wait for them
	listed      time.Time // when the topic was last seen to be in the registry
}

// batch is the messages of one Publish call.
type batch struct {
	ctx      context.Context // of who waits
	again    bool            // it was put back
	messages []queue.Message
	bytes    int
	prepared time.Time // zero until something of it depends on that
	err      error
	done     chan struct{} // gets one when err is known to who waits

	one    [1]queue.Message // memory for the messages of most calls
	bodies []byte           // memory for their bodies, as long as what is taken of it
}

// mostKept is how many bytes a batch keeps at most for the bodies of the next call.
const mostKept = 16 << 10

// take returns memory for a body of so many bytes, which nobody else gets before the batch is freed. A body that is large
// gets its own, which is not kept.
func (b *batch) take(size int) []byte {
	if size > mostKept/4 {
		return make([]byte, 0, size)
	}
	if size > cap(b.bodies)-len(b.bodies) { // what is taken stays where it is
		b.bodies = make([]byte, 0, max(size, min(2*cap(b.bodies), mostKept)))
	}
	from := len(b.bodies)
	b.bodies = b.bodies[:from+size]
	return b.bodies[from : from : from+size]
}

// now is when the batch was prepared, the same for all its messages.
func (b *batch) now() time.Time {
	if b.prepared.IsZero() {
		b.prepared = time.Now()
	}
	return b.prepared
}

// newBatch returns a batch that was used before, if there is one, so that most calls need no memory for their own.
func (p *Publisher) newBatch(messages int) *batch {
	b, _ := p.batches.Get().(*batch)
	if b == nil {
		b = &batch{done: make(chan struct{}, 1)}
	}
	if messages == 1 {
		b.messages = b.one[:]
	} else {
		b.messages = make([]queue.Message, messages)
	}
	return b
}

// free is called when nobody else has the batch any more.
func (p *Publisher) free(b *batch) {
	*b = batch{done: b.done, bodies: b.bodies[:0]}
	p.batches.Put(b)
}

// publish returns when the batch is in Redis, or is not going to be.
func (l *line) publish(ctx context.Context, b *batch) error {
	b.ctx = ctx
	l.mu.Lock()
	if l.busy {
		l.waiting = append(l.waiting, b)
		l.mu.Unlock()
		return l.wait(b)
	}
	l.busy = true
	l.mu.Unlock()
	defer l.handOver() // also if a hook of the client panics, for others wait
	l.send([]*batch{b}, nil)
	return b.err
}

// handOver has a goroutine go on with those who have come meanwhile, if there are any.
func (l *line) handOver() {
	if next := l.next(); next != nil {
		l.publisher.underWay.Add(1)
		go l.serve(next)
	}
}

// serve makes calls for those who wait, until nobody does.
func (l *line) serve(together []*batch) {
	defer l.publisher.underWay.Done()
	rest := make(chan struct{}, 1)
	var room []queue.Message
	for together != nil {
		together, room = l.send(together, room)
		l.answer(together, rest)
		together = l.next()
	}
}

// answer wakes those whose call is over. They often have more to publish, so it gives them time to come back with that, which
// then goes with the next call. Where others keep the processors busy, that takes too long, and is not done again soon. Nor
// is it done while any were put back, who go before all others.
func (l *line) answer(together []*batch, rest chan struct{}) {
	if len(together) <= 1 || l.hurry > 0 || l.hasPutBack() { // one alone has nobody to come back with
		l.hurry = max(l.hurry-1, 0)
		for _, b := range together {
			b.done <- struct{}{}
		}
		return
	}
	began := time.Now()
	l.wake(together, rest)
	l.join(len(together))
	l.judge(len(together), time.Since(began))
}

// hasPutBack tells whether batches wait again after they were put back.
func (l *line) hasPutBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0 && l.waiting[0].again
}

// wake wakes those whose call is over, and returns when most of them have run: this goroutine then goes on after
// the ones that this processor has to run, while another, if it is idle, takes some of them. If this one yielded
// (runtime.Gosched) in place of sleeping, the idle processor would take it instead, to yield and yield again.
func (l *line) wake(together []*batch, rest chan struct{}) {
	last := len(together) - 1
	for _, b := range together[:last] {
		b.done <- struct{}{}
	}
	// A new goroutine runs next, until another is woken. Then it runs after those that were there before.
	go func() { rest <- struct{}{} }()
	together[last].done <- struct{}{}
	<-rest
}

// join yields until all are back whose calls were answered, or nobody has come for some microseconds.
func (l *line) join(answered int) {
	joined, last := 0, time.Now()
	for yields := 0; joined < answered && yields < enough; yields++ {
		runtime.Gosched()
		now := time.Now()
		l.mu.Lock()
		waiting := len(l.waiting)
		l.mu.Unlock()
		switch {
		case waiting > joined:
			joined, last = waiting, now
		case now.Sub(last) > straggle:
			return
		}
	}
}

// straggle is how long join waits for the next to come. A clock that stands still, as in a bubble of testing/synctest, has
// no end of that, but enough yields are.
const (
	straggle = 10 * time.Microsecond
	enough   = 10_000
)

// judge tells by how long some took to come back whether to wait for others soon. They run for microseconds each; a
// millisecond more is due to others.
func (l *line) judge(answered int, took time.Duration) {
	if took < time.Millisecond+time.Duration(answered)*10*time.Microsecond {
		l.slow = 0
		return
	}
	if l.slow++; l.slow == 3 {
		l.slow, l.hurry = 0, 1000
	}
}

// wait waits until the batch's call is over. If the context ends before it is under way, the batch leaves the line.
func (l *line) wait(b *batch) error {
	if b.ctx.Done() == nil { // then a select would only cost time
		<-b.done
		return b.err
	}
	select {
	case <-b.done:
		return b.err
	case <-b.ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, b)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return b.ctx.Err()
	}
	<-b.done // it is on its way
	return b.err
}

// send publishes batches in one call, and returns those that are done. If the call was refused for the sake of some of them,
// those who cannot go in any company are done, and the others wait again. send joins their messages in room, and returns that, emptied, for the next call.
func (l *line) send(together []*batch, room []queue.Message) (done []*batch, _ []queue.Message) {
	messages := together[0].messages
	if len(together) > 1 {
		for _, b := range together {
			room = append(room, b.messages...)
		}
		messages = room
		defer clear(room)
	}
	patience := l.publisher.config.WaitTimeout
	if l.unconfirmed { // replicas were waited for long enough, by others who came together
		patience = 0
	}
	err := l.call(messages, patience)
	var refusal *queue.Refusal
	switch refused := errors.As(err, &refusal); {
	case refused && len(together) > 1:
		return l.putBack(together, refusal), room[:0]
	case refused && together[0].refused(0, refusal) != nil: // in any company
		l.most *= 2
	case refused: // as the next may be, alone as well
	case err != nil && !errors.Is(err, ErrNotReplicated):
		l.most = 0 // it is not for the sake of anybody's messages
	case len(together) < l.most: // which were all, or as many as may
		l.most = 0
	default:
		l.most *= 2
	}
	if err == nil || errors.Is(err, ErrNotReplicated) {
		l.unconfirmed = err != nil
	}
	for _, b := range together {
		b.err = err
	}
	return together, room[:0]
}

// putBack has batches wait again, before all others, after their call was refused: it returns those that are refused in any
// company, and those whose contexts have ended. Where there are any of the former, the others may go without them. Else the
// next call has as many as may go together; those that have the delay ID of another come after that.
func (l *line) putBack(together []*batch, refusal *queue.Refusal) (done []*batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var again, later []*batch
	index, needed, fit := 0, 0, 0 // of a message; messages; batches
	refused := false
	for _, b := range together {
		first := index
		index += len(b.messages)
		if b.err = b.refused(first, refusal); b.err != nil {
			refused = true
		} else {
			b.err = b.ctx.Err()
		}
		if b.err != nil {
			done = append(done, b)
			continue
		}
		b.again = true
		if _, is := b.among(refusal.Twice, first); is {
			later = append(later, b)
			continue
		}
		again = append(again, b)
		if needed += len(b.messages); needed <= refusal.Room {
			fit++
		}
	}
	switch {
	case refused:
		l.most *= 2
	case len(refusal.Twice) > 0:
		l.most = max(len(again), 1)
	default:
		l.most = max(fit, 1)
	}
	l.waiting = slices.Insert(l.waiting, 0, append(again, later...)...)
	return done
}

// refused is the error of a batch that is refused whatever goes with it; first is the index of its first message in the call.
func (b *batch) refused(first int, refusal *queue.Refusal) error {
	if i, is := b.among(refusal.Taken, first); is {
		return queue.IsTaken(&b.messages[i])
	}
	needsNoRoom := func(m queue.Message) bool { return m.Options.DelayID != "" && m.Options.Mode != queue.Reject }
	if refusal.Full && len(b.messages) > refusal.Room && !slices.ContainsFunc(b.messages, needsNoRoom) {
		return refusal
	}
	return nil
}

// among finds the first of the batch's messages whose index in the call is among these.
func (b *batch) among(indexes []int, first int) (i int, is bool) {
	next, _ := slices.BinarySearch(indexes, first)
	if next == len(indexes) || indexes[next] >= first+len(b.messages) {
		return 0, false
	}
	return indexes[next] - first, true
}

// call is one call to Redis, and the wait for its replicas, for as long as patience. The messages get their IDs in
// the order in which they go out.
func (l *line) call(messages []queue.Message, patience time.Duration) error {
	l.number++
	p := l.publisher
	err := p.checkServer(l.topic)
	if err == nil {
		err = p.ids.Give(messages, time.Now())
	}
	if err == nil {
		err = l.topic.PublishWithin(p.ctx, p.id, l.number, messages, p.config.MaxWaiting)
	}
	if err == nil && p.config.WaitReplicas > 0 {
		err = l.topic.AwaitReplicas(p.ctx, p.id, l.number, p.config.WaitReplicas, patience)
	}
	if err == nil {
		l.keepListed()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = endedCall{err}
	}
	if err != nil && p.ctx.Err() != nil {
		err = errors.Join(ErrClosed, err)
	}
	return err
}

// relist is how often a Publisher looks whether a topic is still in the registry.
const relist = 30 * time.Second

// keepListed has a topic entered in the registry again that is missing there. In a Cluster that is on a node of its own, whose
// failover may forget what was just entered; no scheduler would find the topic then. Nobody waits for this.
func (l *line) keepListed() {
	p := l.publisher
	if !p.client.Cluster() || time.Since(l.listed) < relist {
		return
	}
	first := l.listed.IsZero() // then it was entered just now, if it was not there
	l.listed = time.Now()
	if first || p.listing.Err() != nil {
		return
	}
	p.listings.Go(func() {
		if _, err := p.topic(l.topic.Name).Relist(p.listing); err != nil && p.listing.Err() == nil {
			p.logger.Error("Cannot look whether the topic is in the registry", err, watermill.LogFields{"topic": l.topic.Name})
		}
	})
}

// endedCall is the error of a call to Redis that ended by a context which is not the caller's: by a timeout of the
// client, of WaitTimeout, or by Close. It is not the error of a context, which says that nothing was published.
type endedCall struct{ error }

func (e endedCall) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.error, target)
}

func (e endedCall) As(target any) bool { return errors.As(e.error, target) }

// next takes from those who wait what goes to Redis together. If nobody does, the line is free.
func (l *line) next() []*batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 || !l.waiting[0].again { // all who were put back are done
		l.most, l.unconfirmed = 0, false
	}
	count, bytes, n := 0, 0, 0
	for ; n < len(l.waiting); n++ {
		b := l.waiting[n]
		if n > 0 && (n == l.most || b.again != l.waiting[0].again || count+len(b.messages) > joinedMessages || bytes+b.bytes > joinedBytes) {
			break
		}
		count += len(b.messages)
		bytes += b.bytes
	}
	if l.busy = n > 0; !l.busy {
		return nil
	}
	together := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return together
}
