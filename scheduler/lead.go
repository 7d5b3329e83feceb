package scheduler

import (
	"sync/atomic"
	"time"
)

// lead is how much before an event a look sets out, to be at the server when the event is there. The server says how long
// it is until the event; the answer is on its way meanwhile, as the look is then: together for as long as a look and its
// answer take. That is the shortest of late, lest many come too early: a look that does is in vain.
type lead struct {
	quickest atomic.Int64 // nanoseconds; 0: not known
}

// observe notes how long a look took that went alone: others that go with it would count, too.
func (l *lead) observe(took time.Duration) {
	if quickest := l.quickest.Load(); quickest > 0 {
		took = min(took, time.Duration(quickest+quickest/16+1))
	}
	l.quickest.Store(int64(took))
}

// before is when to set out for an event that the server says is that far away. Who is too near sets out when it is there.
func (l *lead) before(wait time.Duration) time.Duration {
	if quickest := time.Duration(l.quickest.Load()); quickest < wait {
		return wait - quickest
	}
	return wait
}
