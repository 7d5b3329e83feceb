// Package machine tells how much of the machine a benchmark gets, so that its figures can be
// trusted. Only runners of benchmarks use it. machine.go has the fixed piece of work, and the rule
// by which a measurement is made again. load.go reads the load.
package machine

import (
	"context"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Tolerance is by how much the measures of a fixed piece of work may differ. Tries is how often a
// measurement is made at most.
const (
	Tolerance = 0.10
	Tries     = 3
)

// A piece of work hashes this many bytes on each processor, and is done so many times.
const (
	workBytes = 8 << 20
	workTimes = 5
)

var work = sync.OnceValue(func() []byte { return make([]byte, workBytes) })

// Measure does a fixed piece of work on all processors at once, five times, and returns the median
// of the times that took. Any other program that runs makes it longer.
func Measure() time.Duration {
	data := work()
	took := make([]time.Duration, workTimes)
	for i := range took {
		start := time.Now()
		var processors sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			processors.Go(func() { sha256.Sum256(data) })
		}
		processors.Wait()
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[workTimes/2]
}

// State is how the machine was while something was measured.
type State struct {
	Before time.Duration `json:"before"` // Measure, just before
	After  time.Duration `json:"after"`  // Measure, just after
	Tries  int           `json:"tries"`  // measurements that were made, of which the last counts
}

// Moved returns whether the two measures differ by more than Tolerance of the smaller one, so that
// the machine was not the same before and after.
func (s State) Moved() bool {
	return float64(max(s.Before, s.After)) > (1+Tolerance)*float64(min(s.Before, s.After))
}

// Steadily calls run until the machine was the same before and after, and tries times at most. It
// returns the state of the last call, which may have Moved. An error of run, or the end of ctx,
// ends it at once. measure is Measure but in tests.
func Steadily(ctx context.Context, tries int, measure func() time.Duration, run func() error) (s State, err error) {
	for s.Tries < max(tries, 1) {
		s.Tries++
		s.Before = measure()
		if err := run(); err != nil {
			return s, err
		}
		if err := ctx.Err(); err != nil {
			return s, err
		}
		if s.After = measure(); !s.Moved() {
			break
		}
	}
	return s, nil
}
