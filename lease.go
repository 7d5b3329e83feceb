package redisdelay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// planExtend returns the messages whose lease is to be extended, in order. It runs three times in a
// lease, and again where that fails. s.mu is held.
func (s *subscription) planExtend(now time.Time) []*queue.Leased {
	s.nextExtend = now.Add(s.config.LeaseDuration / 3)
	s.loseExpired(now)
	var extend []*queue.Leased
	inHand := slices.Clone(s.inHand) // which come before those in the buffer
	slices.SortFunc(inHand, func(a, b *delivery) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, d := range inHand {
		if !d.handed.IsZero() && s.config.MaxExtension >= 0 && !d.decided() {
			end := d.handed.Add(s.config.LeaseDuration + s.config.MaxExtension)
			if !now.Before(end) {
				s.giveUp(d)
				continue
			}
			if end.Before(s.nextExtend) {
				s.nextExtend = end
			}
		}
		extend = append(extend, &d.Leased)
	}
	for _, m := range s.buffer.all() { // which may be taken meanwhile
		extend = append(extend, &queue.Leased{ID: m.ID, Token: m.Token})
	}
	return extend
}

// giveUp takes a message from a handler that has run for too long. s.mu is held.
func (s *subscription) giveUp(d *delivery) {
	s.abandon(d, ErrLeaseLost)
	s.tired = append(s.tired, d)
	s.holdFor(queue.In(0)) // what Backoff says is not known yet
}

// failTired counts the deliveries that were given up as failed. Backoff is the user's: it is called
// without s.mu.
func (s *subscription) failTired() {
	for _, d := range s.tired {
		f := queue.Failure{
			Leased: &d.Leased,
			Retry:  queue.In(d.backoff(d.number())),
			Limit:  d.limit,
			Reason: fmt.Sprintf("the handler ran for longer than %v (LeaseDuration and MaxExtension)",
				s.config.LeaseDuration+s.config.MaxExtension),
		}
		if !d.dies(f) {
			s.logger.Info("A handler ran for too long, its message is delivered again", watermill.LogFields{
				"message_id": d.ID,
			})
		}
		s.mu.Lock()
		s.fail(d, f)
		s.mu.Unlock()
		signal(s.feed)
		signal(s.kick)
	}
	s.tired = nil
}

// extended takes in which leases were lost, and the deadlines of the others, up to the last that was here when they
// were asked for. s.mu is held.
func (s *subscription) extended(calls []*queue.Call, sent time.Time, last uint64) {
	lost := map[string]bool{}
	for _, c := range calls {
		leases, err := queue.ReadLost(c)
		if err != nil {
			s.nextExtend = sent // the old deadlines hold
			return
		}
		for _, lease := range leases {
			lost[lease] = true
		}
	}
	if len(lost) > 0 {
		s.lose(func(m *leased) bool { return lost[m.Lease()] })
	}
	deadline := sent.Add(s.config.LeaseDuration)
	extend := func(m *leased) {
		if m.sequence <= last {
			m.deadline = deadline
		}
	}
	for _, d := range s.inHand {
		extend(&d.leased)
	}
	for i := range s.buffer.all() {
		extend(&s.buffer.all()[i])
	}
}

// watch ends the deliveries whose lease runs out while Redis does not answer, or between two attempts.
func (s *subscription) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched {
		s.watchLeases()
	}
}

// watchLeases ends the deliveries whose lease has run out, and looks again when the next does. s.mu is held.
func (s *subscription) watchLeases() {
	now := time.Now()
	s.loseExpired(now)
	next := now.Add(s.config.LeaseDuration)
	earlier := func(m *leased) {
		if m.deadline.Before(next) {
			next = m.deadline
		}
	}
	for _, d := range s.inHand {
		earlier(&d.leased)
	}
	for i := range s.buffer.all() {
		earlier(&s.buffer.all()[i])
	}
	s.watchFrom(next.Add(time.Millisecond))
}

// watchFrom has the leases looked at from then on, unless unwatch is called before. s.mu is held.
func (s *subscription) watchFrom(at time.Time) {
	s.watched, s.watchAt = true, at
	s.watchdog.Reset(time.Until(at))
}

// unwatch ends that. s.mu is held.
func (s *subscription) unwatch() {
	s.watched = false
	s.watchdog.Stop()
}

// loseExpired ends the deliveries whose lease was not extended in time, as far as can be told here:
// they are another's by now, or soon. s.mu is held.
func (s *subscription) loseExpired(now time.Time) {
	s.lose(func(m *leased) bool { return now.After(m.deadline) })
}

// lose ends what is held of messages that are another's now. It does not look at bodies, which handOut may be
// unmarshaling. s.mu is held.
func (s *subscription) lose(anothers func(*leased) bool) {
	some := s.buffer.remove(anothers)
	for _, d := range slices.Clone(s.inHand) {
		if !anothers(&d.leased) {
			continue
		}
		some = true
		s.logger.Info("The lease of a message was lost while its handler ran", watermill.LogFields{
			"message_id": d.ID,
		})
		s.abandon(d, ErrLeaseLost)
	}
	if some {
		signal(s.feed)
		signal(s.kick)
	}
}
