package queue

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// GroupLimit is how many messages a group leases at most, over all its processes. The zero value is
// no limit.
type GroupLimit struct {
	Rate   float64 // messages a second; 0: any number
	Burst  int     // messages at once after a pause; at least 1 with a rate
	AtOnce int     // messages that are leased at the same time; 0: any number
}

// Bounds of a limit.
const (
	LeastRate  = 1.0 / (24 * 60 * 60)
	MostRate   = 100_000
	MostTokens = 1_000_000 // of Burst and AtOnce
)

// burstTime is how long a rate has to bring as many messages as the default burst.
const burstTime = 100 * time.Millisecond

// DefaultBurst returns the burst of a rate unless the user sets one: what 100 ms bring.
func DefaultBurst(rate float64) int {
	return max(1, int(rate*burstTime.Seconds()))
}

// CheckRate returns what is wrong with a rate, 0 for none.
func CheckRate(rate float64) error {
	if rate == 0 || rate >= LeastRate && rate <= MostRate {
		return nil
	}
	return fmt.Errorf("is %v messages a second, must be from one a day (%.8f) to %d, or 0 for no limit", rate, LeastRate, MostRate)
}

// CheckBurst returns what is wrong with a burst, 0 for the default.
func CheckBurst(burst int, rate bool) error {
	switch {
	case burst < 0 || burst > MostTokens:
		return fmt.Errorf("is %d, must be from 1 to %d, or 0 for the default", burst, MostTokens)
	case burst > 0 && !rate:
		return fmt.Errorf("is %d, but there is no rate that it could belong to", burst)
	}
	return nil
}

// CheckAtOnce returns what is wrong with a number of messages at once, 0 for any.
func CheckAtOnce(n int) error {
	if n < 0 || n > MostTokens {
		return fmt.Errorf("is %d, must be from 1 to %d, or 0 for no limit", n, MostTokens)
	}
	return nil
}

// encode returns the limit as the snippet group_options reads it.
func (l GroupLimit) encode() string {
	return strconv.FormatFloat(l.Rate, 'f', -1, 64) + ":" + strconv.Itoa(l.Burst) + ":" + strconv.Itoa(l.AtOnce)
}

// parseLimit reads the result of encode. Any other text is no limit.
func parseLimit(text string) GroupLimit {
	part := append(strings.Split(text, ":"), "", "")
	rate, err := strconv.ParseFloat(part[0], 64)
	if err != nil || rate < 0 || math.IsNaN(rate) {
		return GroupLimit{}
	}
	burst, _ := strconv.Atoi(part[1])
	atOnce, _ := strconv.Atoi(part[2])
	return GroupLimit{Rate: rate, Burst: max(burst, 0), AtOnce: max(atOnce, 0)}
}

// Effective returns the limit that applies.
func (o GroupOptions) Effective() GroupLimit {
	if o.Set != nil {
		return *o.Set
	}
	return o.Limit
}

// Share returns the limit of one of n partitions, whose sum is no more than the whole. It returns
// an error if a partition would get less than one message.
func (l GroupLimit) Share(n int) (GroupLimit, error) {
	switch {
	case n <= 1:
		return l, nil
	case l.Burst > 0 && l.Burst < n:
		return GroupLimit{}, fmt.Errorf("a burst of %d is less than one message for each of %d partitions: make it %d or more", l.Burst, n, n)
	case l.AtOnce > 0 && l.AtOnce < n:
		return GroupLimit{}, fmt.Errorf("%d at once is less than one for each of %d partitions: make it %d or more", l.AtOnce, n, n)
	}
	return GroupLimit{Rate: l.Rate / float64(n), Burst: l.Burst / n, AtOnce: l.AtOnce / n}, nil
}

// Limits is what kinds of limits a group has.
type Limits int

const (
	Unlimited Limits = iota
	RateLimited
	AtOnceLimited // and perhaps a rate too
)

// LimitCall returns a call that sets the limit of a group whatever its subscribers ask for. With
// nil they decide again.
func (t *Topic) LimitCall(group string, limit *GroupLimit) *Call {
	text := ""
	if limit != nil {
		text = limit.encode()
	}
	return t.assignCall(group, "set", text)
}

// assignCall returns a call that sets a word of a group's options, or deletes it with "".
func (t *Topic) assignCall(group, word, value string) *Call {
	return t.NewCall(&AssignScript, Target{Group: group}, "layout", Layout, "fresh", Token(), "group", group, "word", word, "value", value)
}
