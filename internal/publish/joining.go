package publish

import (
	"errors"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// These limit what goes to Redis in one call. A batch above a limit goes alone.
const (
	joinedMessages = 1000
	joinedBytes    = 1 << 20
)

// joining decides which batches of a topic go to Redis together. It is pure: its line holds a mutex
// around each call, makes the calls to Redis, and wakes the callers.
//
// One call is under way at a time, and waiting batches go together in the next one. Redis may
// refuse a call for the sake of some of its batches. Then the others are put back: they wait again,
// before all batches that came later.
type joining struct {
	busy    bool // a call is under way
	waiting []*Batch

	// These are about batches that were put back. next sets both to zero when none waits.
	most   int  // how many go together at most; 0: all that fit
	hasten bool // replicas did not confirm their last call, so the next waits for none
}

// turn says where a batch is on its way to Redis.
type turn int

const (
	fresh   turn = iota // it has waited only before its first call, if at all
	putBack             // its call was refused for the sake of another batch
	leaving             // its context has ended while a call with it was under way
)

// errLeft is the error of a batch that its caller took back.
var errLeft = errors.New("taken back")

// outcome is what a call to Redis came to.
type outcome struct {
	fate    fate
	err     error
	refusal *queue.Refusal // if the fate is refused
}

type fate int

const (
	published   fate = iota
	unconfirmed      // published, but too few replicas have confirmed it
	refused          // for the sake of some messages; nothing was published
	failed           // for no message's sake; the messages may be published or not
)

// judge says what a call with this error came to.
func judge(err error) outcome {
	if err == nil {
		return outcome{fate: published}
	}
	var refusal *queue.Refusal
	switch {
	case errors.As(err, &refusal):
		return outcome{refused, err, refusal}
	case errors.Is(err, queue.ErrNotReplicated):
		return outcome{fate: unconfirmed, err: err}
	}
	return outcome{fate: failed, err: err}
}

// enter returns true if the batch goes to Redis at once. Otherwise it waits.
func (j *joining) enter(b *Batch) (goes bool) {
	if j.busy {
		j.waiting = append(j.waiting, b)
		return false
	}
	j.busy = true
	return true
}

// leave takes back a batch whose context has ended, and returns true if the batch was waiting. If
// its call is under way, the batch ends only if that call is refused for the sake of another batch.
func (j *joining) leave(b *Batch) (left bool) {
	i := slices.Index(j.waiting, b)
	if i < 0 {
		b.turn = leaving
		return false
	}
	j.waiting = slices.Delete(j.waiting, i, i+1)
	b.err = errLeft
	return true
}

// next removes from the waiting batches those that go to Redis together now. If there are none, no
// call is under way any more. Batches that were put back do not go with fresh ones, about which
// most and hasten say nothing.
func (j *joining) next() []*Batch {
	if !j.hasPutBack() {
		j.most, j.hasten = 0, false
	}
	messages, bytes, n := 0, 0, 0
	for ; n < len(j.waiting); n++ {
		b := j.waiting[n]
		if n > 0 && (n == j.most || b.turn != j.waiting[0].turn ||
			messages+len(b.Messages) > joinedMessages || bytes+b.Bytes > joinedBytes) {
			break
		}
		messages += len(b.Messages)
		bytes += b.Bytes
	}
	if j.busy = n > 0; !j.busy {
		return nil
	}
	together := slices.Clone(j.waiting[:n])
	j.waiting = slices.Delete(j.waiting, 0, n)
	return together
}

// hasPutBack tells whether batches wait that were put back.
func (j *joining) hasPutBack() bool { return len(j.waiting) > 0 && j.waiting[0].turn == putBack }

// settle notes what a call came to, and returns the batches that are done, with their errors. After
// a refusal the other batches are put back. Each further call of such batches lets twice as many go
// together in the next one, unless more than one of them is refused.
func (j *joining) settle(together []*Batch, o outcome) (done []*Batch) {
	switch o.fate {
	case refused:
		if len(together) > 1 {
			return j.putBack(together, o.refusal)
		}
		if together[0].refusedAlone(0, o.refusal) != nil {
			j.most *= 2
		} // else the next may be refused alone, too
	case failed:
		j.most = 0
	case published, unconfirmed:
		if len(together) < j.most { // no more waited, or no more fitted
			j.most = 0
		}
		j.most *= 2
		j.hasten = o.fate == unconfirmed
	}
	for _, b := range together {
		b.err = o.err
	}
	return together
}

// putBack makes batches wait again, before all others. It returns the batches that would be refused
// in any call, and those whose callers have left. How many go together next depends on the reason:
//
//   - if some were refused, twice as many as before, or all that fit,
//   - if a delay ID stands twice in the call, all but the later ones, which come last,
//   - if the topic is full, as many as it has room for.
func (j *joining) putBack(together []*Batch, refusal *queue.Refusal) (done []*Batch) {
	var again, later []*Batch
	index, needed, fit := 0, 0, 0 // of a message in the call; messages put back; batches that fit
	anyRefused := false
	for _, b := range together {
		first := index
		index += len(b.Messages)
		if b.err = b.refusedAlone(first, refusal); b.err != nil {
			anyRefused = true
		} else if b.turn == leaving {
			b.err = errLeft
		}
		if b.err != nil {
			done = append(done, b)
			continue
		}
		b.turn = putBack
		if _, is := b.among(refusal.Twice, first); is {
			later = append(later, b)
			continue
		}
		again = append(again, b)
		if needed += len(b.Messages); needed <= refusal.Room {
			fit++
		}
	}
	switch {
	case anyRefused:
		j.most *= 2
	case len(refusal.Twice) > 0:
		j.most = max(len(again), 1)
	default:
		j.most = max(fit, 1)
	}
	j.waiting = slices.Insert(j.waiting, 0, append(again, later...)...)
	return done
}
