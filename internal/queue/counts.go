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

// TopicCounters are the fields of a topic's stats: counters, and times.
var TopicCounters = []string{"published", "replaced", "left_out", "refused_full", "refused_occurrences", "returned", "returned_at",
	"history_failed", "history_failed_at"}

// GroupCounters are the fields of a group's stats that are counters for operators. Package admin
// has a field for each, of the same name in JSON.
var GroupCounters = func() []string {
	fields := []string{"acked", "nacked", "retried", "dropped", "expired", "disowned", "suspects", "lease_lost", "given_up", "dead_purged", "skipped", "limited", "limited_ms", "history_failed"}
	for _, cause := range []Cause{LastDelivery, LeaseExpired, Asked, TooLate, Unreadable, Killed} {
		fields = append(fields, "dead_"+string(cause))
	}
	return append(fields, lateFields[:]...)
}()

// lateBounds are the bounds of the buckets of a Lateness.
var lateBounds = func() (bounds [len(Lateness{}) - 1]time.Duration) {
	declared := append(promoteStreamScript.constants("bounds"), promoteStreamScript.constants("longer")...)
	if len(declared) != len(bounds) {
		panic("script promote_stream: the number of bounds is not that of buckets") // the files are part of the build
	}
	for i, ms := range declared {
		bounds[i] = time.Duration(ms) * time.Millisecond
	}
	return bounds
}()

// LateBounds returns the bounds of the buckets of a Lateness, ascending. The last bucket has none.
func LateBounds() []time.Duration { return slices.Clone(lateBounds[:]) }

// Lateness counts messages by how late they were handed over. A bucket has those that were later
// than the bound before it, and not later than its own.
type Lateness [21]int

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

// each calls f with each field of stats and what to add to it.
func (c *Counts) each(f func(field string, n int)) {
	for i, n := range c.Lateness {
		if n > 0 {
			f(lateFields[i], n)
		}
	}
	if c.Acked > 0 {
		f("acked", c.Acked)
	}
	if c.LeaseLost > 0 {
		f("lease_lost", c.LeaseLost)
	}
	if c.GivenUp > 0 {
		f("given_up", c.GivenUp)
	}
}

// arguments returns how many arguments a claim needs for the counts.
func (c *Counts) arguments() (n int) {
	c.each(func(string, int) { n += 2 })
	return n
}

// latest returns the largest lateness as a claim tells it, "" if no message was handed over.
func (c *Counts) latest() any {
	if c.Lateness == (Lateness{}) {
		return ""
	}
	return c.Latest.Milliseconds()
}
