package consume

import (
	"math"
	"time"
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

// present is how many messages the process has: those that are held, and those with handlers whose
// lease was lost. Each of them may yet end the process.
func (m *Machine) present() int { return m.held.len() + m.held.lost }

// turns calls f for each suspect held that needs few neighbours, with the end of its turn: a lease
// after its handler got it, or after the claim if none has it yet.
func (m *Machine) turns(f func(company int, end time.Time)) {
	turn := func(held *Message, begun time.Time) {
		if company := m.company(held); company < math.MaxInt {
			f(company, begun.Add(m.limits.Lease))
		}
	}
	for _, in := range m.held.inHand {
		turn(&in.Message, later(in.claimed, in.handed))
	}
	for i := range m.held.buffer.all() {
		held := &m.held.buffer.all()[i]
		turn(held, held.claimed)
	}
}

// mayHold is how many messages may be held now, because of the suspects among them.
func (m *Machine) mayHold(now time.Time) int {
	most := math.MaxInt
	if m.suspect.state == NoSuspect {
		return most
	}
	m.turns(func(company int, end time.Time) {
		if now.Before(end) {
			most = min(most, company)
		}
	})
	return most
}

// turnsEnd is when suspects are not waited for any more. The wait for the next one is over, with a
// lease for a handler that began in that time, and so is the turn of each one that is held.
func (m *Machine) turnsEnd() time.Time {
	end := m.suspect.until
	for _, in := range m.held.inHand {
		if in.handed.Before(m.suspect.until) {
			end = later(end, in.handed.Add(m.limits.Lease))
		}
	}
	m.turns(func(_ int, turn time.Time) { end = later(end, turn) })
	return end
}
