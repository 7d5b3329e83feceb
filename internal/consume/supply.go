package consume

import "time"

// Supply is what is known about the group's ready messages.
type Supply int

const (
	Unknown Supply = iota // after a wake-up or a failed claim: the next plan claims, perhaps nothing
	Empty                 // the last claim left none, and the subscription is no waiter
	More                  // the last claim left some
	Waiting               // the last claim left none, and Redis wakes the subscription for the next
)

// Suspect is what is known about suspects. A suspect is a message whose lease has expired, perhaps
// because the message ended its process. It is alone in hand for a lease.
type Suspect struct {
	state SuspectState
	until time.Time // end of the wait until nothing else is in hand; zero: there is no wait
}

// SuspectState is what the last claim told about suspects.
type SuspectState int

const (
	NoSuspect    SuspectState = iota // none is next, and none was claimed
	SuspectNext                      // one is next, for a subscription that holds nothing else
	SuspectTaken                     // one was claimed; a suspect behind it shares its wait
)

// told takes in what a claim told: whether a suspect is next, and whether one was claimed.
func (s *Suspect) told(next, claimed bool, until time.Time) {
	switch {
	case next:
		s.state = SuspectNext
		if s.until.IsZero() {
			s.until = until
		}
	case claimed:
		s.state = SuspectTaken
	default:
		*s = Suspect{}
	}
}

// aloneUntil is when the rule for suspects ends: the wait for one to be alone, and the time alone
// of each one in hand. Both are a lease long, because handlers may run for hours.
func (m *Machine) aloneUntil() time.Time {
	until := m.suspect.until
	m.held.each(func(held *Message) {
		if end := held.claimed.Add(m.limits.Lease); held.Suspect && end.After(until) {
			until = end
		}
	})
	return until
}

// isAlone reports whether the only message held is a suspect that has to stay alone.
func (m *Machine) isAlone(now time.Time) bool {
	if m.held.len() != 1 {
		return false
	}
	suspect := false
	m.held.each(func(held *Message) { suspect = held.Suspect })
	return suspect && now.Before(m.aloneUntil())
}
