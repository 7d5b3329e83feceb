package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// gather is how long acks wait for other acks or a claim, and how long a claim waits for more
	// messages to be ready. A call costs Redis as much as a dozen messages in it.
	gather = time.Millisecond

	// gathered is the number of acks that do not wait.
	gathered = 256

	// manyBrought is how many messages a claim must bring for the next claim to wait.
	manyBrought = 32

	// longestStay is how long a message may stay in the buffer. Then it goes back to Redis, for
	// other subscriptions.
	longestStay = 100 * time.Millisecond

	// lastTries is for how long a subscription that closes waits for Redis, after its last answer,
	// if all settlements are answered. Close has promised two seconds, and other things to do.
	lastTries = 1500 * time.Millisecond

	// mostClaimed is how many messages a claim brings at most. They cost the server about a
	// millisecond, in which it does nothing else.
	mostClaimed = 256

	// fullHand is where the rule for suspects begins to halve, if MaxInFlight is larger. So a
	// message that ends its process is found after a dozen expiries, whatever MaxInFlight is.
	fullHand = 1000

	// claimBytes is how many bytes of bodies a claim brings, about.
	claimBytes = 4 << 20
)

// Exchange is what goes to Redis in one round trip.
type Exchange struct {
	Settlements
	Extend   []*queue.Leased
	Claims   []*queue.Claim // at most one of each lane
	Worker   string         // to be shown with Extend; "": the claim shows it, or nothing does
	extendTo uint64         // sequence number of the last message in Extend
	beside   bool           // it goes beside an exchange of the main lane
	limited  bool           // the group has a limit: what is given back need not count
	history  string         // what Claimed.History was: "" if the group keeps none
	left     bool           // other subscriptions are woken already: a group that is gone stays gone
	asked    []func()       // they are told when the claim has told the server's time
}

// Plan returns the main lane's next exchange, or nil and when to call Plan again if no event comes
// before. If both are nil and the zero time, the subscription is finished. No exchange of the main
// lane may be under way. poll is when the next claim is due whatever is known; it should vary a
// little. Claims of the exchange name the contact.
//
// The order of these rules is the contract:
//
//  1. A message whose handler has run for too long is an overrun: the shell settles it first.
//  2. Leases are extended three times in their duration.
//  3. A claim without an answer is repeated as it was. If it is the main lane's, only acks go with
//     it. Redis may have leased messages by it that come after all that is held. So nothing that is
//     held may go back to Redis before those messages are known.
//  4. Otherwise, messages that the consumer does not get in time go back, then a claim is made if
//     one is wanted, and all settlements go along.
//  5. Acks alone wait for others, until a millisecond after the last exchange.
func (m *Machine) Plan(now time.Time, poll time.Duration, contact Contact) (x *Exchange, wake time.Time, _ Effects) {
	if moved := contact.Address != m.contact.Address; moved && m.contact.Address != "" {
		m.Shown()
	}
	m.contact = contact
	extend := !now.Before(m.dates.extend)
	if extend {
		m.loseExpired(now)
		if m.overruns(now) {
			m.watch(now)
			return nil, now, m.effects()
		}
	}
	x = &Exchange{left: m.phase == Left, limited: m.limited != queue.Unlimited, history: m.history}
	if extend {
		x.Extend = m.planExtend(now)
		x.extendTo = m.held.sequence
	}
	for _, l := range []*Lane{&m.main, &m.second} {
		if l.state == LaneUnanswered {
			x.Claims = append(x.Claims, l.claim)
		}
	}
	if m.main.state == LaneUnanswered {
		if m.frees() { // the repeat wakes nobody
			m.supply = Unknown
		}
		x.Settlements = m.untold.takeAcks()
	} else {
		m.planRelease(now)
		if c := m.planClaim(now, poll, len(x.Extend) > 0); c != nil {
			x.Claims = append(x.Claims, c)
		}
		if c := m.planForget(now, len(x.Claims) > 0); c != nil {
			x.Claims = append(x.Claims, c)
		}
		x.Settlements, m.untold = m.untold, Settlements{}
	}
	if len(x.Extend) > 0 && m.signs(now) {
		x.Worker = m.contact.Worker
	}
	if m.taker.state == Gone && len(x.Extend) == 0 { // nothing is on offer, and no lease is in doubt
		m.answer(&m.judging.asked)
	}
	m.talk = Idle
	if len(x.Extend) == 0 && len(x.Claims) == 0 {
		if x.Settlements.empty() {
			return nil, m.wakeAt(now), m.effects()
		}
		if end := m.dates.answered.Add(gather); now.Before(end) && m.canGather(&x.Settlements) {
			m.untold, m.talk = x.Settlements, Gathering
			return nil, end, m.effects()
		}
	}
	if m.main.claim != nil {
		x.asked, m.judging.asked = m.judging.asked, nil
	}
	m.talk = Asking
	m.telling += x.decided()
	switch {
	case !m.dates.watch.IsZero(): // the last exchange failed
	case len(x.Extend) > 0:
		m.watch(now)
	default: // a lease that is not extended now lasts longer than this
		m.dates.watch = now.Add(m.limits.Lease / 4)
	}
	return x, time.Time{}, m.effects()
}

