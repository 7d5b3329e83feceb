package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Limits are what a Machine is given once.
type Limits struct {
	Main, Second string        // names of the lanes
	MaxInFlight  int           // most messages that the consumer has at once
	Lease        time.Duration // how long a lease lasts without an extension
	MaxExtension time.Duration // how much longer than Lease a handler may run; negative: no limit
	GroupExpiry  time.Duration // how long the group exists without use; 0: for ever
	SingleActive bool          // one subscription of the group claims, others stand by
}

// Contact is where a subscription is woken. It may be another at the next Plan.
type Contact struct {
	Address string
	Worker  string // of queue.Sign for the address. "": the subscription does not show itself
}

// Machine decides for one subscription what to say to Redis, what to hand out, and when. It is
// pure: the same events at the same times have the same effects. Its caller serialises all calls,
// and carries out the Effects that they return.
type Machine struct {
	limits  Limits
	contact Contact // of the last Plan
	phase   Phase
	talk    TalkState
	places  Places
	held    Held
	untold  Settlements // decided, and not on their way to Redis
	telling int         // number of acks, drops and nacks on their way: the exchanges are the shell's
	main    Lane
	second  Lane
	supply  Supply
	brought int // number of messages that the main lane's last claim brought
	suspect Suspect
	taker   Taker
	epoch   int64        // the highest that a claim returned
	limited queue.Limits // those of the group, by the last claim
	history string       // the bounds of the group's history, by the last claim; "": it keeps none
	settles bool         // in strict order, Redis is yet to confirm the last ack
	judging Judging
	clock   ServerClock
	dates   Dates
	counts  queue.Counts // to be told with the next claim
	out     Effects      // of the event that is being taken in
}

// Phase is how far the subscription has come. It only grows.
type Phase int

const (
	Open     Phase = iota
	Draining       // it closes: nothing more is handed out or claimed
	Left           // and Redis knows, and wakes other subscriptions
	Over           // the talk with Redis has ended
)

// TalkState is what the talk with Redis waits for, without the exchange beside it.
type TalkState int

const (
	Idle      TalkState = iota // an event, or the time that Plan has returned
	Gathering                  // other acks, to go with those that are there
	Asking                     // the answer to an exchange
)

// NewMachine returns the machine of a subscription that begins now.
func NewMachine(limits Limits, now time.Time) *Machine {
	return &Machine{
		limits: limits,
		main:   Lane{name: limits.Main, number: 1},
		second: Lane{name: limits.Second, number: 1},
		taker:  Taker{room: limits.MaxInFlight, ahead: mostAhead},
		places: Places{has: limits.MaxInFlight, fair: float64(limits.MaxInFlight)},
		dates:  Dates{extend: now.Add(limits.Lease / 3)},
	}
}

// effects returns the effects of the event that was taken in.
func (m *Machine) effects() Effects {
	out := m.out
	m.out = Effects{}
	return out
}

// Woken means that messages may be ready which no claim has told of.
func (m *Machine) Woken() Effects {
	m.supply = Unknown
	return Effects{Wake: Talk}
}

// Asked means that somebody wants to be told when every message is judged by the server's present
// time. It is also a wake-up. Leases may have ended too, of which only an extension tells.
func (m *Machine) Asked(done func()) Effects {
	if m.phase == Over {
		return Effects{Answered: []func(){done}}
	}
	m.Doubted()
	m.judging.asked = append(m.judging.asked, done)
	return m.Woken()
}

// Doubted means that an operator may have ended a lease, of which only an extension tells.
func (m *Machine) Doubted() Effects {
	if m.Holds() {
		m.dates.extend = time.Time{}
	}
	return Effects{Wake: Talk}
}

// Shown means that the server may not hear the process at present, or hears it again. It is a
// wake-up too. The subscription shows at once that it lives, and asks for its leases.
func (m *Machine) Shown() Effects {
	m.dates.sign = time.Time{}
	m.Doubted()
	return m.Woken()
}

// Close means that the subscription closes.
func (m *Machine) Close() Effects {
	m.phase = max(m.phase, Draining)
	return Effects{Wake: Talk}
}

// Hurry means that the subscription, which closes, has CloseTimeout from now on. It waits for Redis
// until all settlements are answered, and no longer than lastTries for anything else.
func (m *Machine) Hurry(now time.Time) Effects {
	m.dates.cut = now.Add(lastTries)
	return Effects{}
}

// Owes reports whether the answer of Redis to a settlement is to come, or the settlement itself.
func (m *Machine) Owes() bool {
	return m.telling > 0 || len(m.held.inHand) > 0 || m.untold.decided() > 0
}

// Holds reports whether leases are held, or may come.
func (m *Machine) Holds() bool { return m.held.len()+m.coming() > 0 }

// Undelivered returns how many messages Redis was not told of yet that nobody got.
func (m *Machine) Undelivered() int { return m.held.buffer.len() + len(m.untold.Releases) }

