package redisdelay

import (
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// exchange is what goes to Redis in one round trip.
type exchange struct {
	settlements
	extend   []*queue.Leased
	extendTo uint64         // the last of them, or later
	claims   []*queue.Claim // one of each lane at most
	asked    []func()       // to be called when the claim was answered, and all was judged by it
}

// plan decides what to say to Redis now: nil for nothing, until wake or a signal.
func (s *subscription) plan(now time.Time) (x *exchange, wake time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.ctx.Err() != nil {
		s.close() // for whoever watches the context may only come to it later
	}
	x = &exchange{}
	if !now.Before(s.nextExtend) {
		x.extend, x.extendTo = s.planExtend(now), s.sequence
	}
	for _, l := range []*lane{&s.main, &s.ahead} {
		if l.isUnanswered() {
			x.claims = append(x.claims, l.claim)
		}
	}
	if s.main.isUnanswered() {
		// What it has brought comes after all that is here, so nothing goes back before it is known.
		x.acks, s.settled.acks = s.settled.acks, nil
	} else {
		s.planRelease(now)
		if c := s.planClaim(now, len(x.extend) > 0); c != nil {
			x.claims = append(x.claims, c)
		}
		if c := s.planForget(len(x.claims) > 0); c != nil {
			x.claims = append(x.claims, c)
		}
		x.settlements, s.settled = s.settled, settlements{}
	}

	if s.handOver && len(x.extend) == 0 { // nothing is on offer, and nothing will be; a lost lease is known after an extension
		call(s.asked)
		s.asked = nil
	}
	s.gathers = false
	if len(x.extend) == 0 && len(x.claims) == 0 {
		if x.empty() {
			return nil, s.wakeAt(now)
		}
		if end := s.answered.Add(gather); s.canGather(x.settlements) && now.Before(end) {
			s.settled, s.gathers = x.settlements, true
			return nil, end
		}
	}
	if s.main.claim != nil {
		x.asked, s.asked = s.asked, nil
	}
	s.asking = true
	switch {
	case s.watched:
	case len(x.extend) > 0:
		s.watchLeases()
	default: // what need not be extended yet lasts longer than this
		s.watchFrom(now.Add(s.config.LeaseDuration / 4))
	}
	return x, s.wakeAt(now)
}

// gather is how long after an exchange acks wait for others, or for a claim, and claims for more to be ready: a call
// costs Redis as much as a dozen messages in it.
const gather = time.Millisecond

// crowd is how many messages a claim has to bring for the next one to wait. Where fewer come, each is claimed at once.
const crowd = 32

// gathered is how many acks wait for no more.
const gathered = 256

func (s *subscription) canGather(settled settlements) bool {
	return len(settled.nacks) == 0 && len(settled.releases) == 0 && len(settled.acks) < gathered && !s.isClosing()
}

// urgent tells whether run is to look at what was settled at once. s.mu is held.
func (s *subscription) urgent() bool {
	switch {
	case s.asking: // it looks when it has the answer
		return false
	case s.gathers:
		return !s.canGather(s.settled)
	default:
		return true
	}
}

// hoard is how long a claimed message may wait for the consumer. What waits longer goes back, for
// others to take.
const hoard = 100 * time.Millisecond

// planRelease takes back what the consumer should not get, or does not get to.
func (s *subscription) planRelease(now time.Time) {
	if s.buffer.len() == 0 {
		return
	}
	if s.held || s.handOver {
		s.releaseBuffer()
	} else if now.Sub(s.buffer.first().claimed) > hoard {
		s.stuck = s.takesNothing()
		s.room = max(1, len(s.inHand))
		s.releaseBuffer()
	}
}

// takesNothing tells whether the consumer cannot take a message before it has settled one, or has not taken the one on
// offer. Else nothing is on offer yet, which is not its fault, and it may settle nothing before it gets another.
func (s *subscription) takesNothing() bool {
	return len(s.inHand) >= s.config.MaxInFlight || slices.ContainsFunc(s.inHand, func(d *delivery) bool { return d.handed.IsZero() })
}

func (s *subscription) releaseBuffer() {
	s.release(s.buffer.all())
	s.buffer = buffer{}
}

func (s *subscription) release(messages []leased) {
	s.settled.releases = append(s.settled.releases, messages...)
}

// planClaim decides whether to ask for messages, and for how many. anyway: there is something to say besides.
func (s *subscription) planClaim(now time.Time, anyway bool) *queue.Claim {
	poll := !now.Before(s.nextPoll)
	if s.isClosing() {
		if s.left && (!poll || !s.keepsGroup()) {
			return nil
		}
		s.nextPoll = now.Add(jitter(s.mailbox.Poll()))
		return s.claim(&s.main, 0, 0, false) // others are to be woken from now on
	}
	if !poll && !anyway && !s.crowded(now).IsZero() {
		return nil
	}
	woken := s.woken
	here := s.buffer.len() + s.coming()
	busy := len(s.inHand)+here > 0
	free, prefetch := s.wanted()
	limit := free + prefetch - here
	s.refill = (free + prefetch) * 3 / 4
	waitsForSuspect := s.blocked && busy
	if waitsForSuspect && free > 0 && !now.Before(s.aloneUntil()) {
		// Handlers run for so long that the suspect is taken beside their messages, before all stands
		// still for them.
		waitsForSuspect, busy = false, false
	}
	if s.stuck || s.isAlone(now) || waitsForSuspect && !woken && !poll && (s.waits || free <= here) {
		free, limit = 0, 0
	}
	switch {
	case woken, poll:
	case s.blocked && limit > 0:
	case s.more && limit > 0 && here <= s.refill:
	case !s.waits && free > 0 && here == 0:
	default:
		return nil
	}
	s.woken = false
	s.nextPoll = now.Add(jitter(s.mailbox.Poll()))
	if limit <= 0 && !woken && s.options.Expiry == 0 { // else the group has to be seen to be in use
		s.waits = false // not renewed, the place among the waiters ends
		return nil
	}
	slots := free - here
	if s.brought >= crowd && now.Before(s.answered.Add(2*gather)) {
		slots = 0 // nobody need wake it: if this one brings as many, the next comes in a moment anyhow
	}
	return s.claim(&s.main, max(limit, 0), slots, busy)
}

// keepsGroup tells whether a subscription that closes has to go on showing that its group is in use: handlers run.
func (s *subscription) keepsGroup() bool { return s.options.Expiry > 0 && len(s.inHand) > 0 }

// wanted is how many messages the consumer can take at once, and how many more it will get done soon.
func (s *subscription) wanted() (free, prefetch int) {
	free = min(s.config.MaxInFlight-len(s.inHand), s.room, mostClaimed)
	return free, min(s.pace.prefetch(min(s.config.MaxInFlight, s.room)), s.trust)
}

// coming is how many messages the claims under way may bring.
func (s *subscription) coming() int {
	n := 0
	for _, l := range []*lane{&s.main, &s.ahead} {
		if l.claim != nil {
			n += l.claim.Limit
		}
	}
	return n
}

// crowded is until when the next claim waits for more, or zero: it does not. The last one brought many, all that were
// ready, and they are taken already, so that others will be ready by then.
func (s *subscription) crowded(now time.Time) time.Time {
	end := s.answered.Add(gather)
	if s.brought < crowd || s.more || s.buffer.len() > 0 || !now.Before(end) || !s.canGather(s.settled) {
		return time.Time{}
	}
	return end
}

// aloneUntil is until when a suspect that is next waits for the subscription to hold nothing else: for a LeaseDuration,
// and for one more beside another suspect, since it may be either of them that ends the process. And until when nothing is
// taken beside a suspect: handlers may run for hours, and all that is ready would wait for them.
func (s *subscription) aloneUntil() time.Time {
	until := s.blockedUntil
	wait := func(m *leased) {
		if end := m.claimed.Add(s.config.LeaseDuration); m.Suspect && end.After(until) {
			until = end
		}
	}
	for _, d := range s.inHand {
		wait(&d.leased)
	}
	for i := range s.buffer.all() {
		wait(&s.buffer.all()[i])
	}
	return until
}

// isAlone tells whether the only message that is held is a suspect that is to be alone still.
func (s *subscription) isAlone(now time.Time) bool {
	if len(s.inHand)+s.buffer.len() != 1 || !now.Before(s.aloneUntil()) {
		return false
	}
	if len(s.inHand) == 1 {
		return s.inHand[0].Suspect
	}
	return s.buffer.first().Suspect
}

// mostClaimed is how many messages one claim brings at most: about a millisecond of the server's time, for which it
// does nothing for anybody else.
const mostClaimed = 256

// claimBytes is how many bytes of messages one claim brings, about.
const claimBytes = 4 << 20

func (s *subscription) claim(l *lane, limit, slots int, busy bool) *queue.Claim {
	l.claim = &queue.Claim{
		Subscription: l.id,
		Number:       l.claims,
		Limit:        min(limit, mostClaimed),
		Busy:         busy,
		Lease:        s.config.LeaseDuration,
		Slots:        slots,
		Address:      s.address,
		Patience:     3 * s.mailbox.Poll(),
		Bytes:        claimBytes,
		Expiry:       s.options.Expiry,
		Counts:       s.counts,
	}
	s.counts = queue.Counts{}
	return l.claim
}

// wakeAt is when there is something to do without a signal.
func (s *subscription) wakeAt(now time.Time) time.Time {
	wake := s.nextPoll
	earlier := func(t time.Time) {
		if t.Before(wake) {
			wake = t
		}
	}
	if s.isClosing() {
		if wake = s.nextExtend; s.keepsGroup() {
			earlier(s.nextPoll)
		}
	} else if end := s.crowded(now); !end.IsZero() && (s.woken || !s.waits) {
		earlier(end)
	}
	if len(s.inHand)+s.buffer.len() > 0 {
		earlier(s.nextExtend)
	}
	if s.buffer.len() > 0 {
		earlier(s.buffer.first().claimed.Add(hoard + time.Millisecond))
	}
	if (s.blocked || s.isAlone(now)) && s.buffer.len()+s.coming() == 0 && !s.stuck && !s.isClosing() && len(s.inHand) < s.config.MaxInFlight {
		earlier(s.aloneUntil())
	}
	return wake
}