// canGather reports whether settlements may wait for others.
func (m *Machine) canGather(s *Settlements) bool {
	return !m.settles && len(s.Nacks) == 0 && len(s.Releases) == 0 && len(s.Acks)+len(s.Drops) < gathered && m.phase == Open
}

// overruns finds the messages whose handlers have run for too long, in the order of claiming, and
// reports whether there are any. Plan does nothing else then: the shell settles them, and plans
// again.
func (m *Machine) overruns(now time.Time) bool {
	if m.limits.MaxExtension < 0 {
		return false
	}
	for _, in := range m.held.inOrder() {
		if !in.handed.IsZero() && !now.Before(m.overrunAt(in)) {
			m.out.Overruns = append(m.out.Overruns, in)
		}
	}
	return len(m.out.Overruns) > 0
}

// overrunAt is when a handler has run for too long.
func (m *Machine) overrunAt(in *InHand) time.Time {
	return in.handed.Add(m.limits.Lease + m.limits.MaxExtension)
}

// planExtend returns the leases to be extended, in the order of claiming, and sets when to extend
// them again.
func (m *Machine) planExtend(now time.Time) []*queue.Leased {
	m.dates.extend = now.Add(m.limits.Lease / 3)
	for _, in := range m.held.inHand {
		if !in.handed.IsZero() && m.limits.MaxExtension >= 0 {
			m.dates.extend = earlier(m.dates.extend, m.overrunAt(in))
		}
	}
	return m.held.leases()
}

// planRelease gives back the buffer if the consumer must not get it, or does not take it in time.
func (m *Machine) planRelease(now time.Time) {
	switch {
	case m.held.buffer.len() == 0:
		return
	case m.taker.state == Paused || m.taker.state == Gone:
	case now.Sub(m.held.buffer.first().claimed) > longestStay:
		m.taker.state = Takes
		if m.takesNothing() {
			m.taker.state = Stuck
		}
		m.taker.room = max(1, len(m.held.inHand))
	default:
		return
	}
	m.untold.release(m.held.buffer.all())
	m.held.buffer = buffer{}
}

// takesNothing reports whether the consumer cannot take a message before it has settled one, or
// does not take the message on offer. Otherwise none was offered yet, and it may settle nothing
// before it gets one.
func (m *Machine) takesNothing() bool {
	return len(m.held.inHand) >= m.places.has || len(m.InHand()) < len(m.held.inHand)
}

// planClaim decides whether the main lane claims, and how many messages. anyway means that an
// exchange goes in any case.
func (m *Machine) planClaim(now time.Time, poll time.Duration, anyway bool) *queue.Claim {
	if m.phase != Open {
		return m.planLeave(now, poll)
	}
	due := !now.Before(m.dates.poll)
	if !due && !anyway && !m.claimWaits(now).IsZero() {
		return nil
	}
	woken := m.supply == Unknown
	d := m.demand(now, woken || due)
	switch {
	case woken, due, m.frees():
	case m.suspect.state == SuspectNext && d.limit > 0:
	case m.supply == More && d.limit > 0 && m.isLow(d.here):
	case m.supply != Waiting && d.free > 0 && d.here == 0:
	default:
		return nil
	}
	m.dates.poll = now.Add(poll)
	// A claim of nothing passes a wake-up on, and shows that a group with an expiry is in use.
	if d.limit == 0 && !woken && !m.frees() && m.limits.GroupExpiry == 0 {
		if m.supply == Waiting {
			m.supply = Empty // without a claim, the place among the waiters expires
		}
		return nil
	}
	if woken {
		m.supply = Empty // until the answer comes
	}
	slots := max(d.free-d.here, 0)
	if m.limited == queue.Unlimited && m.brought >= manyBrought && now.Before(m.dates.answered.Add(2*gather)) {
		slots = 0 // no waiter: if this claim brings as many, the next one follows at once anyway
	}
	return m.claim(now, &m.main, queue.Claim{Limit: d.limit, Slots: slots, Held: d.held, Patience: 3 * poll, Turn: woken || due})
}