// Interrupt means that the handlers have to stop, because the subscription closes. The contexts of
// all messages in hand end, but for those that the consumer has settled. Their deliveries go on.
func (m *Machine) Interrupt(settled map[*InHand]bool) Effects {
	for _, in := range m.held.inOrder() {
		if !settled[in] {
			m.out.Interrupted = append(m.out.Interrupted, in)
		}
	}
	return m.effects()
}

// TakerGone means that nothing more is handed out.
func (m *Machine) TakerGone() Effects {
	m.taker.state = Gone
	return Effects{Wake: Talk}
}

// GiveUp means that CloseTimeout is over: the deliveries of all messages in hand end, but for those
// that the consumer has settled. The leases of messages that the consumer has run out, since the
// handlers may still run. A message on offer goes back.
func (m *Machine) GiveUp(settled map[*InHand]bool) Effects {
	for _, in := range m.held.inOrder() {
		if settled[in] {
			continue
		}
		m.abandon(in, Closed)
		if in.handed.IsZero() {
			m.untold.release([]Message{in.withoutBody()})
		} else {
			m.noteGivenUp(in)
		}
	}
	m.out.Wake |= Talk
	return m.effects()
}

func (m *Machine) noteGivenUp(in *InHand) {
	m.counts.GivenUp++
	m.note(Note{Kind: GivenUp, InHand: in})
}

// End means that nobody talks to Redis any more. All who have asked are answered.
func (m *Machine) End() Effects {
	m.phase, m.dates.watch, m.dates.cut = Over, time.Time{}, time.Time{}
	m.answer(&m.judging.asked)
	m.answer(&m.judging.later)
	return m.effects()
}

// finished reports whether the subscription has closed, and Redis was told everything.
func (m *Machine) finished() bool {
	return m.phase == Left && m.taker.state == Gone && m.held.len() == 0 && m.untold.empty() &&
		m.main.claim == nil && m.second.claim == nil && m.second.remembered == 0 && m.counts == queue.Counts{}
}

// strict reports whether a message is handed out only when Redis has the ack of the one before.
// Otherwise a crash could bring that one again after the next one was handled.
func (m *Machine) strict() bool { return m.limits.SingleActive && m.limits.MaxInFlight == 1 }

// Take moves the next message into in, to be offered to the consumer. It returns false if there is
// none for it now.
func (m *Machine) Take(now time.Time, in *InHand) (bool, Effects) {
	buffer := &m.held.buffer
	if buffer.len() == 0 || len(m.held.inHand) >= m.places.has || m.phase != Open ||
		m.taker.state == Paused || m.taker.state == Gone || m.settles {
		return false, Effects{}
	}
	if now.After(buffer.first().deadline) { // the process stood still
		m.loseExpired(now)
		return false, m.effects()
	}
	m.held.take(now, in)
	if buffer.len() == 0 { // the consumer takes all that it gets
		m.taker.room += min(m.taker.room, m.limits.MaxInFlight-m.taker.room)
	}
	here := buffer.len() + m.coming()
	switch {
	case m.talk == Asking:
		return true, Effects{Beside: m.PlanBeside(now)}
	case here == 0 || m.supply == More && m.isLow(here):
		return true, Effects{Wake: Talk}
	}
	return true, Effects{}
}

// TakenBack means that a message on offer was withdrawn because the subscription closes. It goes
// back to Redis with the buffer, in order.
func (m *Machine) TakenBack(in *InHand) Effects {
	if !m.held.remove(in) {
		return Effects{}
	}
	m.held.buffer.unpop(in.Message)
	return Effects{Settled: in}
}

// Handed means that the consumer has the message that was on offer. If the delivery has ended just
// before, the consumer will settle it in vain.
func (m *Machine) Handed(now time.Time, in *InHand) Effects {
	in.handed = now
	late := max(0, m.clock.earliest(now).Sub(in.Due))
	m.counts.Handed(late)
	switch {
	case m.held.has(in):
	case in.cause == Closed:
		m.noteGivenUp(in)
	default:
		m.noteLost(in)
	}
	if m.taker.state == Stuck { // it takes messages again
		m.taker.state = Takes
		m.out.Wake |= Talk
	}
	return m.effects()
}

// Lingers means that the Unmarshaler has had a message for long. From then on the message counts as
// one that the consumer has, since it was taken. So it may take as long as a handler, and others
// are handed out meanwhile.
func (m *Machine) Lingers(in *InHand) Effects {
	in.handed = in.taken
	m.taker.move(Stuck, Takes)
	return Effects{Wake: Talk}
}

// Has reports whether a delivery has not ended.
func (m *Machine) Has(in *InHand) bool { return m.held.has(in) }

// Pace is how long the consumer takes for a message, on average; 0: not known.
func (m *Machine) Pace() time.Duration {
	return time.Duration(m.taker.pace * float64(time.Second))
}

