package consume

import (
	"math"
	"time"
)

// Supply is what is known about the group's ready messages.
type Supply int

const (
	Unknown Supply = iota // after a wake-up or a failed claim: the next plan claims, perhaps nothing
	Empty                 // the last claim left none, and the subscription is no waiter
	More                  // the last claim left some
	Waiting               // the last claim left none, and Redis wakes the subscription for the next
)

// Suspect is what is known about suspects that need few neighbours. A suspect is a message whose
// last lease expired, perhaps because the message ended its process. From the second expiry in a
// row on, it may be held with few other messages only (queue.Leased.Company), until it ends or was
// held for a lease. Handlers may run for hours, so the wait for it and its turn are a lease at
// most.
type Suspect struct {
	state   SuspectState
	company int       // how many messages may be held with the next suspect; only in SuspectNext
	until   time.Time // end of the wait until few enough are held; zero: there is no wait
}

// SuspectState is where a suspect that needs few neighbours may be.
type SuspectState int

const (
	NoSuspect   SuspectState = iota // none is next, and none is held
	SuspectNext                     // one is next, and too many messages were held for it
	SuspectHeld                     // one may be held
)

// told takes in what a claim told about suspects. Suspects that follow each other share one wait:
// all that was held at its beginning has ended by its end, unless a handler runs for longer than a
// lease.
func (m *Machine) told(now time.Time, c *Claimed, came time.Time) {
	s := &m.suspect
	if c.Blocked > 0 {
		if s.until.IsZero() {
			s.until = came.Add(m.limits.Lease)
		}
		s.state, s.company = SuspectNext, c.Blocked
		return
	}
	needy := 0
	for i := range c.Messages {
		if m.company(&c.Messages[i]) < math.MaxInt {
			needy++
		}
	}
	if needy == 0 || needy < len(c.Messages) {
		s.until = time.Time{}
	}
	if needy > 0 || s.state != NoSuspect {
		s.state = SuspectHeld
		if m.mayHold(now) == math.MaxInt {
			s.state = NoSuspect
		}
	}
}

// company is how many messages may be held together with this one.
func (m *Machine) company(held *Message) int { return held.Company(m.most()) }

// most is how many messages count as a full hand.
func (m *Machine) most() int { return min(m.limits.MaxInFlight, fullHand) }

// mayHold is how many messages may be held now, because of the suspects among them.
func (m *Machine) mayHold(now time.Time) int {
	most := math.MaxInt
	if m.suspect.state == NoSuspect {
		return most
	}
	m.held.each(func(held *Message) {
		if now.Before(held.claimed.Add(m.limits.Lease)) {
			most = min(most, m.company(held))
		}
	})
	return most
}

// turnsEnd is when suspects are not waited for any more: the wait for the next one is over, and so
// is the turn of each one that is held.
func (m *Machine) turnsEnd() time.Time {
	end := m.suspect.until
	m.held.each(func(held *Message) {
		if turn := held.claimed.Add(m.limits.Lease); m.company(held) < math.MaxInt && turn.After(end) {
			end = turn
		}
	})
	return end
}
