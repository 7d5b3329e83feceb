package consume

import "time"

// Places are how many messages of the subscription the consumer may have. They are always
// MaxInFlight, unless several subscriptions share a Budget.
type Places struct {
	has  int     // places for messages in hand, those that are in use included
	fair float64 // how many the subscription has while all others want places, too
}

// Wants returns how many places are in use, and how many the subscription could use in all. hands
// tells that a message is about to be taken from the buffer, if one is there.
func (m *Machine) Wants(now time.Time, hands bool) (needs, wants int) {
	if m.phase == Over {
		return 0, 0
	}
	needs = len(m.held.inHand)
	if m.phase != Open || m.taker.state == Paused || m.taker.state == Gone {
		return needs, needs
	}
	more := m.held.buffer.len()
	wants = needs + more
	if claims := m.supply != Waiting || !now.Before(m.dates.poll); claims && m.main.state != LaneUnanswered {
		wants = needs + max(more, min(m.taker.room, mostClaimed))
	}
	if hands && more > 0 && needs < m.limits.MaxInFlight {
		needs++
	}
	return needs, max(needs, min(wants, m.limits.MaxInFlight))
}

// Granted takes in how many places the subscription has.
func (m *Machine) Granted(has int, fair float64) Wake {
	more := has > m.places.has
	m.places = Places{has: has, fair: fair}
	if !more {
		return 0
	}
	if m.taker.state == Stuck && len(m.InHand()) == len(m.held.inHand) { // there was no place
		m.taker.state = Takes
	}
	return Talk | Feed
}
