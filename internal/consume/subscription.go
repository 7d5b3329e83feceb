package consume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Config is what a Subscription is made of. The root package's SubscriberConfig documents the fields of the same names.
type Config struct {
	Client    *queue.Client
	Mailbox   *wake.Mailbox
	Logger    watermill.LoggerAdapter
	Topic     *queue.Topic
	Name      string // of the subscription, random
	Group     string
	Options   queue.GroupOptions
	OwnsGroup bool // the group ends with the subscription

	Unmarshal     func(topic string, body []byte) (*message.Message, error)
	Backoff       func(delivery int) time.Duration // does not panic
	MaxInFlight   int
	LeaseDuration time.Duration
	MaxExtension  time.Duration
	CloseTimeout  time.Duration
}

// Subscription is one Subscribe: the shell around a Machine. Two goroutines work on it, and a third under load:
//
//   - Run talks to Redis, one exchange after the other, each a pipeline of all there is to say. What comes up during an
//     exchange goes with the next one, so batches grow with the load.
//   - handOut hands the claimed messages to the consumer, in order.
//   - runBeside has exchanges beside Run's, where much is ready and the order does not count.
//
// They call the machine under mu, and carry out its effects after that. The consumer settles by Ack and Nack on the messages,
// which handOut notices, or a goroutine awaits.
type Subscription struct {
	Config
	group   *queue.Group
	ctx     context.Context // Subscribe's
	values  context.Context // the same without its end
	out     chan *message.Message
	closing chan struct{} // closed when the subscription begins to close
	close   func()
	others  sync.WaitGroup // the goroutines beside Run

	talk  signal // has Run look again
	feed  signal // has handOut look whether a message may be taken
	offer signal // has handOut look whether the message on offer, or the one before, has ended

	mu       sync.Mutex // guards machine and every InHand
	machine  *Machine
	watchdog watchdog

	link    link
	endings endings
}

// signal has a goroutine look again, now or when it next does.
type signal chan struct{}

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// New returns a subscription of a topic, which runs when Run is called. It closes when ctx ends.
func New(ctx context.Context, config Config) *Subscription {
	s := &Subscription{
		Config:  config,
		group:   config.Topic.Group(config.Group),
		ctx:     ctx,
		values:  context.WithoutCancel(ctx),
		out:     make(chan *message.Message),
		closing: make(chan struct{}),
		talk:    make(signal, 1),
		feed:    make(signal, 1),
		offer:   make(signal, 1),
		machine: NewMachine(Limits{
			Main:         config.Name,
			Second:       queue.Token(),
			MaxInFlight:  config.MaxInFlight,
			Lease:        config.LeaseDuration,
			MaxExtension: config.MaxExtension,
			GroupExpiry:  config.Options.Expiry,
		}, time.Now()),
	}
	s.link.ctx, s.link.cancel = context.WithCancel(context.Background())
	s.watchdog.timer = stoppedTimer(s.tick)
	s.endings.next = make(chan struct{})
	s.close = sync.OnceFunc(s.beginClosing)
	return s
}

// stoppedTimer returns a timer that calls f when it runs out after a Reset.
func stoppedTimer(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// Messages is the channel of the messages. Run closes it.
func (s *Subscription) Messages() <-chan *message.Message { return s.out }

// Close begins to close the subscription, and returns at once. Nothing more is handed out; messages that were have CloseTimeout
// to be settled. Calls to Redis go on for half a second longer.
func (s *Subscription) Close() { s.close() }

func (s *Subscription) beginClosing() {
	s.link.giveUp = time.AfterFunc(s.CloseTimeout, s.giveUp)
	s.link.end = time.AfterFunc(s.CloseTimeout+500*time.Millisecond, s.link.cancel)
	close(s.closing) // which the end of Run waits for
	s.step(func(m *Machine, _ time.Time) Effects { return m.Close() })
}

// giveUp ends the deliveries that are not settled when CloseTimeout is over. Their leases run out.
func (s *Subscription) giveUp() {
	s.mu.Lock()
	handed := s.machine.InHand()
	s.mu.Unlock()
	for _, in := range handed {
		if in.delivery.decided() { // handOut, which has not noticed, may be in the Unmarshaler
			s.settledNow(in.delivery)
		}
	}
	s.step(func(m *Machine, _ time.Time) Effects { return m.GiveUp() })
}

// ErrUntold means that Redis did not take all that it was told before the subscription had to end.
var ErrUntold = errors.New("what Redis was told last may not have reached it")

// Run talks to Redis until the subscription is closed and every message settled. It returns ErrUntold, with why, if Redis may
// not know all of that.
func (s *Subscription) Run() error {
	defer close(s.out)
	defer s.others.Wait()
	defer context.AfterFunc(s.ctx, s.close)()
	defer s.watchdog.timer.Stop()
	defer s.step(func(m *Machine, _ time.Time) Effects { return m.End() })
	address, stop := s.Mailbox.Receive(s.told)
	defer stop()
	defer s.endCalls()
	s.mu.Lock()
	s.machine.limits.Address = address
	s.mu.Unlock()
	s.others.Go(s.handOut)
	return s.converse()
}

// told takes a message from the mailbox: something is ready, or is to be judged, of which done then tells.
func (s *Subscription) told(_ string, done func()) {
	s.step(func(m *Machine, _ time.Time) Effects {
		if done == nil {
			return m.Woken()
		}
		return m.Asked(done)
	})
}

func (s *Subscription) endCalls() {
	<-s.closing
	s.link.cancel()
	s.link.giveUp.Stop()
	s.link.end.Stop()
}

// converse has one exchange after the other.
func (s *Subscription) converse() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		x, wake := s.plan()
		switch {
		case x != nil:
			err := s.exchange(x)
			s.report(err)
			if err == nil {
				continue
			}
			wake = time.Now().Add(s.link.pause())
		case s.finished():
			s.removeOwnGroup()
			return nil
		}
		timer.Reset(time.Until(wake))
		select {
		case <-s.talk:
		case <-timer.C:
		case <-s.link.ctx.Done():
			if s.link.fault == nil {
				return ErrUntold
			}
			return fmt.Errorf("%w: %w", ErrUntold, s.link.fault)
		}
	}
}

