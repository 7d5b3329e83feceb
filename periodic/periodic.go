package periodic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Periodic publishes the occurrences of schedules. Its methods are safe for concurrent use.
type Periodic struct {
	config    Config
	plain     *redisdelay.Publisher // Config.Publisher without its decorators
	publisher inside.Publisher
	now       func() time.Time // the program's own clock
	logger    watermill.LoggerAdapter
	permits   rights.Permits
	making    sync.WaitGroup               // calls of Message and Publish
	deaf      sync.Once                    // logs that nobody can wake the program
	moving    atomic.Pointer[wake.Mailbox] // whose clock is the program's own; nil before Run

	mu      sync.Mutex // guards the fields below
	topics  map[string]*topic
	running context.Context // of Run; nil before it
	mailbox *wake.Mailbox   // of Run
	loops   sync.WaitGroup  // one for each topic
}

// New returns a Periodic without schedules, which starts with Run. It does not talk to Redis yet.
// The error wraps ErrInvalidConfig. A nil logger logs nothing.
func New(config Config, logger watermill.LoggerAdapter) (*Periodic, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	plain := undecorated(config.Publisher)
	p := &Periodic{
		config:    config,
		plain:     plain,
		publisher: inside.Of(plain),
		logger:    guard.Logger(logger).With(watermill.LogFields{"component": "redisdelay.periodic"}),
		topics:    map[string]*topic{},
	}
	p.now = p.ownTime
	return p, nil
}

// ownTime returns the time of the program's own clock. A test moves it along with the server's.
func (p *Periodic) ownTime() time.Time {
	if mailbox := p.moving.Load(); mailbox != nil {
		return mailbox.Now()
	}
	return time.Now()
}

// Add adds schedules, before Run or during it. It adds all or none. Errors wrap ErrInvalidConfig or
// ErrExists. One error has the faults of all schedules.
func (p *Periodic) Add(schedules ...Schedule) error {
	added := make([]*schedule, len(schedules))
	var faults []error
	for i, s := range schedules {
		var err error
		if added[i], err = p.newSchedule(s); err != nil {
			faults = append(faults, fmt.Errorf("schedule %q of topic %q: %w", s.Name, s.Topic, err))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range added {
		same := func(other *schedule) bool { return other.Topic == s.Topic && other.Name == s.Name }
		if t := p.topics[s.Topic]; slices.ContainsFunc(added[:i], same) || t != nil && t.has(s.Name) {
			return fmt.Errorf("schedule %q of topic %q: %w", s.Name, s.Topic, ErrExists)
		}
	}
	for _, s := range added {
		t := p.topics[s.Topic]
		if t == nil {
			t = newTopic(p, s.Topic)
			p.topics[s.Topic] = t
			p.begin(t)
		}
		t.add(s)
	}
	return nil
}

// begin starts the loop of a topic, if Run has begun. p.mu is held.
func (p *Periodic) begin(t *topic) {
	if p.running != nil && p.running.Err() == nil {
		p.loops.Go(func() { t.run(p.running, p.mailbox) })
	}
}

// Remove removes a schedule, here and in Redis, with its occurrences that wait. Other programs that
// run it leave it, too. It comes back if a program that adds it starts. It does nothing if there is
// no such schedule. Errors wrap redisdelay.ErrForbidden, redisdelay.ErrServerFull or
// redisdelay.ErrLayout, or come from ctx or Redis.
func (p *Periodic) Remove(ctx context.Context, topicName, name string) error {
	p.mu.Lock()
	t := p.topics[topicName]
	if t == nil {
		t = newTopic(p, topicName)
	}
	p.mu.Unlock()
	t.drop(name)
	_, err := t.queue.AmendNew(ctx, queue.Amendment{What: queue.RemoveSchedule, Name: name})
	if err != nil {
		return fmt.Errorf("remove schedule %q of topic %q: %w", name, topicName, err)
	}
	return nil
}

// Run publishes occurrences until ctx ends. It keeps trying while Redis cannot be reached. Any
// number of programs may run the same schedules. When ctx ends, Run waits for calls of Message and
// Publish that are under way. After CloseTimeout it returns an error that names their schedules.
// The error of a second Run wraps ErrAlreadyRun.
func (p *Periodic) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.running != nil {
		p.mu.Unlock()
		return fmt.Errorf("periodic: %w", ErrAlreadyRun)
	}
	p.running = ctx
	mailbox, giveBack := p.publisher.Mailbox()
	defer giveBack()
	p.mailbox = mailbox
	p.moving.Store(mailbox)
	for _, t := range p.topics {
		p.begin(t)
	}
	p.mu.Unlock()

	<-ctx.Done()
	func() { // a loop that begins is among the loops after this, and no other begins
		p.mu.Lock()
		defer p.mu.Unlock()
	}()
	ended := make(chan struct{})
	go func() {
		p.loops.Wait()
		p.making.Wait()
		close(ended)
	}()
	timeout := time.NewTimer(p.config.CloseTimeout)
	defer timeout.Stop()
	select {
	case <-ended:
		return nil
	case <-timeout.C:
		return fmt.Errorf("periodic: after %v (CloseTimeout) calls were under way for schedules %s",
			p.config.CloseTimeout, strings.Join(p.busy(), ", "))
	}
}

// busy returns the schedules that have a call under way, a few of them.
func (p *Periodic) busy() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		for _, s := range t.all() {
			if !s.busySince().IsZero() && len(names) < 10 {
				names = append(names, fmt.Sprintf("%q", s.Name))
			}
		}
	}
	slices.Sort(names)
	return names
}
