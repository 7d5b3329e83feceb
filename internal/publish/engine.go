// Package publish takes messages to Redis for a Publisher, and joins concurrent calls for a topic.
//
// An Engine has a topic for each name, and a topic has a line. The line is where callers wait: it
// has the mutex and the goroutine. Its joining decides which batches go together, and which go
// again after a refusal; that is pure. The topic makes the calls to Redis.
package publish

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Config is what an Engine needs. Evicts and RelistFailed are called under no lock, and
// concurrently.
type Config struct {
	Topic func(name string) *queue.Topic // returns a new handle on a topic
	Work  rights.Work                    // what the server's user has to be allowed
	// Abandoned tells whether the client may still read the messages of an earlier call; nil: it
	// never does.
	Abandoned func() bool

	MaxWaiting   int           // messages that may wait in a topic; 0: no limit
	WaitReplicas int           // replicas that have to confirm; 0: none
	WaitTimeout  time.Duration // how long a call waits for them
	CloseTimeout time.Duration // how long Close waits
	Relists      bool          // topics are entered in the registry again if it has lost them
	Closed       error         // wrapped by the error of a call that Close refuses or gives up

	// Evicts is called if the server may evict keys, by this maxmemory-policy.
	Evicts func(policy string)
	// RelistFailed is called if it is not known whether the registry has the topic.
	RelistFailed func(topic string, err error)
}

// Engine publishes batches. It is safe for concurrent use. It remembers every topic that it has
// published to.
type Engine struct {
	config  Config
	id      string // of this publisher, in Redis
	ids     *queue.IDs
	permits rights.Permits
	batches batches

	// calls is the context of calls to Redis: a caller's context ends its own wait only.
	calls    context.Context
	endCalls context.CancelFunc
	underWay sync.WaitGroup // Publish calls, and goroutines of lines

	// Looks at the registry, in the background: see topic.relist. They end when Close is called.
	looks    context.Context
	endLooks context.CancelFunc
	looking  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	topics map[string]*topic
}

// NewEngine returns an Engine. It does not talk to Redis yet.
func NewEngine(config Config) *Engine {
	e := &Engine{config: config, id: queue.Token(), ids: queue.NewIDs(), topics: map[string]*topic{}}
	e.calls, e.endCalls = context.WithCancel(context.Background())
	e.looks, e.endLooks = context.WithCancel(e.calls)
	return e
}

// NewBatch returns an empty batch for so many messages.
func (e *Engine) NewBatch(messages int) *Batch { return e.batches.get(messages) }

// Free takes a batch back that the caller is done with, for the memory that it has, unless a call
// under way has it.
func (e *Engine) Free(b *Batch) {
	if b.gone {
		return
	}
	if e.config.Abandoned == nil || !e.config.Abandoned() {
		e.batches.put(b)
	}
}

// Publish returns when the messages of the batch are in Redis, or are not going to be. If ctx ends
// while the batch waits for other calls, it returns the context's error, and nothing is published.
// If ctx ends later and the batch is Bounded, the error also wraps queue.ErrMaybePublished, and the
// call goes on. The caller may free the batch then.
func (e *Engine) Publish(ctx context.Context, name string, b *Batch) error {
	t, err := e.begin(name)
	if err != nil {
		return err
	}
	defer e.underWay.Done()
	if len(b.Messages) == 0 {
		return nil
	}
	return t.line.publish(ctx, b)
}

// begin counts a call as under way, unless the engine is closed, and returns the topic.
func (e *Engine) begin(name string) (*topic, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, e.config.Closed
	}
	e.underWay.Add(1)
	t := e.topics[name]
	if t == nil {
		t = e.newTopic(name)
		e.topics[name] = t
	}
	return t, nil
}

// Close refuses new calls, and waits for CloseTimeout until calls under way have ended. Then it
// gives them up, and returns an error. It may be called more than once.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.endLooks()
	called, looked := make(chan struct{}), make(chan struct{})
	go func() {
		e.underWay.Wait()
		close(called)
		e.looking.Wait() // a look without an answer ends when the client gives it up
		close(looked)
	}()
	timeout := time.NewTimer(e.config.CloseTimeout)
	defer timeout.Stop()
	select {
	case <-called:
		e.endCalls()
		select {
		case <-looked:
		case <-timeout.C:
		}
		return nil
	case <-timeout.C:
	}
	e.endCalls()
	select {
	case <-called:
	case <-time.After(time.Second / 2): // the client may wait for its own timeout
	}
	return fmt.Errorf("close publisher: calls of Publish were under way after %v (CloseTimeout) and are given up", e.config.CloseTimeout)
}
