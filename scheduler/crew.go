package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// workers is how many goroutines of a crew talk to Redis at most; each takes many topics in one round trip.
const workers = 4

// batch is how many topics go in one round trip at most.
const batch = 128

// crew is the workers for the topics of one server, so that one that does not answer keeps only its own waiting. Of a
// Cluster each node has a crew, made when it is first needed, which stays until Run ends.
type crew struct {
	agenda *delayqueue.Queue[appointment]
	lead   lead
}

func newCrew() *crew { return &crew{agenda: delayqueue.New[appointment](0)} }

// crews are all crews of a scheduler. A topic is the first one's until its server is known.
type crews struct {
	first *crew

	mu       sync.Mutex
	byServer map[string]*crew
	running  sync.WaitGroup // their workers, and what else Run has begun
}

func newCrews() *crews {
	first := newCrew()
	return &crews{first: first, byServer: map[string]*crew{queue.OnlyServer: first}}
}

// crewOf is the crew of the topic's server.
func (s *Scheduler) crewOf(ctx context.Context, t *served) (*crew, error) {
	server, err := t.topic.Master(ctx)
	if err != nil {
		return nil, err
	}
	s.crews.mu.Lock()
	defer s.crews.mu.Unlock()
	c := s.crews.byServer[server]
	if c == nil {
		c = newCrew()
		s.crews.byServer[server] = c
		s.start(ctx, c)
	}
	return c, nil
}

// start has a crew work until the context ends.
func (s *Scheduler) start(ctx context.Context, c *crew) {
	for range workers {
		s.crews.running.Go(func() { s.work(ctx, c) })
	}
}

// close ends all agendas.
func (c *crews) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, crew := range c.byServer {
		crew.agenda.Close()
	}
}

// enter enters an appointment in the agenda.
func (c *crew) enter(a appointment) {
	_ = c.agenda.Enqueue(context.Background(), a, a.at.Add(-early)) // closed: Run has ended
}

// work keeps appointments, as many as are due in one round trip, until the context ends.
func (s *Scheduler) work(ctx context.Context, c *crew) {
	var rest alarm
	defer rest.close()
	for {
		a, err := c.agenda.Dequeue(ctx)
		if err != nil {
			return
		}
		if s.begins(a) {
			rest.wait(time.Until(a.at))
			due, at := s.withOthers(c, a)
			rest.wait(time.Until(at))
			s.promote(ctx, c, due)
		}
	}
}

// withOthers returns the topic of an appointment whose time has come, with those of others that come as good as at the
// same time, and the time of the last.
func (s *Scheduler) withOthers(c *crew, a appointment) ([]*served, time.Time) {
	due, soon := []*served{a.served}, time.Now().Add(together)
	for len(due) < batch {
		next, ok := c.agenda.TryDequeue()
		if !ok {
			break
		}
		if next.at.After(soon) { // nobody waits for that one
			c.enter(next)
			break
		}
		if s.begins(next) {
			due = append(due, next.served)
			a = next // the appointments are in order
		}
	}
	return due, a.at
}
