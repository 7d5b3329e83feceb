package consume

import (
	"time"
)

// ServerClock is the server's clock as the last claim of the main lane told it.
type ServerClock struct {
	told time.Time // what it showed
	sent time.Time // when that claim was sent, by the process's clock
	came time.Time // when its answer came
}

// atMost is the latest that the server's clock may show: it was read after the claim was sent.
func (c *ServerClock) atMost(now time.Time) time.Time { return c.told.Add(now.Sub(c.sent)) }

// atLeast is the earliest that it may show.
func (c *ServerClock) atLeast(now time.Time) time.Time { return c.told.Add(now.Sub(c.came)) }

// Verdict is whether a message that expires may be handed over.
type Verdict int

const (
	InTime  Verdict = iota // yes, for a while
	Unclear                // nobody knows before the next claim tells the server's time
	TooLate                // no: its delivery has ended
)

// Judging is who has asked whether every message is judged by the server's time, and what that waits for.
type Judging struct {
	state   JudgingState
	asked   []func() // since the last claim was sent: the next claim's answer tells the time
	pending []func() // their claim is answered, but a message is on offer by an earlier time
}

// JudgingState is whether a message is on offer that was judged by an earlier time of the server.
type JudgingState int

const (
	NothingOffered JudgingState = iota
	OfferExpires                // a message that expires is on offer
)
