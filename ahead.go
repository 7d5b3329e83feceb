package redisdelay

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// lane is a way in which claims go to Redis, one after the other. For Redis each lane is a subscription: it remembers
// the last claim of each, if that brought anything.
type lane struct {
	id         string       // random
	claims     uint64       // number of the claim under way, or of the next
	claim      *queue.Claim // under way, or to be sent again; or nil
	unanswered time.Time    // when the claim was first sent, if it had no answer, and is to be sent again; or zero
	remembered bool         // by Redis
	arrived    []leased     // room for what a claim brings
}

func (l *lane) isUnanswered() bool { return !l.unanswered.IsZero() }

// forgetArrived leaves room for the next claim, which keeps nothing of the last: bodies would stay in memory.
func (l *lane) forgetArrived() {
	clear(l.arrived)
	l.arrived = l.arrived[:0]
}

// laneOf is the lane of a claim, which run sends again if it had no answer, whoever sent it first. Its room is for who
// has a claim of it under way.
func (s *subscription) laneOf(c *queue.Claim) *lane {
	if c.Subscription == s.ahead.id {
		return &s.ahead
	}
	return &s.main
}

// goAhead has more claimed while an exchange of run is under way, if there is need for it: else the server waits
// while an answer is taken in and the next exchange is written. Which of the two is answered first is chance, so it is not
// for subscriptions in order. s.mu is held.
func (s *subscription) goAhead() {
	x := s.planAhead()
	if x == nil {
		return
	}
	s.others.Add(1)
	go s.claimAhead(x)
}

// claimAhead has exchanges in the second lane for as long as there is need for them.
func (s *subscription) claimAhead(x *exchange) {
	defer s.others.Done()
	for x != nil {
		err := s.tell(x)
		s.mu.Lock()
		s.stumbled = s.stumbled || err != nil
		x = s.planAhead()
		s.mu.Unlock()
	}
	signal(s.kick) // there may be less to claim than it seemed to run, or something failed that it is to repeat
}

// planAhead is an exchange beside that of run, or nil: only where the last claim left something, where a third of what is
// wanted has to come, which is worth a call to Redis, and where all is well. s.mu is held.
func (s *subscription) planAhead() *exchange {
	mine := s.main.claim
	switch {
	case !s.more || s.config.MaxInFlight == 1 || s.ahead.claim != nil:
		return nil
	case mine == nil || mine.Limit == 0 || !mine.Busy:
		return nil // run claims nothing now, or may get a message that is to be alone in hand
	case s.blocked || s.isAlone(time.Now()): // which is to be alone, too
		return nil
	case s.stumbled || s.main.isUnanswered() || s.stuck || s.held || s.handOver || s.isClosing() || s.ctx.Err() != nil:
		return nil
	}
	free, prefetch := s.wanted()
	limit := free + prefetch - s.buffer.len() - s.coming()
	if limit < crowd || limit < (free+prefetch)/3 {
		return nil
	}
	x := &exchange{claims: []*queue.Claim{s.claimAheadOf(limit)}}
	x.acks, s.settled.acks = s.settled.acks, nil
	return x
}

// claimAheadOf is a claim in the second lane. It is the other one that waits to be woken. s.mu is held.
func (s *subscription) claimAheadOf(limit int) *queue.Claim {
	c := s.claim(&s.ahead, limit, 0, true)
	c.Address = ""
	return c
}

// planForget is a claim of nothing in the second lane, so that Redis forgets the last: when there is no need for that lane any
// more, and run has something to say anyway, or the subscription closes. s.mu is held.
func (s *subscription) planForget(anyway bool) *queue.Claim {
	if !s.ahead.remembered || s.ahead.claim != nil || !s.isClosing() && (s.more || !anyway) {
		return nil
	}
	return s.claimAheadOf(0)
}
