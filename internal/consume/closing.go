package consume

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Close begins to close the subscription, and returns at once. Nothing more is handed out. Messages
// that were handed out can be settled for CloseTimeout. Their contexts end after a third of it.
// Calls to Redis go on for half a second longer than CloseTimeout. If Redis does not answer, and
// has answered all settlements, they end sooner.
func (s *Subscription) Close() { s.close() }

// Leave begins to end the subscription, and returns at once. Nothing more is handed out. It ends
// when all messages that were handed out are settled, however long that takes, or as by Close.
func (s *Subscription) Leave() { s.leave() }

func (s *Subscription) beginLeaving() {
	s.step(func(m *Machine, _ time.Time) Effects { return m.Close() })
	close(s.leaving)
	s.offer.send()
}

func (s *Subscription) beginClosing() {
	s.leave()
	s.step(func(m *Machine, now time.Time) Effects { return m.Hurry(now) })
	s.link.interrupt = after(s.CloseTimeout/3, s.interrupt)
	s.link.giveUp = after(s.CloseTimeout, s.giveUp)
	s.link.end = time.AfterFunc(s.CloseTimeout+500*time.Millisecond, s.link.cancel)
	close(s.closing) // the end of Run waits for it, and stops the timers
}

// interrupt ends the contexts of the messages that are not settled within a third of CloseTimeout.
func (s *Subscription) interrupt() { s.endAll((*Machine).Interrupt) }

// giveUp ends the deliveries that are not settled within CloseTimeout. It waits for no Unmarshaler.
func (s *Subscription) giveUp() {
	s.step(func(*Machine, time.Time) (e Effects) {
		if s.reading.by != nil {
			e = s.replaceHandOut()
		}
		return e
	})
	s.takeBackLate()
	s.endAll((*Machine).GiveUp)
	s.others.Go(s.signOff) // handlers may still run, so their leases are to last
}

// endAll has the machine end something of all messages in hand, but for those that the consumer has
// settled. handOut may not have noticed that, as it is in the Unmarshaler.
func (s *Subscription) endAll(end func(*Machine, map[*InHand]bool) Effects) {
	s.mu.Lock()
	handed := slices.DeleteFunc(s.machine.InHand(), func(in *InHand) bool { return in.delivery.slow })
	s.mu.Unlock()
	settled := map[*InHand]bool{}
	for _, in := range handed {
		if in.delivery.decided() {
			settled[in] = true
		}
	}
	s.step(func(m *Machine, _ time.Time) Effects { return end(m, settled) })
	for in := range settled {
		s.settledNow(in.delivery)
	}
}

// Owes reports whether a settlement is to come, or Redis has not answered it.
func (s *Subscription) Owes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Owes()
}

// deadline has a function called later.
type deadline struct {
	timer *time.Timer
	over  chan struct{} // closed when the function has returned
}

func after(d time.Duration, f func()) deadline {
	over := make(chan struct{})
	return deadline{time.AfterFunc(d, func() { defer close(over); f() }), over}
}

// stop returns when the function will not be called any more, or has returned.
func (d deadline) stop() {
	if !d.timer.Stop() {
		<-d.over
	}
}

// ErrUntold means that the subscription had to end before Redis confirmed everything.
var ErrUntold = errors.New("what Redis was told last may not have reached it")

func (s *Subscription) endCalls() {
	<-s.closing
	s.link.cancel()
	s.link.interrupt.stop()
	s.link.giveUp.stop() // or the process could end before the lines are in the log
	s.link.end.Stop()
}

// cutOff ends the talk with a Redis that does not answer. It returns ErrUntold if settlements are
// not answered. Messages that nobody got are only logged, because their leases end in any case.
func (s *Subscription) cutOff() error {
	s.mu.Lock()
	owes, undelivered := s.machine.Owes(), s.machine.Undelivered()
	s.mu.Unlock()
	if !owes {
		s.Logger.Info("Redis does not answer at the end, and knows all settlements; messages that were not handed out are delivered again when their leases end",
			watermill.LogFields{"messages": undelivered})
		return nil
	}
	if s.link.fault == nil {
		return ErrUntold
	}
	return fmt.Errorf("%w: %w", ErrUntold, s.link.fault)
}

// standDown has another subscription take over at once, if this one was the active one of its
// group. If that fails, a scheduler does it when the lease has run out.
func (s *Subscription) standDown() {
	if !s.Options.SingleActive {
		return
	}
	if err := s.group.StandDown(s.link.ctx, s.Name); err != nil {
		s.Logger.Debug("Cannot hand over to another subscription, a scheduler will", watermill.LogFields{"err": err})
	}
}

// signOff removes the subscription from the workers of its group. If that fails, it goes from there
// when it was not seen for a while.
func (s *Subscription) signOff() {
	if err := s.group.SignOff(s.link.ctx, s.Name); err != nil {
		s.Logger.Debug("Cannot take the subscription off the list of workers, it will be left out later", watermill.LogFields{"err": err})
	}
}

// removeOwnGroup removes the group of a subscription that has one of its own.
func (s *Subscription) removeOwnGroup() {
	if !s.OwnsGroup {
		return
	}
	if err := s.Topic.Remove(s.link.ctx, s.group.Name); err != nil {
		s.Logger.Debug("Cannot remove the subscription's group, a scheduler will", watermill.LogFields{"err": err})
	}
}
