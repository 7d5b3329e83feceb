package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Property is what must hold whatever fails.
type Property int

const (
	Settlement  Property = iota + 1 // an acknowledged publish is acked, cancelled or dead in every group; a refused one is not there
	NotEarly                        // no claim before due
	Contents                        // they are unchanged
	Limit                           // deliveries within the limit, dead exactly once
	AckHolds                        // no delivery after a confirmed ack, cancel or death
	OneLease                        // at most one live lease; so handlers overlap only after an expiry
	StaleSettle                     // a settlement with a lease that was lost changes nothing
	ReturnTime                      // a nack returns after its delay, a lost lease after its end, both within a bound
	OneState                        // a message is in one state of each group at every sampled moment
	Isolation                       // what one group does is nothing to another
	OneCopy                         // what the client sends again makes one copy
	Clean                           // after draining there are only documented keys
	Closing                         // Close in bound, no goroutine left, the caller's client open
)

var propertyNames = map[Property]string{
	Settlement: "settlement", NotEarly: "not early", Contents: "contents", Limit: "limit", AckHolds: "ack holds",
	OneLease: "one lease", StaleSettle: "stale settle", ReturnTime: "return time", OneState: "one state",
	Isolation: "isolation", OneCopy: "one copy", Clean: "clean", Closing: "closing",
}

func (p Property) String() string { return fmt.Sprintf("%d (%s)", int(p), propertyNames[p]) }

// Rules say what a history is checked against.
type Rules struct {
	Topics []string
	Groups []string // those that exist all the time

	MaxDeliveries int // of all groups; 0: no limit

	// Return is how late a nacked message, or one whose lease was lost, may be claimed; 0: not checked. Outages that
	// are in the history do not count, nor does the time when nobody of the group was at work.
	Return time.Duration

	CloseWithin time.Duration // default 7s: the workers' CloseTimeout of 5s, a second that the library takes, and one of a busy machine

	// ClockSteps is for a server whose clock is set back from this machine's for a while: then its times say nothing
	// about what came first, and a message may be due because it was so before.
	ClockSteps bool

	// LosesData is for a server that forgets what it has confirmed: then a message may be lost, come after its
	// ack, or be leased twice. How many were lost is among the figures.
	LosesData bool

	// LosesIn limits that: only what happened in one of these spans of time may be forgotten. Nil: anything.
	LosesIn []Span

	// Replicated limits it, too: what Publish has confirmed is not forgotten, since it waited for those who took over.
	Replicated bool
}

// Span is from when all before was safe until the server was killed, in ns, as Event.At, and for a topic, or for all
// if that is empty.
type Span struct {
	Safe, Killed int64
	Topic        string
}

// Violation is what must not be.
type Violation struct {
	Property Property
	Text     string
}

func (v Violation) String() string { return fmt.Sprintf("property %v: %s", v.Property, v.Text) }

// Figures are what a history amounts to.
type Figures struct {
	Published, Refused, Unknown, Cancelled int           // messages, by what Publish and Cancel returned
	Deliveries, Redeliveries               int           // handlers begun, and those among them that were not a message's first in its group
	Acked, Dead                            int           // messages times groups
	Lost                                   int           // acknowledged messages that a server which forgets has lost, times groups
	Latest                                 time.Duration // from when a message was due to its claim, at most
	Handed                                 time.Duration // the same to its handler's beginning
	Unanswered, Seen                       int           // settled by an ack without an answer; those among them that were seen under its lease before they were gone
	Back                                   time.Duration // the most that a message came back late, without outages
	Looks                                  int           // of the sampler
}

func (f Figures) String() string {
	parts := []string{fmt.Sprintf("%d published", f.Published)}
	for _, part := range []struct {
		n    int
		what string
	}{
		{f.Refused, "refused"}, {f.Unknown, "unknown"}, {f.Cancelled, "cancelled"}, {f.Deliveries, "delivered"},
		{f.Redeliveries, "of them again"}, {f.Dead, "dead"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	parts = append(parts, fmt.Sprintf("%d lost", f.Lost), fmt.Sprintf("at most %v late", f.Latest.Round(time.Millisecond)))
	if f.Unanswered > 0 {
		parts = append(parts, fmt.Sprintf("%d acks without an answer, %d of them seen", f.Unanswered, f.Seen))
	}
	if f.Back > 0 {
		parts = append(parts, fmt.Sprintf("back after %v at most", f.Back.Round(time.Millisecond)))
	}
	if f.Looks > 0 {
		parts = append(parts, fmt.Sprintf("%d looks", f.Looks))
	}
	return strings.Join(parts, ", ")
}

// Plus adds up the figures of two histories.
func (f Figures) Plus(o Figures) Figures {
	f.Published += o.Published
	f.Refused += o.Refused
	f.Unknown += o.Unknown
	f.Cancelled += o.Cancelled
	f.Deliveries += o.Deliveries
	f.Redeliveries += o.Redeliveries
	f.Acked += o.Acked
	f.Dead += o.Dead
	f.Lost += o.Lost
	f.Latest = max(f.Latest, o.Latest)
	f.Unanswered += o.Unanswered
	f.Seen += o.Seen
	f.Back = max(f.Back, o.Back)
	f.Looks += o.Looks
	return f
}

// Has tells whether a property is violated.
func Has(violations []Violation, p Property) bool {
	return slices.ContainsFunc(violations, func(v Violation) bool { return v.Property == p })
}
