package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Lane is a sequence of claims, of which at most one is under way. The main lane claims with the
// subscription's exchanges. The second lane claims beside them under load. To Redis each lane is a
// subscription of its own, and Redis remembers the last claim of each, for a repeat.
type Lane struct {
	name       string // random
	state      LaneState
	number     uint64       // of the claim under way, or else of the next claim
	claim      *queue.Claim // the claim under way; nil in LaneIdle and LaneBarred
	since      time.Time    // when the claim was first sent; only in LaneUnanswered
	remembered uint64       // number of the claim that Redis remembers; 0: none
}

// LaneState is what a lane waits for.
type LaneState int

const (
	LaneIdle       LaneState = iota // nothing
	LaneAsked                       // the answer to a claim that was sent once
	LaneUnanswered                  // an answer to a claim that had none, and that Redis may have run
	LaneBarred                      // the main lane, which has to get through first
)

// ask puts a claim under way.
func (l *Lane) ask(c queue.Claim) *queue.Claim {
	c.Subscription, c.Number = l.name, l.number
	l.state, l.claim = LaneAsked, &c
	return l.claim
}

// answered ends a claim that was run. brought tells whether it leased messages.
func (l *Lane) answered(brought bool) {
	l.remembered = 0
	if brought || l.state == LaneUnanswered { // the first run may have leased some
		l.remembered = l.number
	}
	l.number++
	l.idle()
}

// unanswered has the claim repeated as it is, because Redis may have run it.
func (l *Lane) unanswered(sent time.Time) {
	l.state, l.since = LaneUnanswered, sent
	l.claim.Slots = 0 // a repeat does not make the subscription a waiter
}

// refused ends a claim that was not run this time. If an earlier run is possible, the next claim
// needs another number, or it would get the messages of that run, whose leases are over.
func (l *Lane) refused() {
	if l.state == LaneUnanswered {
		l.number++
	}
	l.idle()
}

func (l *Lane) idle() {
	l.state, l.claim, l.since = LaneIdle, nil, time.Time{}
}

// coming is how many messages the claim under way may bring.
func (l *Lane) coming() int {
	if l.claim == nil {
		return 0
	}
	return l.claim.Limit
}
