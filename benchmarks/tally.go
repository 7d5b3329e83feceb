package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// patience is how long no message may arrive before those that are missing count as lost.
const patience = 45 * time.Second

// tally notes which of n messages arrived, and when.
type tally struct {
	payload int            // bytes of each
	arrived []atomic.Int64 // Unix nanoseconds
	left    atomic.Int64
	twice   atomic.Int64
	cut     atomic.Int64 // how many had more or fewer bytes
	all     chan struct{}
}

func newTally(n int) *tally {
	t := &tally{payload: smallPayload, arrived: make([]atomic.Int64, n), all: make(chan struct{})}
	t.left.Store(int64(n))
	return t
}

// arrive notes the message with this payload.
func (t *tally) arrive(payload []byte) {
	if len(payload) != t.payload {
		t.cut.Add(1)
	}
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
	if n := t.cut.Load(); n > 0 {
		return fmt.Errorf("%d messages arrived with more or fewer than %d bytes", n, t.payload)
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

// lateness is how long after their due times the messages arrived, in ms. It fails if one was
// early, unless the system makes no promise about that. Server and benchmarks run on one machine,
// and so by one clock.
func (t *tally) lateness(s system, dues []time.Time) (figures, error) {
	late := make([]float64, len(dues))
	early := 0
	for i, due := range dues {
		late[i] = float64(t.arrived[i].Load()-due.UnixNano()) / float64(time.Millisecond)
		if late[i] < 0 {
			early++
		}
	}
	if early > 0 && !s.mayBeEarly {
		return nil, fmt.Errorf("%d of %d messages arrived before they were due", early, len(dues))
	}
	slices.Sort(late)
	quantile := func(q float64) float64 { return late[int(q*float64(len(late)-1))] }
	return figures{
		lateMin:    quantile(0),
		lateP50:    quantile(0.5),
		lateP99:    quantile(0.99),
		lateMax:    quantile(1),
		earlyCount: float64(early),
	}, nil
}