// frees reports whether settlements are about to go that let others of the group get messages, so
// that a claim has to wake these.
func (m *Machine) frees() bool {
	return m.limited == queue.AtOnceLimited && !m.untold.empty() || m.limited != queue.Unlimited && len(m.untold.Releases) > 0
}

// planLeave claims nothing, so that Redis wakes other subscriptions from now on. It does so once,
// again at each poll while handlers run in a group with an expiry, with settlements that others of
// the group wait for, and at last if there are counts to be told.
func (m *Machine) planLeave(now time.Time, poll time.Duration) *queue.Claim {
	shows := m.keepsGroup() && !now.Before(m.dates.poll)
	turn := m.supply == Unknown && m.limited != queue.Unlimited // which it passes on
	if m.phase == Left && !shows && !turn && !m.frees() && !m.tellsLast() {
		return nil
	}
	m.dates.poll = now.Add(poll)
	m.supply = Empty
	return m.claim(now, &m.main, queue.Claim{Turn: turn})
}

// tellsLast reports whether a subscription that closes has settled everything, and counts are left.
func (m *Machine) tellsLast() bool {
	return m.taker.state == Gone && m.held.len() == 0 && m.untold.empty() && m.second.claim == nil && m.counts != queue.Counts{}
}

// demand is how many messages the main lane could claim.
type demand struct {
	here  int // messages in the buffer, or coming
	free  int // messages that the consumer can take at once
	limit int // messages to claim: free, and some in advance, without those that are here
	held  int // messages that count as held, so that Redis gives no suspect that needs fewer
}

// demand returns what could be claimed now. claims tells that a claim goes in any case.
func (m *Machine) demand(now time.Time, claims bool) demand {
	d := demand{here: m.held.buffer.len() + m.coming()}
	free, prefetch := m.wanted()
	d.free, d.limit = free, max(free+prefetch-d.here, 0)
	d.held = m.present() + m.coming()
	room := max(m.mayHold(now)-d.held, 0)
	drains := m.suspect.state == SuspectNext && d.held >= m.suspect.company
	switch {
	case m.suspect.state == NoSuspect && d.held > 0:
		d.held = m.limits.MaxInFlight // a claim beside may bring others, so none that needs few comes
	case drains && free > 0 && !now.Before(m.turnsEnd()):
		drains, d.held = false, 0 // it has waited long enough, and is taken beside others
	}
	drained := !drains || claims || m.supply != Waiting && free > d.here
	if m.taker.state == Stuck || !drained || now.Before(m.dates.over) {
		room = 0
	}
	d.free, d.limit = min(d.free, d.here+room), min(d.limit, room)
	return d
}

// isLow reports whether so few messages are here, or coming, that more are claimed.
func (m *Machine) isLow(here int) bool {
	free, prefetch := m.wanted()
	return here <= (free+prefetch)*3/4
}

// keepsGroup reports whether a subscription that closes has to show that its group is in use,
// because handlers still run.
func (m *Machine) keepsGroup() bool { return m.limits.GroupExpiry > 0 && len(m.held.inHand) > 0 }

// wanted is how many messages the consumer can take at once, and how many more to claim in advance:
// none in a group with a limit, whose messages begin when they are claimed.
func (m *Machine) wanted() (free, prefetch int) {
	free = min(m.places.has-len(m.held.inHand), m.taker.room, mostClaimed)
	if m.limited != queue.Unlimited {
		return free, 0
	}
	return free, m.taker.prefetch(m.places.fair)
}

// coming is how many messages the claims under way may bring.
func (m *Machine) coming() int { return m.main.coming() + m.second.coming() }

// claimWaits is until when the next claim waits for more messages to be ready; zero: it does not.
// It waits if the last claim brought many messages, all that were ready, and all are taken.
func (m *Machine) claimWaits(now time.Time) time.Time {
	end := m.dates.answered.Add(gather)
	if m.brought < manyBrought || m.supply == More || m.held.buffer.len() > 0 || !now.Before(end) || !m.canGather(&m.untold) {
		return time.Time{}
	}
	return end
}

