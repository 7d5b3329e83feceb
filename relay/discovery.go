package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/delayqueue"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// checkers is how many goroutines check names of one server.
const checkers = 4

// tries is how often an announced name is looked for, over about 16 seconds. Its topic may just be
// in the making.
const tries = 10

// discovery finds out which names of the registry are topics for a relay, and begins to relay them.
// A name may have no topic, or a topic with a stream. Such a name is forgotten until the registry
// names it again. So goroutines and memory do not grow with the names that are no topics.
//
// The names of each server have goroutines of their own, so that a server that does not answer
// delays its own topics only.
type discovery struct {
	run *run

	mu         sync.Mutex
	candidates map[string]*candidate // by name, while they are checked
	servers    map[string]*server
	read       bool // the registry was read
}

// candidate is a name of the registry that may be a topic for a relay.
type candidate struct {
	topic     *queue.Topic
	announced bool  // it is new in the registry; guarded by discovery.mu
	failed    int   // checks; owned by the goroutine that checks
	fault     error // the last that was logged; owned by the goroutine that checks
}

// server has the candidates of one server.
type server struct {
	due  *delayqueue.Queue[*candidate]
	mu   sync.Mutex
	away bool // it does not answer, which is logged
}

func newDiscovery(r *run) *discovery {
	return &discovery{run: r, candidates: map[string]*candidate{}, servers: map[string]*server{}}
}

// found begins to check a name, unless it is checked or relayed. Until it is checked, Ready counts
// a new topic as missing: one that was announced, or that was there when the relay began.
func (d *discovery) found(ctx context.Context, name string, announced bool) {
	if c := d.begin(name, announced); c != nil {
		at := time.Now()
		if announced { // before those that a scan of the registry has found
			at = time.Time{}
		}
		d.enqueue(ctx, c, at)
	}
}

// begin returns a new candidate, or nil if the name is checked or relayed.
func (d *discovery) begin(name string, announced bool) *candidate {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.candidates[name]; c != nil {
		c.announced = c.announced || announced
		return nil
	}
	if _, served := d.run.served.Load(name); served {
		return nil
	}
	if announced || !d.read {
		d.run.subscribed(name, errNotYet)
	}
	c := &candidate{topic: queue.NewTopic(d.run.client, d.run.config.Subscriber.KeyPrefix, name), announced: announced}
	d.candidates[name] = c
	return c
}

// registryRead notes that the registry was read.
func (d *discovery) registryRead() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = true
}

// enqueue plans a check by the goroutines of the topic's server. It starts them for a new server.
func (d *discovery) enqueue(ctx context.Context, c *candidate, at time.Time) {
	name, _ := c.topic.Master(ctx) // after an error, the check fails too
	d.mu.Lock()
	s := d.servers[name]
	if s == nil {
		s = &server{due: delayqueue.New[*candidate](0)}
		d.servers[name] = s
		for range checkers {
			d.run.serving.Go(func() { d.work(ctx, s) })
		}
	}
	d.mu.Unlock()
	_ = s.due.Enqueue(ctx, c, at) // the only error is that ctx has ended
}

// work checks names until ctx ends.
func (d *discovery) work(ctx context.Context, s *server) {
	for {
		c, err := s.due.Dequeue(ctx)
		if err != nil {
			return
		}
		d.check(ctx, s, c)
	}
}

// check checks one name. It begins to relay a topic, and forgets a name that is none.
func (d *discovery) check(ctx context.Context, s *server, c *candidate) {
	name := c.topic.Name
	err := d.run.checkMode(ctx, name)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		s.answers()
		d.end(c, func() { d.run.serve(ctx, name, c.fault) })
		return
	case d.run.notForRelay(err):
		s.answers()
		d.run.subscribed(name, nil)
		if d.forgets(c, err) {
			return
		}
	default:
		d.run.subscribed(name, err)
		if s.isNews(c, err) {
			c.fault = err
			d.run.logger.Error("Cannot subscribe, trying again", err, watermill.LogFields{"topic": name})
		}
	}
	c.failed++
	d.enqueue(ctx, c, time.Now().Add(untilNext(c.failed)))
}

// forgets ends the checks of a name that has no topic for a relay. It returns false for a topic
// that may just be in the making.
func (d *discovery) forgets(c *candidate, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(err, queue.ErrNotFound) && c.announced && c.failed < tries {
		return false
	}
	delete(d.candidates, c.topic.Name)
	return true
}

// end ends the checks of a name, and does something with it before the name may be found again.
func (d *discovery) end(c *candidate, then func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	then()
	delete(d.candidates, c.topic.Name)
}

// untilNext returns how long to wait after so many failures in a row.
var untilNext = redisdelay.ExponentialBackoff(25*time.Millisecond, 5*time.Second)

// answers notes that the server answers.
func (s *server) answers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

// isNews tells whether an error has to be logged: the first of an outage of the server, or another
// of this name than before.
func (s *server) isNews(c *candidate, err error) bool {
	if !servers.Unreachable(err) {
		return c.fault == nil || c.fault.Error() != err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.away
	s.away = true
	return first
}
