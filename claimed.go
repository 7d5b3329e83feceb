package redisdelay

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// takeClaims takes in what the claims of an exchange brought, and returns the first error.
func (s *subscription) takeClaims(x *exchange, calls []*queue.Call, sent time.Time) (first error) {
	judged := false // by the server's time that a claim told
	for i, c := range x.claims {
		err := s.claimed(c, calls[i], sent)
		if s.laneOf(c) == &s.main {
			judged = err == nil
			if errors.Is(err, queue.ErrUnregistered) {
				err = s.registerAgain()
			} else if judged && s.groupGone { // registering seemed to fail, or another did it
				s.groupIsBack()
			}
		}
		first = cmp.Or(first, err)
	}
	if judged {
		s.answer(x.asked)
	} else {
		s.askAgain(x)
	}
	return first
}

// claimed takes in what a claim brought.
func (s *subscription) claimed(c *queue.Claim, call *queue.Call, sent time.Time) error {
	l, now := s.laneOf(c), time.Now()
	took := now.Sub(sent)
	if l.isUnanswered() { // what it brings may be leased since then
		sent = l.unanswered
	}
	deadline := sent.Add(s.config.LeaseDuration)
	lease := &lease{claimed: now, deadline: deadline}
	claimed, err := c.ReadClaimTo(func(m queue.Leased) {
		l.arrived = append(l.arrived, leased{Leased: m, lease: lease})
	}, call)
	if claimed.Orphans > 0 {
		s.logger.Error("Messages had lost their bodies in Redis and were dropped",
			errors.New("bodies are missing"), watermill.LogFields{"messages": claimed.Orphans})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer l.forgetArrived()
	if err != nil {
		return s.claimFailed(c, err, sent)
	}
	l.claims++
	l.remembered = len(l.arrived) > 0 || l.isUnanswered()
	l.claim, l.unanswered = nil, time.Time{}
	if third := sent.Add(s.config.LeaseDuration / 3); third.Before(s.nextExtend) {
		s.nextExtend = third
	}
	if c.Limit > 0 {
		s.noteBlocked(claimed.Blocked, len(l.arrived) == 1 && l.arrived[0].Suspect, now)
	}
	s.more = claimed.More
	if l == &s.main {
		s.left = c.Limit == 0 && s.isClosing()
		s.waits = claimed.Waits
		s.server, s.sent, s.heard = claimed.Now, now.Add(-took), now
		s.brought = len(l.arrived)
	}
	for i := range l.arrived {
		s.sequence++
		l.arrived[i].sequence = s.sequence
	}
	switch {
	case now.After(deadline): // the leases may be over, or just have begun
		s.warnOfSlowness(took, len(l.arrived))
		s.release(l.arrived)
	case len(s.settled.releases) > 0: // Redis was not reached with them, and they come before these
		s.release(l.arrived)
	case len(l.arrived) > 0:
		s.buffer.append(l.arrived)
	case c.Limit == 0: // nothing more is claimed here for now
		l.arrived = nil
	case s.buffer.len() == 0 && cap(l.arrived) > crowd: // nothing is ready, so not that many come soon
		s.buffer, l.arrived = buffer{}, nil
	}
	if s.watched && deadline.Before(s.watchAt) {
		s.watchLeases()
	}
	return nil
}

// warnOfSlowness says, once, that messages go back because an answer took longer than their leases last. If each does,
// nobody ever sees them, and the leases that run out may use up their deliveries. s.mu is held.
func (s *subscription) warnOfSlowness(took time.Duration, messages int) {
	if s.slow || messages == 0 || took <= s.config.LeaseDuration {
		return
	}
	s.slow = true
	s.logger.Error("Redis took longer to answer than LeaseDuration, so what it gave goes back; LeaseDuration has to be well above that",
		errSlow, watermill.LogFields{"took": took, "lease_duration": s.config.LeaseDuration, "messages": messages})
}

// noteBlocked notes what a claim told of suspects: whether one is next, or was brought. Those that come one after the
// other wait together, or each would keep what is behind them all for a LeaseDuration more. s.mu is held.
func (s *subscription) noteBlocked(blocked, brought bool, now time.Time) {
	switch {
	case blocked && s.blockedUntil.IsZero():
		s.blockedUntil = now.Add(s.config.LeaseDuration)
	case !blocked && !brought:
		s.blockedUntil = time.Time{}
	}
	s.blocked = blocked
}

// claimFailed notes a claim that is to be sent again as it is, because it may have brought something; or else has another made
// in its place. It returns what is to be said of it. sent is when the claim was sent first. s.mu is held.
func (s *subscription) claimFailed(c *queue.Claim, err error, sent time.Time) error {
	l := s.laneOf(c)
	switch {
	case errors.Is(err, queue.ErrUnregistered): // the group is gone, and with it what was claimed
		l.claim, l.unanswered, l.remembered = nil, time.Time{}, false
		if l == &s.ahead && c.Limit == 0 {
			return nil
		}
		s.woken = true
	case queue.Unreachable(err), l == &s.ahead, l.isUnanswered() && time.Since(sent) < s.config.LeaseDuration:
		// The server may have refused what it did before.
		l.claim, l.unanswered = c, sent
		c.Slots = 0 // it is not to wait if it is sent again
	default: // the script did nothing; or the leases that it gave are over, and nothing else need wait any longer
		if l.isUnanswered() {
			l.claims++ // the same number would bring what it brought, whose leases are over
		}
		l.claim, l.unanswered = nil, time.Time{}
		s.counts.Add(c.Counts)
		s.woken = true
	}
	return err
}

// registerAgain is called when the server has lost its data. The group is to exist as long as it is subscribed to.
func (s *subscription) registerAgain() error {
	s.groupGone = true
	if err := s.topic.Register(s.calls, s.group.Name, s.options); err != nil {
		return err
	}
	s.groupIsBack()
	return nil
}

// groupIsBack says, once for each time, that the group was gone: not before it is back, which it may never be, as where a newer
// layout has taken the topic over.
func (s *subscription) groupIsBack() {
	s.groupGone = false
	s.logger.Error("The consumer group is gone from Redis, with all that it held; it is registered again", errGroupGone, nil)
	s.mailbox.DataLost() // the sooner other groups are back, the less they miss
}