// claim puts a claim under way in a lane, with the fields that all claims have.
func (m *Machine) claim(now time.Time, l *Lane, c queue.Claim) *queue.Claim {
	c.Limit = min(c.Limit, mostClaimed)
	c.Most, c.Lease, c.Bytes, c.Expiry = m.most(), m.limits.Lease, claimBytes, m.limits.GroupExpiry
	c.Epoch = m.epoch
	c.Counts, m.counts = m.counts, queue.Counts{}
	if l == &m.main { // the second lane is never woken
		c.Address = m.contact.Address
		if m.signs(now) {
			c.Worker = m.contact.Worker
		}
	}
	return l.ask(c)
}

// signs reports whether the subscription is to show now that it lives, and counts that as done.
func (m *Machine) signs(now time.Time) bool {
	if m.contact.Worker == "" || now.Before(m.dates.sign) {
		return false
	}
	m.dates.sign = now.Add(queue.SignInterval)
	return true
}

// planForget claims nothing in the second lane, so that Redis forgets the lane's last claim: when
// no more is claimed there and an exchange goes anyway, or when the subscription closes.
func (m *Machine) planForget(now time.Time, anyway bool) *queue.Claim {
	if m.second.remembered == 0 || m.second.claim != nil || m.phase == Open && (!anyway || m.supply == More) {
		return nil
	}
	return m.claim(now, &m.second, queue.Claim{})
}

// PlanBeside returns an exchange to be carried out beside the main lane's, or nil. It gives the
// server work while one answer is taken in and the next exchange is written. It returns nil unless:
//
//   - the last claim left messages, and the group has no limit,
//   - at least a third of what the consumer wants is still to come,
//   - the order does not count (MaxInFlight above 1), since the server may run either one first,
//   - no suspect needs few neighbours, and the main lane's claim cannot bring one,
//   - and nothing went wrong.
func (m *Machine) PlanBeside(now time.Time) *Exchange {
	main := m.main.claim
	switch {
	case m.supply != More || m.limits.MaxInFlight == 1 || m.limited != queue.Unlimited:
	case m.main.state != LaneAsked || main.Limit == 0 || main.Held < m.limits.MaxInFlight:
	case m.second.state != LaneIdle || m.phase != Open || m.taker.state != Takes:
	case m.suspect.state != NoSuspect:
	default:
		free, prefetch := m.wanted()
		limit := free + prefetch - m.held.buffer.len() - m.coming()
		if limit < manyBrought || limit < (free+prefetch)/3 {
			return nil
		}
		x := &Exchange{Settlements: m.untold.takeAcks(), beside: true, history: m.history}
		m.telling += x.decided()
		x.Claims = []*queue.Claim{m.claim(now, &m.second, queue.Claim{Limit: limit, Held: m.limits.MaxInFlight})}
		return x
	}
	return nil
}

// wakeAt is when to call Plan again if no event comes before.
func (m *Machine) wakeAt(now time.Time) time.Time {
	if m.finished() {
		return time.Time{}
	}
	wake, claimable := m.dates.poll, m.claimWaits(now)
	if m.phase != Open && !m.keepsGroup() {
		wake = m.dates.extend
	} else if !claimable.IsZero() && m.supply != Waiting {
		wake = earlier(wake, claimable)
	}
	if m.held.len() > 0 {
		wake = earlier(wake, m.dates.extend)
	}
	if m.held.buffer.len() > 0 {
		wake = earlier(wake, m.held.buffer.first().claimed.Add(longestStay+time.Millisecond))
	}
	if now.Before(m.dates.over) {
		wake = earlier(wake, m.dates.over)
	}
	if m.waitsForSuspect(now) {
		wake = earlier(wake, later(later(m.turnsEnd(), claimable), m.dates.over))
	}
	return wake
}

// waitsForSuspect reports whether a claim waits for the end of a suspect's wait or turn.
func (m *Machine) waitsForSuspect(now time.Time) bool {
	return (m.suspect.state == SuspectNext || m.mayHold(now) <= m.present()) && m.held.buffer.len()+m.coming() == 0 &&
		m.taker.state != Stuck && m.phase == Open && len(m.held.inHand) < m.places.has
}
