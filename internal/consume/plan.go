package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// gather is how long acks wait for others, or for a claim, and claims for more to be ready: a call costs Redis as much as a
	// dozen messages in it.
	gather = time.Millisecond

	// gathered is how many acks wait for no more.
	gathered = 256

	// manyBrought is how many messages a claim has to bring for the next one to wait for gather. Where fewer come, each is claimed
	// at once.
	manyBrought = 32

	// longestStay is how long a claimed message may wait in the buffer. Then it goes back, for others to take.
	longestStay = 100 * time.Millisecond

	// mostClaimed is how many messages one claim brings at most: about a millisecond of the server's time.
	mostClaimed = 256

	// claimBytes is how many bytes of bodies one claim brings, about.
	claimBytes = 4 << 20
)

// Exchange is what goes to Redis in one round trip.
type Exchange struct {
	Settlements
	Extend   []*queue.Leased
	Claims   []*queue.Claim // one of each lane at most
	extendTo uint64         // sequence number of the last message that Extend covers
	beside   bool           // it is carried out beside the main lane's exchange
	asked    []func()       // to be told when the claim is answered and every message judged
}

// Plan returns the main lane's next exchange, or nil and when to call it again if no event comes before. No other exchange of the
// main lane may be under way. poll is how long a claim may be put off, and is a little different each time. The order of these
// rules is the contract:
//
//  1. Leases are extended three times in their duration.
//  2. A claim without an answer is repeated as it was.
//  3. While that is a claim of the main lane, only acks go with it. What it brought comes behind all that is held, so nothing may
//     go back before it is known.
//  4. Else messages that the consumer does not get in time go back, then a claim is made if one is wanted, and every
//     settlement goes along.
//  5. Acks alone wait for others, for up to a millisecond after the last exchange.
func (m *Machine) Plan(now time.Time, poll time.Duration) (x *Exchange, wake time.Time, _ Effects) {
	x = &Exchange{}
	if !now.Before(m.dates.extend) {
		x.Extend, x.extendTo = m.planExtend(now), m.held.sequence
	}
	for _, l := range []*Lane{&m.main, &m.second} {
		if l.state == LaneUnanswered {
			x.Claims = append(x.Claims, l.claim)
		}
	}
	if m.main.state == LaneUnanswered {
		x.Acks, m.untold.Acks = m.untold.Acks, nil
	} else {
		m.planRelease(now)
		if c := m.planClaim(now, poll, len(x.Extend) > 0); c != nil {
			x.Claims = append(x.Claims, c)
		}
		if c := m.planForget(len(x.Claims) > 0); c != nil {
			x.Claims = append(x.Claims, c)
		}
		x.Settlements, m.untold = m.untold, Settlements{}
	}
	if m.taker.state == Gone && len(x.Extend) == 0 {
		// Nothing is on offer, nor will be, and no extension is to tell of lost leases.
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
	switch {
	case !m.dates.watch.IsZero(): // the last exchange failed
	case len(x.Extend) > 0:
		m.watch(now)
	default: // a lease that need not be extended yet lasts longer than this
		m.dates.watch = now.Add(m.limits.Lease / 4)
	}
	return x, time.Time{}, m.effects()
}

// canGather reports whether settlements may wait for others.
func (m *Machine) canGather(s *Settlements) bool {
	return len(s.Nacks) == 0 && len(s.Releases) == 0 && len(s.Acks) < gathered && m.phase == Open
}

// planExtend returns the leases to be extended, in the order of claiming.
func (m *Machine) planExtend(now time.Time) []*queue.Leased {
	m.dates.extend = now.Add(m.limits.Lease / 3)
	m.loseExpired(now)
	if m.limits.MaxExtension >= 0 {
		for _, in := range m.held.inHand {
			if !in.handed.IsZero() {
				m.dates.extend = earlier(m.dates.extend, m.overrunAt(in))
			}
		}
	}
	return m.held.leases()
}

// overrunAt is when a message is taken from its handler.
func (m *Machine) overrunAt(in *InHand) time.Time {
	return in.handed.Add(m.limits.Lease + m.limits.MaxExtension)
}

// Overruns returns the messages whose handlers have run for too long by now. The shell ends each, by Overran if the consumer
// has not settled it. It is to be called before Plan, with the same time.
func (m *Machine) Overruns(now time.Time) (overruns []*InHand) {
	if m.limits.MaxExtension < 0 || now.Before(m.dates.extend) {
		return nil
	}
	for _, in := range m.held.inHand {
		if !in.handed.IsZero() && !now.Before(m.overrunAt(in)) {
			overruns = append(overruns, in)
		}
	}
	return overruns
}

// planRelease gives back what the consumer is not to get, or does not take in time.
func (m *Machine) planRelease(now time.Time) {
	switch {
	case m.held.buffer.len() == 0:
		return
	case m.taker.state == Paused || m.taker.state == Gone:
	case now.Sub(m.held.buffer.first().claimed) > longestStay:
		m.taker.state = Takes
		if len(m.held.inHand) >= m.limits.MaxInFlight || m.held.offers() {
			// It is the consumer that takes nothing. Else it may settle nothing before it gets another message.
			m.taker.state = Stuck
		}
		m.taker.room = max(1, len(m.held.inHand))
	default:
		return
	}
	m.untold.release(m.held.buffer.all())
	m.held.buffer = buffer{}
}

// planClaim decides whether the main lane claims, and how many messages. anyway: the exchange goes anyhow.
func (m *Machine) planClaim(now time.Time, poll time.Duration, anyway bool) *queue.Claim {
	due := !now.Before(m.dates.poll)
	if m.phase != Open {
		if m.phase == Left && (!due || !m.keepsGroup()) {
			return nil
		}
		m.dates.poll = now.Add(poll)
		return m.claim(&m.main, queue.Claim{}) // of nothing: others are woken from now on
	}
	if !due && !anyway && !m.claimWaits(now).IsZero() {
		return nil
	}
	woken := m.supply == Unknown
	here := m.held.buffer.len() + m.coming()
	free, prefetch := m.wanted()
	limit := free + prefetch - here
	busy := len(m.held.inHand)+here > 0
	drains := m.suspect.state == SuspectNext && busy // a suspect waits for nothing to be held
	if drains && free > 0 && !now.Before(m.aloneUntil()) {
		drains, busy = false, false // it has waited for long enough, and is taken beside others
	}
	waits := m.supply == Waiting || free <= here
	if m.taker.state == Stuck || m.isAlone(now) || drains && !woken && !due && waits {
		free, limit = 0, 0
	}
	switch {
	case woken, due:
	case m.suspect.state == SuspectNext && limit > 0:
	case m.supply == More && limit > 0 && m.isLow(here):
	case m.supply != Waiting && free > 0 && here == 0:
	default:
		return nil
	}
	m.dates.poll = now.Add(poll)
	if limit <= 0 && !woken && m.limits.GroupExpiry == 0 { // else the claim shows that the group is in use
		if m.supply == Waiting {
			m.supply = Empty // not renewed, the place among the waiters ends
		}
		return nil
	}
	if woken {
		m.supply = Empty // until the answer comes
	}
	slots := free - here
	if m.brought >= manyBrought && now.Before(m.dates.answered.Add(2*gather)) {
		slots = 0 // nobody need wake it: if this claim brings as many, the next comes in a moment
	}
	return m.claim(&m.main, queue.Claim{Limit: min(max(limit, 0), mostClaimed), Slots: slots, Busy: busy, Patience: 3 * poll})
}

// isLow reports whether so little is here, or coming, that more is claimed.
func (m *Machine) isLow(here int) bool {
	free, prefetch := m.wanted()
	return here <= (free+prefetch)*3/4
}

// keepsGroup reports whether a subscription that closes has to show that its group is in use, since handlers run.
func (m *Machine) keepsGroup() bool { return m.limits.GroupExpiry > 0 && len(m.held.inHand) > 0 }

// wanted is how many messages the consumer can take at once, and how many more it will have handled soon.
func (m *Machine) wanted() (free, prefetch int) {
	free = min(m.limits.MaxInFlight-len(m.held.inHand), m.taker.room, mostClaimed)
	return free, min(m.taker.pace.prefetch(min(m.limits.MaxInFlight, m.taker.room)), m.taker.ahead)
}

// coming is how many messages the claims under way may bring.
func (m *Machine) coming() int { return m.main.coming() + m.second.coming() }

// claimWaits is until when the next claim waits for more to be ready; zero: it does not. It waits if the last one brought many
// messages, all that were ready, and they are taken already: others will be ready by then.
func (m *Machine) claimWaits(now time.Time) time.Time {
	end := m.dates.answered.Add(gather)
	if m.brought < manyBrought || m.supply == More || m.held.buffer.len() > 0 || !now.Before(end) || !m.canGather(&m.untold) {
		return time.Time{}
	}
	return end
}

// claim fills in what all claims have and puts the claim under way in the lane.
func (m *Machine) claim(l *Lane, c queue.Claim) *queue.Claim {
	c.Lease, c.Bytes, c.Expiry = m.limits.Lease, claimBytes, m.limits.GroupExpiry
	c.Counts, m.counts = m.counts, queue.Counts{}
	if l == &m.main { // the second lane is never woken
		c.Address = m.limits.Address
	}
	return l.ask(&c)
}

// planForget claims nothing in the second lane, so that Redis forgets its last claim: when no more is claimed there, and the
// exchange goes anyway, or the subscription closes.
func (m *Machine) planForget(anyway bool) *queue.Claim {
	if m.second.remembered == 0 || m.second.claim != nil || m.phase == Open && (!anyway || m.supply == More) {
		return nil
	}
	return m.claim(&m.second, queue.Claim{Busy: true})
}

// PlanBeside returns an exchange to be carried out beside the main lane's, or nil. So the server has work while one answer is
// taken in and the next exchange is written. There is one only if the last claim left something, at least a third of what the
// consumer wants is still to come, and nothing went wrong. The server may run either exchange first, so there is none with
// MaxInFlight 1, where the order counts, nor where a suspect has to be alone.
func (m *Machine) PlanBeside(now time.Time) *Exchange {
	main := m.main.claim
	switch {
	case m.supply != More || m.limits.MaxInFlight == 1:
	case m.main.state != LaneAsked || main.Limit == 0 || !main.Busy: // what is not busy may get a suspect
	case m.second.state != LaneIdle || m.phase != Open || m.taker.state != Takes:
	case m.suspect.state == SuspectNext || m.isAlone(now):
	default:
		free, prefetch := m.wanted()
		limit := free + prefetch - m.held.buffer.len() - m.coming()
		if limit < manyBrought || limit < (free+prefetch)/3 {
			return nil
		}
		x := &Exchange{beside: true}
		x.Acks, m.untold.Acks = m.untold.Acks, nil
		x.Claims = []*queue.Claim{m.claim(&m.second, queue.Claim{Limit: min(limit, mostClaimed), Busy: true})}
		return x
	}
	return nil
}

// wakeAt is when to call Plan again if no event comes before.
func (m *Machine) wakeAt(now time.Time) time.Time {
	wake := m.dates.poll
	if m.phase != Open {
		if wake = m.dates.extend; m.keepsGroup() {
			wake = earlier(wake, m.dates.poll)
		}
	} else if end := m.claimWaits(now); !end.IsZero() && m.supply != Waiting {
		wake = earlier(wake, end)
	}
	if m.held.len() > 0 {
		wake = earlier(wake, m.dates.extend)
	}
	if m.held.buffer.len() > 0 {
		wake = earlier(wake, m.held.buffer.first().claimed.Add(longestStay+time.Millisecond))
	}
	if m.waitsForSuspect(now) {
		wake = earlier(wake, m.aloneUntil())
	}
	return wake
}

// waitsForSuspect reports whether a claim is put off until a suspect has been alone for long enough, or waited to be.
func (m *Machine) waitsForSuspect(now time.Time) bool {
	return (m.suspect.state == SuspectNext || m.isAlone(now)) && m.held.buffer.len()+m.coming() == 0 &&
		m.taker.state != Stuck && m.phase == Open && len(m.held.inHand) < m.limits.MaxInFlight
}
