package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Limits are what a Machine is given once.
type Limits struct {
	Main, Second string        // names of the lanes
	Address      string        // where the subscription is woken
	MaxInFlight  int           // messages that the consumer has at once
	Lease        time.Duration // of a message
	MaxExtension time.Duration // of a lease after its first end; negative: no limit
	GroupExpiry  time.Duration // of the group without use; 0: none
}

// Machine decides for one subscription what to say to Redis, what to hand out, and when. It is pure: it has no I/O, lock,
// goroutine, timer, logger or clock, and the same events at the same times have the same effects. Its caller serialises the calls,
// and carries out the effects that they return.
type Machine struct {
	limits  Limits
	phase   Phase
	talk    TalkState
	held    Held
	untold  Settlements // decided, and not told to Redis
	main    Lane
	second  Lane
	supply  Supply
	brought int // messages, by the main lane's last claim
	suspect Suspect
	taker   Taker
	judging Judging
	clock   ServerClock
	dates   Dates
	counts  queue.Counts // to be told with the next claim
	out     Effects      // of the event that is being taken in
}

// Phase is how far the subscription has come. It never goes back.
type Phase int

const (
	Open     Phase = iota
	Draining       // it closes: nothing more is handed out or claimed
	Left           // Redis knows that, and wakes others
	Over           // the talk with Redis has ended
)

// TalkState is what the main lane's exchange waits for.
type TalkState int

const (
	Idle      TalkState = iota // there is nothing to say
	Gathering                  // acks wait for others
	Asking                     // an exchange is under way
)

// NewMachine returns the machine of a subscription that begins at a time.
func NewMachine(limits Limits, now time.Time) *Machine {
	return &Machine{
		limits: limits,
		main:   Lane{name: limits.Main, number: 1},
		second: Lane{name: limits.Second, number: 1},
		taker:  Taker{room: limits.MaxInFlight, ahead: mostAhead},
		dates:  Dates{extend: now.Add(limits.Lease / 3)},
	}
}

// effects returns what the event that was taken in has brought about.
func (m *Machine) effects() Effects {
	out := m.out
	m.out = Effects{}
	return out
}

// Woken takes in that a message may be ready which no claim has told of.
func (m *Machine) Woken() Effects {
	m.supply = Unknown
	return Effects{Wake: Talk}
}

// Asked takes in that somebody wants to be told when every message is judged by the server's time. It counts as a wake-up, and
// leases may have ended, of which only an extension tells.
func (m *Machine) Asked(done func()) Effects {
	m.supply = Unknown
	if m.held.len()+m.coming() > 0 {
		m.dates.extend = time.Time{}
	}
	if m.phase == Over {
		return Effects{Answered: []func(){done}}
	}
	m.judging.asked = append(m.judging.asked, done)
	return Effects{Wake: Talk}
}

// Close takes in that the subscription closes.
func (m *Machine) Close() Effects {
	m.phase = max(m.phase, Draining)
	return Effects{Wake: Talk | Offer}
}

// TakerGone takes in that nothing more is handed out.
func (m *Machine) TakerGone() Effects {
	m.taker.state = Gone
	return Effects{Wake: Talk}
}

// GiveUp ends the deliveries of all messages in hand: CloseTimeout is over. Their leases run out.
func (m *Machine) GiveUp() Effects {
	for len(m.held.inHand) > 0 {
		m.abandon(m.held.inHand[0], Closed)
	}
	m.out.Wake |= Talk
	return m.effects()
}

// End takes in that nobody talks to Redis any more, and answers all who have asked.
func (m *Machine) End() Effects {
	m.phase = Over
	m.dates.watch = time.Time{}
	m.answer(&m.judging.asked)
	m.answer(&m.judging.pending)
	return m.effects()
}

// Finished reports whether the subscription has closed, and Redis was told everything.
func (m *Machine) Finished() bool {
	return m.phase == Left && m.taker.state == Gone && m.held.len() == 0 && m.untold.empty() &&
		m.main.claim == nil && m.second.claim == nil && m.second.remembered == 0
}

