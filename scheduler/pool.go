package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// workers is how many goroutines of a pool talk to Redis; each serves many topics in one round
// trip.
const workers = 4

// batch is the maximum number of topics in one round trip.
const batch = 128

// pool is a worker pool for the topics of one server, so that a server that does not answer delays
// its own topics only. A Cluster has one pool per node, created on first use and kept until Run
// ends.
type pool struct {
	tasks *delayqueue.Queue[task]
	lead  lead
}

func newPool() *pool { return &pool{tasks: delayqueue.New[task](0)} }

// pools holds all pools of a scheduler. A topic belongs to the first pool until its server is
// known.
type pools struct {
	first *pool

	mu       sync.Mutex
	byServer map[string]*pool
	running  sync.WaitGroup // all goroutines of Run
}

func newPools() *pools {
	first := newPool()
	return &pools{first: first, byServer: map[string]*pool{servers.OnlyServer: first}}
}

// findPool returns the pool of the topic's server, and starts it if it is new.
func (s *Scheduler) findPool(ctx context.Context, t *served) (*pool, error) {
	server, err := t.topic.Master(ctx)
	if err != nil {
		return nil, err
	}
	s.pools.mu.Lock()
	defer s.pools.mu.Unlock()
	p := s.pools.byServer[server]
	if p == nil {
		p = newPool()
		s.pools.byServer[server] = p
		s.startWorkers(ctx, p)
	}
	return p, nil
}

// startWorkers starts the workers of a pool; they run until the context ends.
func (s *Scheduler) startWorkers(ctx context.Context, p *pool) {
	for range workers {
		s.pools.running.Go(func() { s.work(ctx, p) })
	}
}

// close closes the task queues of all pools.
func (p *pools) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.byServer {
		pool.tasks.Close()
	}
}

// add queues a task.
func (p *pool) add(next task) {
	// The only error is that the queue is closed, after Run has ended.
	_ = p.tasks.Enqueue(context.Background(), next, next.at.Add(-early))
}

// work runs tasks until the context ends. Tasks that are due together share one round trip.
func (s *Scheduler) work(ctx context.Context, p *pool) {
	var rest alarm
	defer rest.close()
	for {
		next, err := p.tasks.Dequeue(ctx)
		if err != nil {
			return
		}
		if s.begins(next) {
			rest.wait(time.Until(next.at))
			due, at := s.collect(p, next)
			rest.wait(time.Until(at))
			s.promote(ctx, p, due)
		}
	}
}

// collect returns the topic of a due task, and the topics of tasks that are due almost at the same
// time. last is the time of the last of them.
func (s *Scheduler) collect(p *pool, first task) ([]*served, time.Time) {
	due, soon, last := []*served{first.served}, time.Now().Add(together), first.at
	for len(due) < batch {
		next, ok := p.tasks.TryDequeue()
		if !ok {
			break
		}
		if next.at.After(soon) { // too late to wait for
			p.add(next)
			break
		}
		if s.begins(next) {
			due = append(due, next.served)
			last = next.at // tasks come in order of time
		}
	}
	return due, last
}
