package consume

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Config is what a Subscription needs. The root package's SubscriberConfig documents the fields
// that have the same names there.
type Config struct {
	Client    *servers.Client
	Mailbox   *wake.Mailbox
	Logger    watermill.LoggerAdapter
	Topic     *queue.Topic
	Name      string // of the subscription, random
	Group     string
	Options   queue.GroupOptions
	OwnsGroup bool // the group ends with the subscription

	Unmarshal     func(topic string, body []byte) (*message.Message, error)
	Backoff       func(delivery int) time.Duration // must not panic
	MaxInFlight   int
	LeaseDuration time.Duration
	MaxExtension  time.Duration
	CloseTimeout  time.Duration

	Common *Common // nil: the subscription is the consumer's only one
}

// Subscription is one Subscribe: the shell around a Machine. Two goroutines work on it, and a third
// one under load:
//
//   - Run talks to Redis, one exchange after the other. Each is a pipeline of all there is to say,
//     so batches grow with the load.
//   - handing.run hands the claimed messages to the consumer, in order. Another goroutine replaces it
//     while the Unmarshaler hangs.
//   - runBeside carries out exchanges beside those of Run.
//
// The consumer settles messages by Ack and Nack. handOut notices that for the message that was
// handed over last. For each earlier one that is not settled by then, a goroutine waits.
type Subscription struct {
	Config
	group   *queue.Group
	ctx     context.Context // Subscribe's
	values  context.Context // has the values of ctx, but does not end with it
	out     chan *message.Message
	leaving chan struct{} // closed when nothing more is handed out
	leave   func()
	closing chan struct{} // closed when the subscription begins to close
	close   func()
	others  sync.WaitGroup // the goroutines beside Run

	talk  signal // has Run look again
	feed  signal // has handOut look whether it can take a message
	offer signal // has handOut look whether a delivery has ended

	mu       sync.Mutex // guards machine, lost, watchdog, reading, and every InHand but for its body
	machine  *Machine
	lost     []lost // deliveries whose lease was lost, and that are not known to have been outlived
	watchdog watchdog
	reading  reading

	link     link
	endings  endings
	receiver *wake.Receiver // of wake-ups; set by Run
	contact  Contact        // the receiver's last; only Run uses it
	holds    bool           // what the receiver was told last
	signing  signing
	share    *Share // of Common.Budget, or nil
	tooLate  tooLate
}

// signal has a goroutine look again: now, or when it looks next.
type signal chan struct{}

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// New returns a subscription, which runs when Run is called. It closes when ctx ends.
func New(ctx context.Context, config Config) *Subscription {
	s := &Subscription{
		Config:  config,
		group:   config.Topic.Group(config.Group),
		ctx:     ctx,
		values:  context.WithoutCancel(ctx),
		out:     make(chan *message.Message),
		leaving: make(chan struct{}),
		closing: make(chan struct{}),
		talk:    make(signal, 1),
		feed:    make(signal, 1),
		offer:   make(signal, 1),
		machine: NewMachine(Limits{
			Main:         config.Name,
			Second:       queue.SecondLane(config.Name),
			MaxInFlight:  config.MaxInFlight,
			Lease:        config.LeaseDuration,
			MaxExtension: config.MaxExtension,
			GroupExpiry:  config.Options.Expiry,
			SingleActive: config.Options.SingleActive,
		}, time.Now()),
	}
	if config.Options.SingleActive {
		s.group.SingleActive()
	}
	s.link.ctx, s.link.cancel = context.WithCancel(context.Background())
	s.watchdog.timer = stoppedTimer(s.tick)
	s.reading.timer = stoppedTimer(s.watchUnmarshaler)
	s.endings.next = make(chan struct{})
	s.leave = sync.OnceFunc(s.beginLeaving)
	s.close = sync.OnceFunc(s.beginClosing)
	if config.Common != nil {
		s.out = config.Common.Out
		s.share = config.Common.Budget.Join(s.placesCame)
	}
	return s
}

