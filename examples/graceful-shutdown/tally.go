package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// tally counts what the workers did.
type tally struct {
	more chan struct{} // has something when a job was counted

	mu     sync.Mutex
	times  map[string]int // by job, how often it was done
	worker map[string]int // by worker, how many it did
	last   time.Time
	pause  time.Duration // the longest between two jobs
}

func newTally() *tally {
	return &tally{more: make(chan struct{}, 1), times: map[string]int{}, worker: map[string]int{}}
}

func (t *tally) count(worker, job string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[job]++
	t.worker[worker]++
	now := time.Now()
	if !t.last.IsZero() {
		t.pause = max(t.pause, now.Sub(t.last))
	}
	t.last = now
	select {
	case t.more <- struct{}{}:
	default: // nobody has looked at the last one yet
	}
}

// jobs is how many jobs are done.
func (t *tally) jobs() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.times)
}

// of is how many a worker did.
func (t *tally) of(worker string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.worker[worker]
}

// summary prints the counts, and returns an error if they are not as they should be. left is how many
// messages are still in Redis.
func (t *tally) summary(left int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	repeated := 0
	for _, times := range t.times {
		repeated += times - 1
	}
	lost := jobs - len(t.times)
	fmt.Printf("\n%d jobs, lost: %d, repeated: %d, left in Redis: %d; the longest pause: %d ms.\n",
		jobs, lost, repeated, left, t.pause.Milliseconds())
	if lost+repeated > 0 || left > 0 {
		return errors.New("not every job was done once")
	}
	return nil
}