// Take moves the next message into the consumer's hands, to be offered. It returns false if there is none for it now.
func (m *Machine) Take(now time.Time, in *InHand) (bool, Effects) {
	buffer := &m.held.buffer
	if buffer.len() == 0 || len(m.held.inHand) >= m.limits.MaxInFlight || m.taker.state == Paused || m.taker.state == Gone || m.phase != Open {
		return false, Effects{}
	}
	if now.After(buffer.first().deadline) { // the process stood still
		m.loseExpired(now)
		return false, m.effects()
	}
	m.held.take(now, in)
	if buffer.len() == 0 { // the consumer takes all that it is given
		m.taker.room += min(m.taker.room, m.limits.MaxInFlight-m.taker.room)
	}
	if m.talk == Asking {
		return true, Effects{Beside: m.PlanBeside(now)}
	}
	here := buffer.len() + m.coming()
	if here == 0 || m.supply == More && m.isLow(here) {
		return true, Effects{Wake: Talk}
	}
	return true, Effects{}
}

// Handed takes in that the consumer has the message that was on offer.
func (m *Machine) Handed(now time.Time, in *InHand) Effects {
	in.handed = now
	late := max(0, m.clock.atLeast(now).Sub(in.Due))
	m.counts.Add(queue.Counts{Delivered: 1, LatenessMicros: late.Microseconds(), Latest: late})
	if m.taker.state == Stuck { // it takes messages again, and none are here
		m.taker.state = Takes
		return Effects{Wake: Talk}
	}
	return Effects{}
}

// Pace is how long the consumer takes for a message, on average; 0: not known.
func (m *Machine) Pace() time.Duration {
	return time.Duration(m.taker.pace.mean * float64(time.Second))
}

// Has reports whether a delivery has not ended.
func (m *Machine) Has(in *InHand) bool { return m.held.has(in) }

// InHand returns the messages that the consumer has.
func (m *Machine) InHand() (handed []*InHand) {
	for _, in := range m.held.inHand {
		if !in.handed.IsZero() {
			handed = append(handed, in)
		}
	}
	return handed
}

// TakenBack takes in that a message on offer was withdrawn. It goes back to Redis with the buffer, in order.
func (m *Machine) TakenBack(in *InHand) bool {
	if !m.held.remove(in) {
		return false
	}
	m.held.buffer.unpop(in.Message)
	return true
}

// Acked takes in that a message is done. It returns false if the delivery has ended before, as all that end one do.
func (m *Machine) Acked(now time.Time, in *InHand) (bool, Effects) {
	if !m.settle(now, in) {
		return false, Effects{}
	}
	m.untold.Acks = append(m.untold.Acks, &in.Leased)
	return true, m.urgent()
}

// Nacked takes in that a delivery failed. With MaxInFlight 1, nothing is handed out before a message that may be retried at
// once is back in its place: what was claimed comes after it, and goes back.
func (m *Machine) Nacked(now time.Time, in *InHand, f queue.Failure) (bool, Effects) {
	if !m.settle(now, in) {
		return false, Effects{}
	}
	m.failed(in, f)
	return true, m.urgent()
}

func (m *Machine) failed(in *InHand, f queue.Failure) {
	m.untold.fail(in, f)
	if m.limits.MaxInFlight == 1 && f.Retry.MayBeNow() {
		m.taker.pause()
	}
}

// Buried takes in that nobody can get the message, for a reason. It is a dead letter, and this was no delivery.
func (m *Machine) Buried(now time.Time, in *InHand, reason string) (bool, Effects) {
	if !m.settle(now, in) {
		return false, Effects{}
	}
	m.untold.Nacks = append(m.untold.Nacks, queue.Failure{Leased: &in.Leased, Nobody: true, Reason: reason})
	return true, m.urgent()
}

// Overran ends a delivery whose handler ran for too long, which is a failure.
func (m *Machine) Overran(in *InHand, f queue.Failure) Effects {
	if !m.held.has(in) {
		return Effects{}
	}
	m.abandon(in, LeaseLost)
	m.failed(in, f)
	if !in.dies(f) {
		m.out.note(Note{Kind: Overrun, InHand: in})
	}
	m.out.Wake |= Feed | Talk
	return m.effects()
}