// stoppedTimer returns a timer that calls f when it runs out after a Reset.
func stoppedTimer(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// Messages returns the channel of the messages. Run closes it, unless it is Common's.
func (s *Subscription) Messages() <-chan *message.Message { return s.out }

// Cut returns a channel that is closed when the calls to Redis have to end. If Redis does not
// answer at all, Run returns only when the client has given up the last one.
func (s *Subscription) Cut() <-chan struct{} { return s.link.ctx.Done() }

// Run talks to Redis until the subscription is closed and every message settled. It returns
// ErrUntold, with the reason, if Redis may not know all settlements.
func (s *Subscription) Run() error {
	if s.Common == nil {
		defer close(s.out)
	}
	defer func() { s.logTooLate(time.Now().Add(noneFor), time.Time{}) }()
	if s.share != nil {
		defer s.share.Leave()
	}
	defer s.others.Wait()
	defer s.endSigning()
	stopWatching := context.AfterFunc(s.ctx, s.close)
	defer stopWatching()
	defer func() {
		s.step(func(m *Machine, _ time.Time) Effects { return m.End() })
		s.watchdog.timer.Stop()
		s.reading.timer.Stop()
	}()
	s.receiver = s.Mailbox.Receive(s.Topic, s.told)
	defer s.receiver.Stop()
	defer s.endCalls()
	s.others.Add(1)
	go (&handing{Subscription: s, glances: stoppedTimer(s.offer.send)}).run()
	return s.talkToRedis()
}

// extend is the argument of a message to a subscription that may have lost a lease. The kill script
// sends it.
const extend = "extend"

// told takes a message from the mailbox. It is a wake-up, the news that a lease may be lost, or the
// question of a test that wants to be told when every message is judged; settled tells that. A
// subscription has nothing to do at a time of the server's clock: a scheduler wakes it.
func (s *Subscription) told(argument string, settled func(next time.Time)) {
	if argument == wake.Anew || argument == wake.Sign {
		s.sign()
		if argument == wake.Sign {
			return
		}
	}
	s.step(func(m *Machine, _ time.Time) Effects {
		switch {
		case argument == extend:
			return m.Doubted()
		case argument == wake.Anew:
			return m.Shown()
		case settled == nil:
			return m.Woken()
		}
		return m.Asked(func() { settled(time.Time{}) })
	})
}

// talkToRedis has one exchange after the other.
func (s *Subscription) talkToRedis() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		x, wake := s.plan()
		wake = s.logTooLate(time.Now(), wake)
		switch {
		case x != nil:
			err := s.exchange(x)
			s.report(err)
			if err == nil {
				continue
			}
			wake = time.Now().Add(s.link.pause())
		case wake.IsZero():
			s.close() // Leave set no limit for the last calls
			s.standDown()
			s.signOff()
			s.removeOwnGroup()
			return nil
		}
		timer.Reset(time.Until(wake))
		select {
		case <-s.talk:
		case <-timer.C:
		case <-s.link.ctx.Done():
			return s.cutOff()
		}
	}
}

// plan returns the next exchange, or nil and when to plan again.
func (s *Subscription) plan() (x *Exchange, next time.Time) {
	if guard.Err(s.ctx) != nil {
		s.close() // the function that waits for the end of ctx may run later
	}
	poll, holds := wake.Jitter(s.Mailbox.Poll()), false
	if address := s.receiver.Address(s.link.ctx); address != s.contact.Address {
		s.contact = Contact{address, queue.Sign(address, s.LeaseDuration)}
		s.mu.Lock()
		s.signing.worker = s.contact.Worker
		s.mu.Unlock()
	}
	s.step(func(m *Machine, now time.Time) (e Effects) {
		s.lost = slices.DeleteFunc(s.lost, func(l lost) bool {
			outlived := l.outlived()
			if outlived {
				m.Outlived(&l.inHand)
			}
			return outlived
		})
		came := s.askForPlaces(now, false)
		x, next, e = m.Plan(now, poll, s.contact)
		e.Wake |= came &^ Talk
		holds = m.Holds()
		return e
	})
	if holds != s.holds {
		s.holds = holds
		s.receiver.Holds(holds)
	}
	return x, next
}

// lost is a delivery whose lease was lost while the consumer, or the Unmarshaler, had its message.
type lost struct {
	*Delivery
	unread bool // the Unmarshaler had it
}

// outlived reports whether the message has not ended the process: the consumer has settled it, or
// the Unmarshaler has returned. s.mu is held.
func (l lost) outlived() bool {
	if l.unread {
		return !l.slow
	}
	select {
	case <-l.msg.Acked():
		return true
	case <-l.msg.Nacked():
		return true
	default:
		return false
	}
}

