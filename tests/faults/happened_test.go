package faults

import (
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
)

// These functions tell from a history whether a fault has hit anything. A test whose fault came
// while nothing was in hand, or in which nobody noticed it, shows nothing.

// lease is one message's. Its token may be that of others, which the same claim brought.
type lease struct{ token, id string }

func leaseOf(e faulttest.Event) lease { return lease{e.Token, e.ID} }

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
