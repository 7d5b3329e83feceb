package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Property is a property that must hold under all faults.
type Property int

const (
	Settlement  Property = iota + 1 // a confirmed message is acked, cancelled or dead in every group; a refused one is not in Redis
	NotEarly                        // no claim before due
	Contents                        // the contents are unchanged
	Limit                           // deliveries within the limit, dead exactly once
	AckHolds                        // no delivery after a confirmed ack, cancel or death
	OneLease                        // at most one live lease; so handlers overlap only after an expiry
	StaleSettle                     // a settlement under a lost lease changes nothing
	ReturnTime                      // a nacked message returns after its delay, a lost one after its lease, both within a bound
	OneState                        // a message is in one state of each group at every sampled moment
	Isolation                       // groups do not affect each other
	OneCopy                         // a call that the client repeats makes one copy
	Clean                           // after draining there are only documented keys
	Closing                         // Close returns in time, leaves no goroutine and keeps the caller's client open
	Order                           // messages of a key are handled in the order of their due times
	OneOwner                        // with SingleActive no two subscriptions have leases at one time, and the epoch grows
)

var propertyNames = map[Property]string{
	Settlement: "settlement", NotEarly: "not early", Contents: "contents", Limit: "limit", AckHolds: "ack holds",
	OneLease: "one lease", StaleSettle: "stale settle", ReturnTime: "return time", OneState: "one state",
	Isolation: "isolation", OneCopy: "one copy", Clean: "clean", Closing: "closing",
	Order: "order", OneOwner: "one owner",
}

func (p Property) String() string { return fmt.Sprintf("%d (%s)", int(p), propertyNames[p]) }

// Rules are the parameters of a check.
type Rules struct {
	Topics []string
	Groups []string // groups that exist all the time

	MaxDeliveries int // of all groups; 0: no limit

	// Return is the maximum lateness of the claim of a nacked message, or of one whose lease was
	// lost. 0 means that it is not checked. Outages in the history, and times without a working
	// consumer, do not count.
	Return time.Duration

	CloseWithin time.Duration // default 7s: CloseTimeout of 5s, a second for the library, and one for a busy machine

	// SingleActive means that all groups have the setting.
	SingleActive bool

	// ClockSteps is for a server whose clock is set back for a while. Its times then do not show
	// the order of events, and a message may be due because it was due before.
	ClockSteps bool

	// LosesData is for a server that loses confirmed writes. A message may then be lost, be
	// delivered after its ack, or be leased twice. The figures have the number of lost messages.
	LosesData bool

	// LosesIn limits the lost writes to these spans of time. Nil means no limit.
	LosesIn []Span

	// Replicated means that confirmed messages are not lost, because Publish waited for the
	// replicas.
	Replicated bool
}

// Span is a span in which writes may be lost, in ns as Event.At. It begins when all earlier writes
// were safe, and ends when the server was killed. It is for one topic, or for all if the topic is
// empty.
type Span struct {
	Safe, Killed int64
	Topic        string
}

// Violation is a violation of a property.
type Violation struct {
	Property Property
	Text     string
}

func (v Violation) String() string { return fmt.Sprintf("property %v: %s", v.Property, v.Text) }

// Figures are statistics of a history.
type Figures struct {
	Published, Refused, Unknown, Cancelled int           // messages, by the results of Publish and Cancel
	Deliveries, Redeliveries               int           // all handlers begun, and those that were not the first for a message in its group
	Acked, Dead                            int           // messages times groups
	Lost                                   int           // confirmed messages that the server lost, times groups
	Latest                                 time.Duration // maximum time from due to claim
	Handed                                 time.Duration // maximum time from due to the start of the handler
	Unanswered, Seen                       int           // settled by an ack without an answer, and those of them last seen under its lease
	Back                                   time.Duration // maximum lateness of a return, without outages
	Looks                                  int           // samples of Redis
	Keys                                   int           // different partition keys
	Pairs                                  int           // pairs of messages of a key whose order was checked
	Turns                                  int           // owners of groups with SingleActive
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
	if f.Keys > 0 {
		parts = append(parts, fmt.Sprintf("%d keys, %d pairs in order, %d turns", f.Keys, f.Pairs, f.Turns))
	}
	return strings.Join(parts, ", ")
}

// Plus returns the combined figures of two histories.
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
	f.Keys += o.Keys
	f.Pairs += o.Pairs
	f.Turns += o.Turns
	return f
}

// Has returns whether a property is violated.
func Has(violations []Violation, p Property) bool {
	return slices.ContainsFunc(violations, func(v Violation) bool { return v.Property == p })
}
