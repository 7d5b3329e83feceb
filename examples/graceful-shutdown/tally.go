package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// tally counts the jobs of the workers.
type tally struct {
	more chan struct{} // receives after a job was counted

	mu     sync.Mutex
	times  map[string]int // number of times that each job was done
	worker map[string]int // number of jobs of each worker
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
	default: // a notice is waiting already
	}
}

// jobs returns how many jobs are done.
func (t *tally) jobs() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.times)
}

// of returns how many jobs a worker did.
func (t *tally) of(worker string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.worker[worker]
}

// summary prints the counts, and returns an error if they are wrong. left is the number of messages
// that are still in Redis.
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
