package queue

import (
	"slices"
	"strconv"
	"time"
)

// Cause is why a message is dead. The group counts dead messages by cause, in field dead_<cause> of
// stats.
type Cause string

const (
	LastDelivery Cause = "deliveries" // nacked on the last of its deliveries
	LeaseExpired Cause = "lease"      // its lease expired on the last of its deliveries
	Asked        Cause = "asked"      // the handler asked for it
	TooLate      Cause = "late"       // not delivered in time
	Unreadable   Cause = "unmarshal"  // the Unmarshaler refused it
	Killed       Cause = "killed"     // an operator killed it
)

// TopicCounters are the fields of a topic's stats: counters, and returned_at, a time.
var TopicCounters = []string{"published", "replaced", "left_out", "refused_full", "refused_occurrences", "returned", "returned_at"}

// GroupCounters are the fields of a group's stats that are counters for operators.
var GroupCounters = func() []string {
	fields := []string{"acked", "nacked", "retried", "dropped", "expired", "suspects", "lease_lost", "given_up", "dead_purged", "skipped"}
	for _, cause := range []Cause{LastDelivery, LeaseExpired, Asked, TooLate, Unreadable, Killed} {
		fields = append(fields, "dead_"+string(cause))
	}
	return append(fields, lateFields[:]...)
}()

// lateBounds are the bounds of the buckets of a Lateness. The script promote_stream has the same.
var lateBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute,
}

// LateBounds returns the bounds of the buckets of a Lateness, ascending. The last bucket has none.
func LateBounds() []time.Duration { return slices.Clone(lateBounds[:]) }

// Lateness counts messages by how late they were handed over. A bucket has those that were later
// than the bound before it, and not later than its own.
type Lateness [len(lateBounds) + 1]int

// add counts a message.
func (l *Lateness) add(late time.Duration) {
	i, _ := slices.BinarySearch(lateBounds[:], late)
	l[i]++
}

// lateFields are the fields of stats with the buckets of a Lateness.
var lateFields = func() (fields [len(Lateness{})]string) {
	for i, bound := range lateBounds {
		fields[i] = "late_" + strconv.FormatInt(bound.Milliseconds(), 10)
	}
	fields[len(lateBounds)] = "late_more"
	return fields
}()

// LateField returns the field of stats with a bucket of a Lateness.
func LateField(bucket int) string { return lateFields[bucket] }

// Counts is what a subscription has counted since it last told.
type Counts struct {
	Lateness  Lateness      // of the messages that it handed over
	Latest    time.Duration // by how much one of them was late at most
	LeaseLost int           // messages whose lease was lost while a handler had them
	GivenUp   int           // messages that handlers had not settled within CloseTimeout
	Acked     int           // messages that acks settled, by what Redis answered
}

// Handed counts a message that was handed over late.
func (c *Counts) Handed(late time.Duration) {
	c.Lateness.add(late)
	c.Latest = max(c.Latest, late)
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	for i, n := range o.Lateness {
		c.Lateness[i] += n
	}
	c.Latest = max(c.Latest, o.Latest)
	c.LeaseLost += o.LeaseLost
	c.GivenUp += o.GivenUp
	c.Acked += o.Acked
}

// args returns what a claim tells: the largest lateness, then fields of stats and what to add.
func (c *Counts) args(args []any) []any {
	at := len(args)
	args = append(args, "")
	for i, n := range c.Lateness {
		if n > 0 {
			args = append(args, lateFields[i], n)
			args[at] = c.Latest.Milliseconds()
		}
	}
	if c.Acked > 0 {
		args = append(args, "acked", c.Acked)
	}
	if c.LeaseLost > 0 {
		args = append(args, "lease_lost", c.LeaseLost)
	}
	if c.GivenUp > 0 {
		args = append(args, "given_up", c.GivenUp)
	}
	return args
}
