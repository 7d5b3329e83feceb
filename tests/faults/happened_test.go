package faults

import (
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
)

// These functions tell from a history whether a fault has hit anything. A test whose fault came
// while nothing was in hand, or in which nobody noticed it, shows nothing.

// lease is one message's. Its token may be that of others, which the same claim brought.
type lease struct{ token, id string }

func leaseOf(e faulttest.Event) lease { return lease{e.Token, e.ID} }

// inHand are the leases that were known at a moment and not settled yet: of one worker, or of all.
func inHand(history []faulttest.Event, at int64, by string) map[lease]faulttest.Event {
	held := map[lease]faulttest.Event{}
	for _, e := range history {
		switch {
		case e.At > at || by != "" && e.By != by:
		case e.Kind == faulttest.Claimed:
			held[leaseOf(e)] = e
		case e.Kind == faulttest.Settled, e.Kind == faulttest.Refused, e.Kind == faulttest.Lost:
			delete(held, leaseOf(e))
		}
	}
	return held
}

// late counts the settlements of leases that were answered after a moment, of calls by which Redis
// changed nothing.
func late(history []faulttest.Event, leases map[lease]faulttest.Event, after int64) (n int) {
	for _, e := range history {
		if _, of := leases[leaseOf(e)]; of && e.Kind == faulttest.Settled && e.At > after && e.Count == 0 {
			n++
		}
	}
	return n
}

// again counts the leases whose messages were claimed once more after a moment, though no worker
// gave them back.
func again(history []faulttest.Event, leases map[lease]faulttest.Event, after int64) (n int) {
	back := map[lease]bool{}
	for _, e := range history {
		switch {
		case e.Script != "nack" && e.Script != "release":
		case e.Kind == faulttest.Settle:
			back[leaseOf(e)] = true
		case e.Kind == faulttest.Settled && e.Count == 0 && e.Tries == 1: // it changed nothing
			delete(back, leaseOf(e))
		}
	}
	for of, was := range leases {
		came := func(e faulttest.Event) bool {
			return e.Kind == faulttest.Claimed && e.At > after && e.ID == was.ID && e.Group == was.Group && e.Topic == was.Topic && e.Token != was.Token
		}
		if !back[of] && slices.ContainsFunc(history, came) {
			n++
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
