package scheduler

import (
	"sync/atomic"
	"time"
)

// lead is how long before an event a promotion is sent, so that it reaches the server when the
// event happens. The server says how long it is until the event. Its answer and the next promotion
// travel for about one round trip together. The lead is the shortest of recent round trips, because
// a promotion that arrives too early does nothing.
type lead struct {
	quickest atomic.Int64 // nanoseconds; 0 means unknown
}

// observe records the round trip of a promotion of one topic. A batch would add the others' time.
// A longer round trip raises the estimate slowly, by a sixteenth a time.
func (l *lead) observe(took time.Duration) {
	if quickest := l.quickest.Load(); quickest > 0 {
		took = min(took, time.Duration(quickest+quickest/16+1))
	}
	l.quickest.Store(int64(took))
}

// startIn returns how long to wait before the promotion for an event that happens after wait.
// If the event is closer than one round trip, the promotion starts when it happens.
func (l *lead) startIn(wait time.Duration) time.Duration {
	if quickest := time.Duration(l.quickest.Load()); quickest < wait {
		return wait - quickest
	}
	return wait
}