// InHand returns the messages that the consumer has.
func (m *Machine) InHand() (handed []*InHand) {
	for _, in := range m.held.inHand {
		if !in.handed.IsZero() {
			handed = append(handed, in)
		}
	}
	return handed
}

// Acked means that a message is done. Like all that ends a delivery, it does nothing if the
// delivery has ended before.
func (m *Machine) Acked(now time.Time, in *InHand) Effects {
	if !m.settle(now, in) {
		return Effects{}
	}
	m.untold.Acks = append(m.untold.Acks, &in.Leased)
	m.settles = m.strict()
	return Effects{Settled: in, Wake: m.urgent()}
}

// Nacked means that a delivery failed. With MaxInFlight 1, the consumer gets nothing until a
// message that may be retried at once is back in its place: what was claimed comes after it, and
// goes back.
func (m *Machine) Nacked(now time.Time, in *InHand, f queue.Failure) Effects {
	if !m.settle(now, in) {
		return Effects{}
	}
	m.nack(in, f)
	return Effects{Settled: in, Wake: m.urgent()}
}

func (m *Machine) nack(in *InHand, f queue.Failure) {
	m.untold.nack(in, f)
	if m.limits.MaxInFlight == 1 && f.Retry.MayBeNow() {
		m.taker.pause()
	}
}

// Buried means that no consumer can get the message. It is a dead letter, and this was no delivery.
func (m *Machine) Buried(now time.Time, in *InHand, cause queue.Cause, reason string) Effects {
	if !m.settle(now, in) {
		return Effects{}
	}
	f := queue.Failure{Leased: &in.Leased, Nobody: cause, Reason: reason}
	m.untold.Nacks = append(m.untold.Nacks, f)
	return Effects{Settled: in, Wake: m.urgent()}
}

// Overran means that a handler ran for too long, which is a failure. Its message is taken from it.
func (m *Machine) Overran(in *InHand, f queue.Failure) Effects {
	if !m.held.has(in) {
		return Effects{}
	}
	m.abandon(in, TakenAway)
	m.nack(in, f)
	if !in.dies(f) {
		m.note(Note{Kind: Overrun, InHand: in, Failure: f})
	}
	m.out.Wake |= Feed | Talk
	return m.effects()
}

// Judge decides whether a message that expires at end, by the server's clock, may be on offer, and
// for how long. If it is too late, its delivery ends. Only the server's clock decides. The
// process's clock tells when to ask for the server's time again. So a message is neither handed
// over too late nor given up too early, even if the clocks run at different speeds.
func (m *Machine) Judge(now time.Time, in *InHand, end time.Time, thenDead bool) (Verdict, time.Duration, Effects) {
	if left := end.Sub(m.clock.latest(now)); left > 0 {
		m.judging.state = OfferExpires
		return InTime, left, Effects{}
	}
	switch {
	case m.clock.told.Before(end) && m.supply == Unknown: // a claim goes anyway, perhaps after a pause
		return Unclear, 0, Effects{}
	case m.clock.told.Before(end):
		return Unclear, 0, m.Woken()
	case thenDead:
		return TooLate, 0, m.Buried(now, in, queue.TooLate, "not delivered in time")
	}
	return TooLate, 0, m.dropped(now, in)
}

// dropped means that it is too late for a message, and nobody gets it.
func (m *Machine) dropped(now time.Time, in *InHand) Effects {
	if !m.settle(now, in) {
		return Effects{}
	}
	m.untold.Drops = append(m.untold.Drops, &in.Leased)
	return Effects{Settled: in, Wake: m.urgent(), Notes: []Note{{Kind: TooLateToDeliver}}}
}

// Withdrawn means that the message on offer, if it expires, is not on offer until it is judged
// again.
func (m *Machine) Withdrawn() Effects {
	m.judging.state = NothingOffered
	m.answer(&m.judging.later)
	return m.effects()
}

// answer tells all of them that every message is judged.
func (m *Machine) answer(asked *[]func()) {
	m.out.Answered = append(m.out.Answered, *asked...)
	*asked = nil
}

// settle ends a delivery whose fate is decided. It returns false if the delivery has ended before.
func (m *Machine) settle(now time.Time, in *InHand) bool {
	if !m.held.remove(in) {
		return false
	}
	m.taker.settled(now.Sub(in.taken))
	return true
}

// urgent is Talk if a settlement must go to Redis at once. Otherwise it goes with the next
// exchange.
func (m *Machine) urgent() Wake {
	if m.talk == Asking || m.talk == Gathering && m.canGather(&m.untold) {
		return 0
	}
	return Talk
}

// abandon ends a delivery that the consumer has not settled.
func (m *Machine) abandon(in *InHand, cause Cause) {
	m.held.remove(in)
	in.cause = cause
	m.taker.move(Stuck, Takes) // there is room for another message
	m.out.Ended = append(m.out.Ended, Ended{in, cause})
	m.out.Wake |= Offer
}

func (m *Machine) note(n Note) { m.out.Notes = append(m.out.Notes, n) }
