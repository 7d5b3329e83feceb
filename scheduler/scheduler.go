// Package scheduler does the due-time work of topics: it makes messages ready when they are due,
// takes back those whose lease has run out, and purges dead letters past their retention.
//
// A scheduler runs inside every Subscriber. A Scheduler of its own is for programs that only publish,
// or whose subscribers come and go. Any number may serve a topic: one does the work, another watches
// it, and Redis holds who is which.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

var (
	// ErrInvalidConfig means that a field of the Config cannot be used; the error names it.
	ErrInvalidConfig = errors.New("invalid scheduler configuration")
	// ErrAlreadyRun means that Run was called a second time.
	ErrAlreadyRun = errors.New("scheduler was run before")
)

// Config configures a Scheduler.
type Config struct {
	// Client is the connection to Redis, required. It stays the caller's: the scheduler never closes
	// it. A *redis.Ring is refused, because its shards do not share wake-ups, and a *redis.ClusterClient that
	// reads from replicas, which may be behind.
	// A struct that embeds a *redis.Client or a *redis.ClusterClient works as that does; other types are refused.
	Client redis.UniversalClient

	// KeyPrefix is what all keys begin with, the same as the publishers'. Default "redisdelay".
	// Braces are not allowed.
	KeyPrefix string

	// Topics are the topics to serve. If nil, all topics under the prefix are served, and a new one
	// within a second of its first use. Empty and not nil: none, until Add.
	Topics []string
}

func (c *Config) setDefaults() {
	c.KeyPrefix = cmp.Or(c.KeyPrefix, queue.DefaultPrefix)
}

// Validate reports every fault of the configuration at once.
func (c Config) Validate() error {
	return errors.Join(
		wrap("Client", queue.CheckClient(c.Client)),
		wrap("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
		checkTopics(c.Topics),
	)
}

func checkTopics(topics []string) error {
	var errs []error
	for i, topic := range topics {
		errs = append(errs, wrap(fmt.Sprintf("Topics[%d]", i), queue.CheckTopic(topic)))
	}
	return errors.Join(errs...)
}

func wrap(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s %w", ErrInvalidConfig, field, err)
}

// Scheduler serves topics. Its methods are safe for concurrent use.
type Scheduler struct {
	config  Config
	client  *queue.Client
	logger  watermill.LoggerAdapter
	started atomic.Bool
	mailbox *wake.Mailbox
	crews   *crews
	outage  atomic.Bool
	permits queue.Permits
	news    wake.RegistryNews

	mu     sync.Mutex
	topics map[string]*served
	ended  bool
}

// New returns a scheduler that serves nothing until Run.
func New(config Config, logger watermill.LoggerAdapter) (*Scheduler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Scheduler{
		config: config,
		client: queue.MustClient(config.Client),
		logger: logger.With(watermill.LogFields{"component": "redisdelay.scheduler"}),
		crews:  newCrews(),
		topics: map[string]*served{},
	}, nil
}

// Run serves the topics until the context ends, and returns nil then: within about a second, or, if calls to Redis are
// under way and have no answer, when the Client gives them up, which with the defaults of go-redis is a few seconds
// later. It keeps trying while Redis cannot be reached. A Scheduler runs once; a second Run returns ErrAlreadyRun.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return ErrAlreadyRun
	}
	mailbox, closeMailbox := wake.Open(s.client, s.config.KeyPrefix)
	defer closeMailbox()

	s.mu.Lock()
	s.mailbox = mailbox
	for _, t := range s.topics {
		s.begin(t)
	}
	s.mu.Unlock()
	for _, topic := range s.config.Topics {
		s.Add(topic)
	}

	s.start(ctx, s.crews.first)
	if s.config.Topics == nil {
		s.crews.running.Go(func() {
			wake.WatchTopics(ctx, s.client, s.config.KeyPrefix, s.found, s.registryRead)
		})
	}
	s.crews.running.Wait()
	s.end()
	return nil
}

// registryRead logs what is new of reading the registry of topics.
func (s *Scheduler) registryRead(err error) {
	if news := s.news.Of(err); news != "" && err == nil {
		s.logger.Info(news, nil)
	} else if news != "" {
		s.logger.Error(news, err, nil)
	}
}

// end leaves all topics, so that others take over at once.
func (s *Scheduler) end() {
	s.mu.Lock()
	s.ended = true
	left := slices.Collect(maps.Values(s.topics))
	s.topics = map[string]*served{}
	s.mu.Unlock()
	s.crews.close()
	s.leave(left...)
}

// leave resigns from topics, from those of each crew by themselves: a server that does not answer keeps only its own. What
// cannot be said is found out: the lease ends by itself.
func (s *Scheduler) leave(topics ...*served) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	calls := map[*crew][]*queue.Call{}
	for _, t := range topics {
		if t.stop != nil {
			t.stop()
			t.mu.Lock()
			c := t.crew
			t.mu.Unlock()
			calls[c] = append(calls[c], t.topic.ResignCall(t.address))
		}
	}
	var leaving sync.WaitGroup
	for _, its := range calls {
		leaving.Go(func() { s.resign(ctx, its) })
	}
	leaving.Wait()
}

func (s *Scheduler) resign(ctx context.Context, calls []*queue.Call) {
	for some := range slices.Chunk(calls, batch) {
		if err := queue.Do(ctx, s.client, some...); err != nil {
			s.logger.Debug("Cannot resign, others take over by themselves", watermill.LogFields{"err": err})
			return
		}
	}
}

// Add serves one more topic. Each Add wants one Remove.
func (s *Scheduler) Add(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, _ := s.serve(topic); t != nil {
		t.users++
	}
}

// found serves a topic of the registry. One that is served already, and has entered it just now, has been made anew: nobody
// could tell the scheduler of what is to come there.
func (s *Scheduler) found(topic string, announced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.serve(topic)
	if t == nil {
		return
	}
	t.listed = true
	if known && announced && s.mailbox != nil {
		s.look(t, time.Now())
	}
}

// serve begins to serve a topic, unless it is served already. It returns none after the end. s.mu is held.
func (s *Scheduler) serve(topic string) (t *served, known bool) {
	if s.ended {
		return nil, false
	}
	t, known = s.topics[topic]
	if !known {
		t = &served{topic: queue.NewTopic(s.client, s.config.KeyPrefix, topic)}
		s.topics[topic] = t
		if s.mailbox != nil {
			s.begin(t)
		}
	}
	return t, known
}

// Remove undoes one Add. After the last, the topic is served no more, unless all topics are.
func (s *Scheduler) Remove(topic string) {
	s.mu.Lock()
	t := s.topics[topic]
	if t == nil || t.users == 0 {
		s.mu.Unlock()
		return
	}
	t.users--
	idle := false
	if t.users == 0 && !t.listed {
		delete(s.topics, topic)
		t.mu.Lock()
		t.removed = true
		idle = !t.busy // else the worker leaves when it is done
		t.mu.Unlock()
	}
	s.mu.Unlock()
	if idle {
		s.leave(t)
	}
}

// begin gives a topic its address and has a worker look at it at once.
func (s *Scheduler) begin(t *served) {
	t.mu.Lock() // it may be told at once, and a worker look at it
	t.address, t.stop = s.mailbox.Receive(func(argument string, done func()) { s.told(t, argument, done) })
	t.mu.Unlock()
	s.look(t, time.Now())
}