// Judge decides whether a message that expires at an instant of the server's clock may be on offer, and for how long. If it is
// too late for it, its delivery ends. Nothing else but the server's clock decides; the process's only says when to ask anew.
// So a message is neither handed over too late nor given up too early, however the two clocks run.
func (m *Machine) Judge(now time.Time, in *InHand, end time.Time, thenDead bool) (_ Verdict, left time.Duration, _ Effects) {
	if left = end.Sub(m.clock.atMost(now)); left > 0 {
		m.judging.state = OfferExpires
		return InTime, left, Effects{}
	}
	if m.clock.told.Before(end) {
		if m.supply == Unknown { // the next claim tells the time, and may be waiting after a failure
			return Unclear, 0, Effects{}
		}
		return Unclear, 0, m.Woken()
	}
	if thenDead {
		_, e := m.Buried(now, in, "not delivered in time")
		return TooLate, 0, e
	}
	settled, e := m.Acked(now, in)
	if settled {
		m.counts.Add(queue.Counts{Dropped: 1})
	}
	return TooLate, 0, e
}

// Withdrawn takes in that the message on offer, if it expires, is on offer no more until it is judged again.
func (m *Machine) Withdrawn() Effects {
	m.judging.state = NothingOffered
	m.answer(&m.judging.pending)
	return m.effects()
}

// answer has all be told who have asked.
func (m *Machine) answer(asked *[]func()) {
	m.out.Answered = append(m.out.Answered, *asked...)
	*asked = nil
}

// settle ends a delivery for its consumer, unless it has ended.
func (m *Machine) settle(now time.Time, in *InHand) bool {
	if !m.held.remove(in) {
		return false
	}
	m.taker.ahead++
	m.taker.pace.observe(now.Sub(in.taken))
	m.taker.resume(Stuck)
	return true
}

// urgent wakes the talk if what was settled is to be told at once.
func (m *Machine) urgent() Effects {
	if m.talk == Asking || m.talk == Gathering && m.canGather(&m.untold) {
		return Effects{} // it goes with what is told next anyhow
	}
	return Effects{Wake: Talk}
}

// abandon ends a delivery that the consumer has not settled.
func (m *Machine) abandon(in *InHand, cause Cause) {
	m.held.remove(in)
	m.taker.resume(Stuck) // there is room for another
	m.out.Ended = append(m.out.Ended, Ended{in, cause})
	m.out.Wake |= Offer
}

// Watch is when to call Tick, even while an exchange is under way; zero: not at all.
func (m *Machine) Watch() time.Time { return m.dates.watch }

// Tick ends the deliveries whose lease has run out while Redis does not answer, or between two attempts.
func (m *Machine) Tick(now time.Time) Effects {
	if !m.dates.watch.IsZero() && !now.Before(m.dates.watch) {
		m.watch(now)
	}
	return m.effects()
}

// watch ends the deliveries whose lease has run out, and sets when to look again.
func (m *Machine) watch(now time.Time) {
	m.loseExpired(now)
	m.dates.watch = m.held.firstDeadline(now.Add(m.limits.Lease)).Add(time.Millisecond)
}

// loseExpired ends what is held of messages whose lease was not extended in time, by the process's clock: they are another's,
// now or soon.
func (m *Machine) loseExpired(now time.Time) {
	m.lose(func(held *Message) bool { return now.After(held.deadline) })
}

// lose ends what is held of the messages for which gone is true.
func (m *Machine) lose(gone func(*Message) bool) {
	some := m.held.buffer.remove(gone)
	for i := len(m.held.inHand) - 1; i >= 0; i-- { // abandon moves the last to the place of another
		if in := m.held.inHand[i]; gone(&in.Message) {
			some = true
			m.out.note(Note{Kind: LostLease, InHand: in})
			m.abandon(in, LeaseLost)
		}
	}
	if some {
		m.out.Wake |= Feed | Talk
	}
}
