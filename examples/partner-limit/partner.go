package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// takes is how long a call takes.
const takes = 30 * time.Millisecond

// slack is by how much later than Redis allowed it a call may reach the partner. So calls that were
// allowed over a little more than a second may come within one.
const slack = 200 * time.Millisecond

// partner stands for the partner's API. It counts the calls.
type partner struct {
	timeline example.Timeline
	done     func()

	mu       sync.Mutex
	calls    []time.Time    // when each came
	now      int            // calls that run
	most     int            // calls that ran at the same time
	answered int            // calls that have ended
	by       map[string]int // calls of each worker
}

func newPartner(done func()) *partner {
	return &partner{timeline: example.NewTimeline(), done: done, by: map[string]int{}}
}

// call takes one invoice.
func (p *partner) call(worker string) {
	p.mu.Lock()
	p.calls = append(p.calls, time.Now())
	p.by[worker]++
	p.now++
	p.most = max(p.most, p.now)
	if n := len(p.calls); n%20 == 0 {
		p.timeline.Printf("%d invoices sent", n)
	}
	p.mu.Unlock()

	time.Sleep(takes)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	p.answered++
	if p.answered == invoices {
		p.done()
	}
}

// busiest returns how many calls came within a second at most.
func (p *partner) busiest() (most int) {
	first := 0
	for last, at := range p.calls {
		for at.Sub(p.calls[first]) >= time.Second {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// summary prints what the partner saw, and checks it. err is why the program ends.
func (p *partner) summary(err error) error {
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	busiest := p.busiest()
	fmt.Printf("\nThe partner saw %d calls: at most %d in a second, and %d at a time.\n", len(p.calls), busiest, p.most)
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		fmt.Printf("%s made %d of them.\n", name, p.by[name])
	}
	switch allowed := burst + int(rate*(time.Second+slack).Seconds()); {
	case len(p.calls) != invoices:
		return fmt.Errorf("the partner saw %d calls, not %d", len(p.calls), invoices)
	case busiest > allowed:
		return fmt.Errorf("the partner saw %d calls in a second, more than %d", busiest, allowed)
	case p.most > atOnce:
		return fmt.Errorf("the partner saw %d calls at a time, more than %d", p.most, atOnce)
	}
	return nil
}
