package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Lane is a way in which claims go to Redis, one after the other. To Redis each lane is a subscription of its own, whose last
// claim it remembers for a repeat.
type Lane struct {
	name       string       // random
	state      LaneState    //
	number     uint64       // of the claim under way, or else of the next
	claim      *queue.Claim // under way or to be repeated; nil in LaneIdle and LaneBarred
	since      time.Time    // when claim was first sent; only in LaneUnanswered
	remembered uint64       // the claim that Redis remembers; 0: none
}

// LaneState is what a lane waits for.
type LaneState int

const (
	LaneIdle       LaneState = iota // nothing
	LaneAsked                       // the answer to a claim that was sent once
	LaneUnanswered                  // the answer to a claim that had none: it is repeated as it is, since Redis may have run it
	LaneBarred                      // the main lane: an exchange beside it failed, and it has to get through first
)

// ask makes a claim the one under way.
func (l *Lane) ask(c *queue.Claim) *queue.Claim {
	c.Subscription, c.Number = l.name, l.number
	l.state, l.claim = LaneAsked, c
	return c
}

// answered ends a claim that was run. brought reports whether it leased anything.
func (l *Lane) answered(brought bool) {
	l.remembered = 0
	if brought || l.state == LaneUnanswered { // the first run may have brought something
		l.remembered = l.number
	}
	l.number++
	l.idle()
}

// unanswered has the claim repeated. It may have been run when it was first sent.
func (l *Lane) unanswered(sent time.Time) {
	l.state, l.since = LaneUnanswered, sent
	l.claim.Slots = 0 // a repeat enters nobody among the waiters
}

// refused ends a claim that was not run, now. If it was run before, its number is used up.
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
