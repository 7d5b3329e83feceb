package consume

import "time"

// Supply is what is known of the group's ready messages.
type Supply int

const (
	Unknown Supply = iota // a wake-up came, or a claim failed: the next plan claims, if only to pass the wake-up on
	Empty                 // the last claim left nothing, and nobody wakes this subscription
	More                  // the last claim left some
	Waiting               // the last claim left nothing, and a script that makes messages ready wakes this subscription
)

// Suspect is the rule for a message whose lease has run out before: for a lease it is alone in hand, since it may have ended its
// process.
type Suspect struct {
	state SuspectState
	until time.Time // end of the wait for nothing else to be held; zero: no wait has begun
}

// SuspectState is what the last claim told of suspects.
type SuspectState int

const (
	NoSuspect    SuspectState = iota // none is next, nor was brought
	SuspectNext                      // one is next, and wants a subscription that holds nothing else
	SuspectTaken                     // one was brought; one behind it has waited with it
)

// noted takes in what a claim told: whether a suspect is next, and whether it brought one.
func (s *Suspect) noted(next, brought bool, until time.Time) {
	switch {
	case next:
		s.state = SuspectNext
		if s.until.IsZero() {
			s.until = until
		}
	case brought:
		s.state = SuspectTaken
	default:
		*s = Suspect{}
	}
}

// aloneUntil is when the wait for a suspect ends: a lease after it began, and a lease after the last suspect in hand was claimed,
// because either of the two may end the process. Handlers may run for hours, so the wait has an end.
func (m *Machine) aloneUntil() time.Time {
	until := m.suspect.until
	m.held.each(func(held *Message) {
		if end := held.claimed.Add(m.limits.Lease); held.Suspect && end.After(until) {
			until = end
		}
	})
	return until
}

// isAlone reports whether the only message that is held is a suspect that has to stay alone.
func (m *Machine) isAlone(now time.Time) bool {
	if m.held.len() != 1 {
		return false
	}
	suspect := false
	m.held.each(func(held *Message) { suspect = held.Suspect })
	return suspect && now.Before(m.aloneUntil())
}
