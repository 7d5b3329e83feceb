// Package scheduler moves messages of topics to ready when they are due. It also takes back
// messages whose lease has expired, and purges dead letters past their retention, or too many.
//
// A scheduler runs inside every Subscriber. A separate Scheduler is for programs that only publish,
// or whose subscribers come and go. Any number of schedulers may serve a topic. One of them, the
// holder, does the work. Another, the standby, takes over if the holder stops. Redis keeps these
// roles, and sends wake-ups when an earlier event is added.
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

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

var (
	// ErrInvalidConfig means that fields of the Config are invalid; each has a
	// redisdelay.FieldError. It is redisdelay.ErrInvalidConfig.
	ErrInvalidConfig = field.ErrInvalidConfig
	// ErrAlreadyRun means that Run was called a second time. It is redisdelay.ErrAlreadyRun.
	ErrAlreadyRun = queue.ErrAlreadyRun
)

// Config configures a Scheduler.
type Config struct {
	// Client is the connection to Redis. Required. The scheduler never closes it. A *redis.Ring is
	// refused, because its shards do not share wake-ups. A *redis.ClusterClient that reads from
	// replicas is refused, because a replica may be behind its master. A struct that embeds a
	// *redis.Client or a *redis.ClusterClient works as that does. Other types are refused.
	Client redis.UniversalClient

	// KeyPrefix is the start of all keys. It must equal the publishers'. Default "redisdelay".
	// Braces are not allowed.
	KeyPrefix string

	// Topics are the topics to serve. Default nil: all topics under the prefix; a new topic is
	// served within a second of its first use. Empty but not nil: none until Add, for a program
	// that adds its topics later.
	Topics []string
}

func (c *Config) setDefaults() {
	c.KeyPrefix = cmp.Or(c.KeyPrefix, queue.DefaultPrefix)
}

// Validate reports all faults of the configuration at once. Errors wrap ErrInvalidConfig. New calls
// it.
func (c Config) Validate() error {
	return errors.Join(
		field.Check("Client", servers.CheckClient(c.Client)),
		field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
		checkTopics(c.Topics),
	)
}

func checkTopics(topics []string) error {
	var errs []error
	for i, topic := range topics {
		if fault := queue.FaultOfTopic(topic); fault != "" {
			errs = append(errs, field.Invalid(fmt.Sprintf("Topics[%d]", i), "%s", fault))
		}
	}
	return errors.Join(errs...)
}

// Scheduler serves topics. Its methods are safe for concurrent use.
type Scheduler struct {
	config  Config
	client  *servers.Client
	logger  watermill.LoggerAdapter
	started atomic.Bool   // Run was called
	mailbox *wake.Mailbox // receives wake-ups; nil until Run; written under mu
	pools   *pools
	outage  atomic.Bool // an outage of Redis was logged, and no topic has recovered since
	mute    atomic.Bool // it was logged that Redis does not say who listens
	permits rights.Permits
	news    wake.RegistryNews

	mu     sync.Mutex // guards the fields below
	topics map[string]*served
	ended  bool // Run has ended
}

// New returns a scheduler, which starts with Run. The error wraps ErrInvalidConfig.
func New(config Config, logger watermill.LoggerAdapter) (*Scheduler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	config.Topics = slices.Clone(config.Topics)
	logger = guard.Logger(logger)
	return &Scheduler{
		config: config,
		client: servers.MustClient(config.Client),
		logger: logger.With(watermill.LogFields{"component": "redisdelay.scheduler"}),
		pools:  newPools(),
		topics: map[string]*served{},
	}, nil
}

// Run serves the topics until the context ends, then returns nil within about a second. Unanswered
// calls to Redis delay this until the Client gives them up, a few seconds by default in go-redis.
// Run keeps trying while Redis cannot be reached. The
// error of a second Run wraps ErrAlreadyRun.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return fmt.Errorf("scheduler: %w", ErrAlreadyRun)
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

	s.startWorkers(ctx, s.pools.first)
	if s.config.Topics == nil {
		s.pools.running.Go(func() {
			wake.WatchTopics(ctx, s.client, s.config.KeyPrefix, s.found, s.registryRead)
		})
	}
	s.pools.running.Wait()
	s.end()
	return nil
}

// registryRead logs when reading the registry of topics begins to fail, and when it works again.
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
	s.pools.close()
	s.leave(left...)
}

// leave resigns from topics. It does so for each pool at the same time, so that a server that does
// not answer delays its own topics only. If it fails, others take over when the lease expires.
func (s *Scheduler) leave(topics ...*served) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	calls := map[*pool][]*queue.Call{}
	for _, t := range topics {
		if t.stop != nil {
			t.stop()
			t.mu.Lock()
			p := t.pool
			t.mu.Unlock()
			calls[p] = append(calls[p], t.topic.ResignCall(t.address))
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
			s.logger.Debug("Cannot resign, other schedulers take over when the lease expires", watermill.LogFields{"err": err})
			return
		}
	}
}

// Add makes the scheduler serve a topic, until Remove was called as often as Add.
func (s *Scheduler) Add(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, _ := s.serve(topic); t != nil {
		t.users++
	}
}

// found makes the scheduler serve a topic of the registry. A served topic that was just announced
// was created anew. It is promoted at once, because it did not yet know this scheduler's address.
func (s *Scheduler) found(topic string, announced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.serve(topic)
	if t == nil {
		return
	}
	t.listed = true
	if known && announced && s.mailbox != nil {
		s.promoteAt(t, time.Now())
	}
}

// serve returns the topic, new or already served, or nil after Run has ended. s.mu is held.
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

// Remove undoes one Add. After the last, the topic is no longer served, unless all topics are.
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
		idle = !t.busy // a busy worker leaves it when done
		t.mu.Unlock()
	}
	s.mu.Unlock()
	if idle {
		s.leave(t)
	}
}

// begin lets a topic be woken and plans its first promotion for now.
func (s *Scheduler) begin(t *served) {
	t.mu.Lock() // a wake-up may arrive at once
	t.receiver = s.mailbox.Receive(t.topic, func(argument string, settled func(time.Time)) { s.woken(t, argument, settled) })
	t.stop = t.receiver.Stop
	t.mu.Unlock()
	s.promoteAt(t, time.Now())
}