// plan returns the next exchange, or nil and when to plan again.
func (s *Subscription) plan() (*Exchange, time.Time) {
	if s.ctx.Err() != nil {
		s.close() // for what watches the context may only come to it later
	}
	now, poll := time.Now(), jitter(s.Mailbox.Poll())
	s.mu.Lock()
	for overruns := s.machine.Overruns(now); len(overruns) > 0; overruns = s.machine.Overruns(now) {
		s.mu.Unlock()
		s.endOverruns(overruns)
		s.mu.Lock()
	}
	x, wake, e := s.machine.Plan(now, poll)
	s.arm()
	s.mu.Unlock()
	s.carryOut(&e)
	return x, wake
}

// jitter spreads what would come at once: between 0.9 and 1.1 of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// endOverruns ends the deliveries whose handlers have run for too long, as failures.
func (s *Subscription) endOverruns(overruns []*InHand) {
	for _, in := range overruns {
		d := in.delivery
		if d.decided() {
			s.settledNow(d)
			continue
		}
		f := queue.Failure{
			Leased: &in.Leased,
			Retry:  queue.In(d.backoff()),
			Limit:  d.limit(),
			Reason: fmt.Sprintf("the handler ran for longer than %v (LeaseDuration and MaxExtension)", s.LeaseDuration+s.MaxExtension),
		}
		s.step(func(m *Machine, _ time.Time) Effects { return m.Overran(in, f) })
	}
}

func (s *Subscription) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Finished()
}

// removeOwnGroup ends the group of a subscription that has one of its own.
func (s *Subscription) removeOwnGroup() {
	if !s.OwnsGroup {
		return
	}
	if err := s.Topic.Remove(s.link.ctx, s.group.Name); err != nil {
		s.Logger.Debug("Cannot remove the subscription's group, a scheduler will", watermill.LogFields{"err": err})
	}
}

// step has the machine take in an event, and carries out the effects.
func (s *Subscription) step(event func(m *Machine, now time.Time) Effects) {
	s.mu.Lock()
	e := event(s.machine, time.Now())
	s.mu.Unlock()
	s.carryOut(&e)
}

// carryOut does what an event has brought about. s.mu is not held, since loggers and contexts are the user's.
func (s *Subscription) carryOut(e *Effects) {
	if e.Beside != nil {
		x := e.Beside
		s.others.Go(func() { s.runBeside(x) })
	}
	for _, ended := range e.Ended {
		ended.delivery.ending.end(causes[ended.Cause])
	}
	if len(e.Ended) > 0 {
		s.endings.tell()
	}
	for _, n := range e.Notes {
		s.log(n)
	}
	for _, done := range e.Answered {
		done()
	}
	if e.Wake&Talk != 0 {
		s.talk.send()
	}
	if e.Wake&Feed != 0 {
		s.feed.send()
	}
	if e.Wake&Offer != 0 {
		s.offer.send()
	}
}

// causes are what a message's context tells of its end.
var causes = [...]error{LeaseLost: ErrLeaseLost, Closed: queue.ErrClosed}

// watchdog calls tick, while an exchange is under way too. s.mu guards it.
type watchdog struct {
	timer *time.Timer
	at    time.Time // when it runs out; zero: it does not run
}

// arm has tick called when the machine wants it, or before. s.mu is held.
func (s *Subscription) arm() {
	if at := s.machine.Watch(); !at.IsZero() && (s.watchdog.at.IsZero() || at.Before(s.watchdog.at)) {
		s.watchdog.at = at
		s.watchdog.timer.Reset(time.Until(at))
	}
}

func (s *Subscription) tick() {
	s.step(func(m *Machine, now time.Time) Effects {
		s.watchdog.at = time.Time{}
		e := m.Tick(now)
		s.arm()
		return e
	})
}
