package faulttest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
)

// sampler reads the state of Redis again and again. It records in the history each message that is
// gone since the last sample, with the lease that it had then.
type sampler struct {
	w    *World
	stop func()

	mu    sync.Mutex
	looks int
	fails Event   // the present series of failed samples, as an outage
	blind []Event // earlier series
	early bool    // the test has stopped the sampling
	found []string
	seen  map[queuetest.Place]queuetest.Holding
	began int64 // start of the last sample
}

func newSampler(w *World) *sampler {
	s := &sampler{w: w}
	s.stop = repeat(func(ctx context.Context) time.Duration {
		began := time.Now()
		found := s.look(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.found) < 100 {
			s.found = append(s.found, found...)
		}
		// A sample blocks the server, so take one at most a third of the time.
		return max(20*time.Millisecond, 2*time.Since(began))
	})
	return s
}

// repeat calls do again and again, after the pause that it returns, until stop is called.
func repeat(do func(context.Context) (pause time.Duration)) (stop func()) {
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(do(ctx)):
			}
		}
	}()
	return func() {
		end()
		<-done
	}
}

// look takes one sample, and returns its violations.
func (s *sampler) look(ctx context.Context) []string {
	began := time.Now().UnixNano()
	held, found, err := queuetest.Holdings(ctx, s.w.Client, s.w.Prefix)
	ended := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.fails.Sent == 0 {
			s.fails = Event{Sent: began, Err: err.Error()}
		}
		return nil
	}
	s.looks++
	s.sees(ended)
	var gone []Event
	for at, was := range s.seen {
		if _, there := held[at]; !there {
			gone = append(gone, Event{
				Kind: Gone, At: ended, Sent: s.began, Topic: at.Topic, Group: at.Group, ID: at.ID, Outcome: was.State, Token: was.Token,
			})
		}
	}
	s.w.journal.Write(gone...)
	s.seen, s.began = held, began
	return found
}

// sees records the end of a series of failed samples. s.mu is held.
func (s *sampler) sees(at int64) {
	if s.fails.Sent != 0 {
		s.fails.At = at
		s.blind = append(s.blind, s.fails)
		s.fails = Event{}
	}
}

// finish takes a last sample, and returns the violations of all samples.
func (s *sampler) finish(ctx context.Context) []string {
	s.stop()
	s.mu.Lock()
	looks := s.looks
	s.mu.Unlock()
	found := s.look(ctx)
	for range 50 { // a busy machine may be slow to answer
		if s.early || s.looks > looks {
			break
		}
		time.Sleep(100 * time.Millisecond)
		found = s.look(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found = append(s.found, found...)
	if s.early {
		return found
	}
	if s.looks == looks {
		found = append(found, "the last look failed: "+s.fails.Err)
	}
	if looks == 0 {
		found = append(found, "nobody has looked while the workers were at work")
	}
	s.sees(time.Now().UnixNano())
	return found
}

// unseeing is the longest series of failed samples allowed, without outages.
const unseeing = 30 * time.Second

// blindness returns where samples failed for too long although the server could be reached.
func (s *sampler) blindness(history []Event) (found []string) {
	var out spans
	for _, e := range history {
		if e.Kind == Outage {
			out = append(out, span{e.Sent, e.At})
		}
	}
	out = out.union()
	for _, e := range s.blind {
		if d := time.Duration(e.At-e.Sent) - out.within(e.Sent, e.At); d > unseeing {
			found = append(found, fmt.Sprintf("looks have failed for %v: %s", d, e.Err))
		}
	}
	return found
}

const (
	beat   = 20 * time.Millisecond
	missed = 100 * time.Millisecond // longer without an answer is an outage
)

// watch pings the server again and again until stop is called. It records in the history when the
// server does not answer, for whatever reason.
func (w *World) watch() (stop func()) {
	last := time.Now()
	note := func() {
		if now := time.Now(); now.Sub(last) > missed {
			w.journal.Write(Event{Kind: Outage, Sent: last.UnixNano(), At: now.UnixNano(), Err: "the server does not answer"})
		}
	}
	end := repeat(func(ctx context.Context) time.Duration {
		if began := time.Now(); w.answers(ctx) {
			note()
			last = began
		}
		return beat
	})
	return sync.OnceFunc(func() {
		end()
		note()
	})
}

// answers returns whether the servers of all topics answer. A killed connection is no outage.
func (w *World) answers(ctx context.Context) bool {
	for _, topic := range w.Topics {
		k := queue.NewKeys(w.Prefix, topic)
		var err error
		for range 3 {
			if err = w.Client.Exists(ctx, k.Meta(), k.Groups(), k.Messages()).Err(); err == nil {
				break
			}
		}
		if err != nil {
			return false
		}
	}
	return true
}

// proxies returns the proxies that workers used.
func (w *World) proxies() (used []*Proxy) {
	found := map[*Proxy]bool{}
	for _, r := range w.running() {
		for _, addr := range r.Place.Addrs {
			if p, ok := proxies.Load(addr); ok && !found[p.(*Proxy)] {
				found[p.(*Proxy)] = true
				used = append(used, p.(*Proxy))
			}
		}
	}
	return used
}

// During calls do, and records its duration as an outage in the history.
func (w *World) During(what string, do func()) {
	began := time.Now().UnixNano()
	do()
	w.Note(Event{Kind: Outage, Sent: began, Err: what})
}
