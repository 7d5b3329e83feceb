package faults

import (
	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
)

// What follows tells from a history whether a fault has met what it was for. A test whose fault came while nothing was
// in hand, or in which nobody noticed it, shows nothing.

// inHand are the leases that were known at a moment and not settled yet, by token: of one worker, or of all.
func inHand(history []faulttest.Event, at int64, by string) map[string]faulttest.Event {
	held := map[string]faulttest.Event{}
	for _, e := range history {
		switch {
		case e.At > at || by != "" && e.By != by:
		case e.Kind == faulttest.Claimed:
			held[e.Token] = e
		case e.Kind == faulttest.Settled, e.Kind == faulttest.Refused, e.Kind == faulttest.Lost:
			delete(held, e.Token)
		}
	}
	return held
}

// late counts the settlements of leases that were answered after a moment, of calls by which Redis changed nothing.
func late(history []faulttest.Event, leases map[string]faulttest.Event, after int64) (n int) {
	for _, e := range history {
		if _, of := leases[e.Token]; of && e.Kind == faulttest.Settled && e.At > after && e.Count == 0 {
			n++
		}
	}
	return n
}

// again counts the leases whose messages were claimed once more after a moment.
func again(history []faulttest.Event, leases map[string]faulttest.Event, after int64) (n int) {
	for _, was := range leases {
		for _, e := range history {
			if e.Kind == faulttest.Claimed && e.At > after && e.ID == was.ID && e.Group == was.Group && e.Topic == was.Topic && e.Token != was.Token {
				n++
				break
			}
		}
	}
	return n
}

// delivery is a message in the hand of a handler.
type delivery struct {
	group, id string
	number    int
}

// handlersOf are the handlers of a worker that have begun and not ended.
func handlersOf(history []faulttest.Event, worker string) map[delivery]bool {
	open := map[delivery]bool{}
	for _, e := range history {
		of := delivery{e.Group, e.ID, e.Number}
		switch {
		case e.By != worker:
		case e.Kind == faulttest.Start:
			open[of] = true
		case e.Kind == faulttest.End:
			delete(open, of)
		}
	}
	return open
}

// callsOf counts the messages that a publisher was about to publish when it was last heard of.
func callsOf(history []faulttest.Event, publisher string) (n int) {
	for _, e := range history {
		switch {
		case e.By != publisher:
		case e.Kind == faulttest.Publish:
			n++
		case e.Kind == faulttest.Published, e.Kind == faulttest.Failed, e.Kind == faulttest.Unknown:
			n--
		}
	}
	return n
}

// uninvited are the claims of messages that were neither nacked nor given back since their last.
func uninvited(history []faulttest.Event) (found []string) {
	type place struct{ topic, group, id string }
	claimed := map[place]bool{}
	for _, e := range history {
		at := place{e.Topic, e.Group, e.ID}
		switch {
		case e.Kind == faulttest.Claimed && claimed[at]:
			found = append(found, e.String())
		case e.Kind == faulttest.Claimed:
			claimed[at] = true
		case e.Kind == faulttest.Settle && e.Script != "ack":
			claimed[at] = false
		}
	}
	return found
}
