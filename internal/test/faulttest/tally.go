package faulttest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// tally is a group's count for a message: the deliveries that ended and count, and the leases that
// expired in a row.
type tally struct {
	count, expiries int
}

// tally returns what the group knew of a message when it was leased.
func (l *lease) tally() tally { return tally{l.Number - 1, l.Expiries} }

// alone tells whether a consumer that has at most most messages at once has to have this one alone.
// Then the expiry of its lease counts.
func (t tally) alone(most int) bool {
	return (&queue.Leased{Expiries: t.expiries}).Company(most) == 1
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

// expires records the expiry of a lease. It counts only if the message was alone.
func (o *outcomes) expires(t tally, alone bool) {
	if alone {
		o.fails(tally{t.count + 1, t.expiries + 1})
	} else {
		o.live(tally{t.count, t.expiries + 1})
	}
}

// takenBack records that so many expiries may have been taken back.
func (o *outcomes) takenBack(expiries int) {
	from := 0
	for range expiries {
		to := len(o.alive)
		for _, t := range o.alive[from:to] {
			if t.expiries > 0 {
				o.live(tally{t.count, t.expiries - 1})
			}
		}
		from = to
	}
}

// ends records the end of a known lease, in every way that its settlements allow.
func (o *outcomes) ends(l *lease) {
	t := l.tally()
	for script, sent := range l.settlements {
		for _, a := range sent {
			if a.verdict == confirmed {
				o.settles(script, a, t)
				return // nothing else is possible
			}
		}
	}
	o.expires(t, t.alone(l.Most))
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
		o.fails(tally{t.count + 1, 0})
	}
}

// expireUnseen records that up to n unknown leases expired, one after the other. Any consumer may
// have had them.
func (o *outcomes) expireUnseen(n int) {
	from := 0
	for range min(n, 50) {
		to := len(o.alive)
		for _, t := range o.alive[from:to] {
			o.expires(t, false)
			if t.alone(1) {
				o.expires(t, true)
			}
		}
		from = to
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
		o.takenBack(c.takings(k, i, to))
	}
	o.expireUnseen(c.unseen(k, c.began(k, i), to))
	return o
}

// takings returns how many expiries of a message others can have taken back since the lease with
// index i began: by acks, nacks and releases of lost leases, and by repeats of claims that had no
// answer. Only the last expiry can be taken back. So that is one of the lease itself, and one of an
// earlier lease.
func (c *checker) takings(k *course, i int, to int64) (n int) {
	late := func(l *lease) bool {
		for _, sent := range l.settlements {
			if slices.ContainsFunc(sent, func(a *ack) bool { return a.verdict != confirmed && a.At < to }) {
				return true
			}
		}
		return false
	}
	if late(k.leases[i]) {
		n++
	}
	repeated := func(a lostAsk) bool {
		return a.topic == k.topic && a.from < k.leases[i].At && a.to > c.began(k, i)
	}
	if slices.ContainsFunc(k.leases[:i], late) || slices.ContainsFunc(c.lostAsks[k.group], repeated) {
		n++
	}
	return n
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
	if got := l.tally(); !slices.Contains(o.alive, got) {
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
	if t.expiries > 0 {
		return fmt.Sprintf("%d and %d expiries", t.count, t.expiries)
	}
	return fmt.Sprint(t.count)
}
