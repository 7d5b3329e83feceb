package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Effects are what the shell carries out after an event, when it has unlocked. The zero value is
// nothing.
type Effects struct {
	Wake        Wake      // goroutines that have to look again
	Settled     *InHand   // a delivery that has ended as settled
	Ended       []Ended   // deliveries that have ended before they were settled
	Interrupted []*InHand // deliveries whose contexts end, and which go on
	Overruns    []*InHand // messages whose handlers have run for too long; each needs a settlement
	Beside      *Exchange // to be carried out beside the main lane's exchange
	Notes       []Note    // log lines
	Answered    []func()  // to be called: every message is judged
	Cut         bool      // the calls to Redis end
}

// Wake is a set of the shell's goroutines, and what they look at.
type Wake uint8

const (
	Talk  Wake = 1 << iota // the talk with Redis: there may be something to say
	Feed                   // the hand-over: a message may be taken from the buffer
	Offer                  // the hand-over: a delivery has ended, or the subscription closes
)

// Ended is a delivery that has ended before the consumer settled it.
type Ended struct {
	*InHand
	Cause Cause
}

// Cause is why a delivery has ended.
type Cause int

const (
	LeaseLost Cause = iota // another subscription has the message, now or soon
	TakenAway              // its handler has run for too long
	Closed                 // CloseTimeout is over
)

// Note is a log line.
type Note struct {
	Kind    NoteKind
	InHand  *InHand       // the message, for kinds about one message
	Failure queue.Failure // for Overrun, Dead and PerhapsDead
	Count   int           // number of messages, for Orphans and LateAnswer
	Took    time.Duration // for LateAnswer
}

// NoteKind is what a log line says.
type NoteKind int

const (
	LostLease        NoteKind = iota // a lease was lost while its handler ran
	Overrun                          // a handler ran for too long; its message is delivered again
	Dead                             // a message is a dead letter
	PerhapsDead                      // the same, unless its lease ended before Redis was told
	Orphans                          // ids had no bodies and were dropped
	TooLateToDeliver                 // a message has expired and was dropped
	LateAnswer                       // an answer took longer than a lease, and its messages go back
	GivenUp                          // CloseTimeout was over before the message was settled
)