// outlive has Run look again when the consumer settles a message whose lease was lost.
func (s *Subscription) outlive(msg *message.Message) {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-s.link.ctx.Done():
		return
	}
	s.talk.send()
}

// endOverrun ends the delivery of a message whose handler, or Unmarshaler, has run for too long.
// That is a failure, unless the consumer has just settled the message.
func (s *Subscription) endOverrun(in *InHand) {
	f := queue.Failure{Leased: &in.Leased}
	who := "Unmarshaler"
	if s.isSlow(in.delivery) { // what its metadata says is not known
		f.Retry, f.Limit = queue.In(s.Backoff(in.number())), s.Options.MaxDeliveries
	} else {
		if s.settledNow(in.delivery) {
			return
		}
		who = "handler"
		f.Retry, f.Limit = queue.In(in.delivery.backoff()), in.delivery.limit()
	}
	f.Reason = fmt.Sprintf("the %s ran for longer than %v (LeaseDuration and MaxExtension)", who, s.LeaseDuration+s.MaxExtension)
	s.step(func(m *Machine, _ time.Time) Effects { return m.Overran(in, f) })
}

// step has the machine take in an event, and carries out its effects. Contexts of deliveries that
// were lost end under the lock, before any later event can answer that all is judged. No user code
// runs there: package context starts goroutines for that.
func (s *Subscription) step(event func(m *Machine, now time.Time) Effects) {
	s.mu.Lock()
	now := time.Now() // under the lock, so that the machine's time never goes back
	e := event(s.machine, now)
	e.Wake |= s.askForPlaces(now, false)
	for _, ended := range e.Ended {
		ended.delivery.ending.end(causes[ended.Cause])
		if d := ended.delivery; ended.Cause == LeaseLost && !ended.handed.IsZero() {
			s.lost = append(s.lost, lost{d, d.slow})
			if !d.slow {
				s.others.Go(func() { s.outlive(d.msg) })
			}
		}
	}
	for _, in := range e.Interrupted {
		in.delivery.ending.end(errClosing)
	}
	s.arm()
	s.mu.Unlock()
	s.carryOut(&e)
}

// carryOut carries out the other effects of an event. s.mu must not be held: loggers and Backoff
// are the user's.
func (s *Subscription) carryOut(e *Effects) {
	if e.Settled != nil {
		e.Settled.delivery.ending.end(errSettled)
	}
	if len(e.Ended) > 0 {
		s.endings.tell()
	}
	for _, n := range e.Notes {
		s.log(n)
	}
	for _, in := range e.Overruns {
		s.endOverrun(in)
	}
	for _, done := range e.Answered {
		done()
	}
	if e.Cut {
		s.link.cancel()
	}
	if x := e.Beside; x != nil {
		s.others.Go(func() { s.runBeside(x) })
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

// askForPlaces tells the budget how many places the subscription could use, if it has one, and the
// machine how many it has. s.mu is held. hands is that of Machine.Wants.
func (s *Subscription) askForPlaces(now time.Time, hands bool) Wake {
	if s.share == nil {
		return 0
	}
	return s.machine.Granted(s.share.Hold(s.machine.Wants(now, hands)))
}

// placesCame has both goroutines look again, because the subscription has got places.
func (s *Subscription) placesCame() {
	s.talk.send()
	s.feed.send()
}

// causes are the causes of contexts that end before their message is settled.
var causes = [...]error{LeaseLost: ErrLeaseLost, TakenAway: ErrLeaseLost, Closed: errClosing}

// watchdog calls tick, also while an exchange is under way.
type watchdog struct {
	timer *time.Timer
	at    time.Time // when the timer runs out; zero: it does not run
}

// arm has tick called at the time that the machine wants, or earlier. s.mu is held.
func (s *Subscription) arm() {
	at := s.machine.Watch()
	if !at.IsZero() && (s.watchdog.at.IsZero() || at.Before(s.watchdog.at)) {
		s.watchdog.at = at
		s.watchdog.timer.Reset(time.Until(at))
	}
}

func (s *Subscription) tick() {
	s.step(func(m *Machine, now time.Time) Effects {
		s.watchdog.at = time.Time{}
		return m.Tick(now)
	})
}
