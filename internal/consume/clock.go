package consume

import "time"

// ServerClock is the server's clock, as the last claim of the main lane told it. The three times
// are of one claim.
type ServerClock struct {
	told time.Time // by the server's clock
	sent time.Time // when the claim was sent, by the process's clock
	came time.Time // when its answer came
}

// latest is the latest time that the server's clock may show: it was read after the claim was sent.
func (c *ServerClock) latest(now time.Time) time.Time { return c.told.Add(now.Sub(c.sent)) }

// earliest is the earliest time that it may show: it was read before the answer came.
func (c *ServerClock) earliest(now time.Time) time.Time { return c.told.Add(now.Sub(c.came)) }

// Verdict is whether a message that expires may be offered.
type Verdict int

const (
	InTime  Verdict = iota // yes, for some time
	Unclear                // not before the next claim has told the server's time
	TooLate                // no, and its delivery has ended
)

// Judging is who asked to be told when every message is judged by the server's present time. Tests
// that move the server's clock ask that.
type Judging struct {
	state JudgingState
	asked []func() // they wait for a claim that tells the time
	later []func() // their claim has told the time, but a message is on offer by an earlier one
}

// JudgingState is whether a message is on offer that was judged by an earlier time.
type JudgingState int

const (
	NothingOffered JudgingState = iota
	OfferExpires                // a message that expires is on offer
)
