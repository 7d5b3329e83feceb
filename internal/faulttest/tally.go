package faulttest

import (
	"cmp"
	"fmt"
	"slices"
)

// tally is a group's count for a message: the deliveries that ended and count, and whether a lease
// has expired since the last nack. If so, the next expiry counts.
type tally struct {
	count   int
	suspect bool
}

// outcomes are the possible states of a message: alive with one of the tallies, or dead with one of
// the counts.
type outcomes struct {
	limit int // maximum number of deliveries; 0: no limit
	alive []tally
	dead  []int
}

func (o *outcomes) live(t tally) {
	if !slices.Contains(o.alive, t) {
		o.alive = append(o.alive, t)
	}
}

func (o *outcomes) die(count int) {
	if !slices.Contains(o.dead, count) {
		o.dead = append(o.dead, count)
	}
}

// fails records a delivery that counts, after which the message may be dead.
func (o *outcomes) fails(t tally) {
	if o.limit > 0 && t.count >= o.limit {
		o.die(t.count)
	} else {
		o.live(t)
	}
}

// expires records the expiry of a lease. The first does not count.
func (o *outcomes) expires(t tally) {
	if t.suspect {
		o.fails(tally{t.count + 1, true})
	} else {
		o.live(tally{t.count, true})
	}
}

// ends records the end of a known lease, in every way that its settlements allow.
func (o *outcomes) ends(l *lease) {
	t := tally{l.Number - 1, l.Suspect}
	for script, sent := range l.settlements {
		for _, a := range sent {
			if a.verdict == confirmed {
				o.settles(script, a, t)
				return // nothing else is possible
			}
		}
	}
	o.expires(t)
	for script, sent := range l.settlements {
		for _, a := range sent {
			if a.verdict != refused {
				o.settles(script, a, t)
			}
		}
	}
}

func (o *outcomes) settles(script string, a *ack, t tally) {
	switch {
	case script == "release":
		o.live(t)
	case script != "nack":
	case a.Outcome == "undelivered":
		o.die(t.count)
	case a.Outcome == "dead":
		o.die(t.count + 1)
	default:
		o.fails(tally{t.count + 1, false})
	}
}

// expireUnseen records that up to n unknown leases expired, one after the other.
func (o *outcomes) expireUnseen(n int) {
	for range min(n, 50) {
		for _, t := range slices.Clone(o.alive) {
			o.expires(t)
		}
	}
}

// since returns the possible outcomes of a message at a time, after the lease with index i; -1
// means after its publish.
func (c *checker) since(k *course, i int, to int64) outcomes {
	o := outcomes{limit: c.rules.MaxDeliveries}
	if i < 0 {
		o.live(tally{})
	} else {
		o.ends(k.leases[i])
	}
	o.expireUnseen(c.unseen(k, c.began(k, i), to))
	return o
}

// began returns when the lease with index i was asked for, or for -1 when the message was
// published.
func (c *checker) began(k *course, i int) int64 {
	if i >= 0 {
		return k.leases[i].Sent
	}
	if m := c.messages[k.uuid]; m != nil {
		return m.At
	}
	return 0
}

// checkTally checks the counts with which a group leases a message against the history since the
// lease before. So each delivery is counted once, and none follows the last.
func (c *checker) checkTally(k *course, i int) {
	l := k.leases[i]
	if c.forgets(k.topic, cmp.Or(c.began(k, i-1), l.Sent), l.At) {
		return
	}
	if i > 0 && k.leases[i-1].sure["ack"] != nil {
		return // another violation
	}
	o := c.since(k, i-1, l.At)
	if got := (tally{l.Number - 1, l.Suspect}); !slices.Contains(o.alive, got) {
		c.report(Limit, "%s is counted wrong: it is leased with %v, and can only have %v, or be dead with %v: %s",
			k.name(), got, o.alive, o.dead, l.Event)
	}
}

// checkReason checks that a dead message may be dead, and that its dead letter has the count of the
// history.
func (c *checker) checkReason(k *course) {
	last := len(k.leases) - 1
	if c.forgets(k.topic, c.began(k, last), k.dead.At) {
		return
	}
	o := c.since(k, last, k.dead.At)
	switch {
	case len(o.dead) == 0:
		c.report(Limit, "%s is dead, and can only have %v of %d deliveries, and nobody gave it up", k.name(), o.alive, o.limit)
	case k.dead.Outcome != "" && !slices.Contains(o.dead, k.dead.Number):
		c.report(Limit, "%s is dead with %d deliveries counted, and can only have %v: %s", k.name(), k.dead.Number, o.dead, k.dead.Outcome)
	}
}

func (t tally) String() string {
	if t.suspect {
		return fmt.Sprintf("%d and an expiry", t.count)
	}
	return fmt.Sprint(t.count)
}
