package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Effects are what the shell carries out after an event, without its lock. The zero value is nothing.
type Effects struct {
	Wake     Wake      // the goroutines that are to look again
	Beside   *Exchange // to be carried out beside the main lane's exchange
	Ended    []Ended   // deliveries that ended without the consumer
	Notes    []Note    // log lines
	Answered []func()  // those who asked are to be told: every message is judged
}

// Wake names the goroutines of the shell, as a set.
type Wake uint8

const (
	Talk  Wake = 1 << iota // it talks to Redis: there may be something to say
	Feed                   // it hands out: a message may be taken from the buffer
	Offer                  // it hands out: the message on offer, or the one taken before, may have ended
)

// Ended is a delivery that ends before the consumer settled it.
type Ended struct {
	*InHand
	Cause Cause
}

// Cause is why a delivery ended without the consumer.
type Cause int

const (
	LeaseLost Cause = iota // the message is another subscription's, now or soon
	Closed                 // CloseTimeout is over
)

// Note is a log line.
type Note struct {
	Kind    NoteKind
	InHand  *InHand       // the message that it is about, if it is about one
	Failure queue.Failure // of Dead and PerhapsDead
	Count   int           // messages, of LateAnswer and Orphans
	Took    time.Duration // of LateAnswer
}

// NoteKind is what a log line says.
type NoteKind int

const (
	LostLease   NoteKind = iota // a lease was lost while its handler ran
	Overrun                     // a handler ran for too long, and its message is delivered again
	Dead                        // a message is a dead letter
	PerhapsDead                 // the same, unless its lease ran out before Redis was told
	Orphans                     // ids without bodies were dropped
	LateAnswer                  // an answer came after the leases in it may have ended
)

func (e *Effects) note(n Note) { e.Notes = append(e.Notes, n) }
