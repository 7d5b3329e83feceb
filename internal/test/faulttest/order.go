package faulttest

import (
	"cmp"
	"slices"
	"strings"
)

// checkKeys checks that messages with a key are handled in the order of their due times. A message
// is first handled when all earlier ones of its key are acked or dead. An earlier one counts if its
// Publish had succeeded before the later one was due.
//
// A key has one plain topic for each number of partitions. Between two plain topics there is no
// order, because the number of partitions changed between them.
func (c *checker) checkKeys() {
	type home struct {
		key        string
		partitions int
	}
	type line struct{ key, topic string }
	homes, lines, keys := map[home]string{}, map[line][]*published{}, map[string]bool{}
	for _, m := range c.messages {
		if m.Key == "" {
			continue
		}
		at := home{m.Key, m.Partitions}
		if was := homes[at]; was != "" && was != m.Topic {
			c.report(Order, "key %q is in %s and in %s, of %d partitions", m.Key, min(was, m.Topic), max(was, m.Topic), m.Partitions)
		}
		homes[at], keys[m.Key] = m.Topic, true
		in := line{m.Key, m.Topic}
		lines[in] = append(lines[in], m)
	}
	c.figures.Keys = len(keys)
	for _, messages := range lines {
		slices.SortFunc(messages, func(a, b *published) int { return cmp.Compare(a.Due, b.Due) })
		for _, group := range c.rules.Groups {
			for i, m := range messages {
				c.checkPlace(group, messages[:i], m)
			}
		}
	}
}

// checkPlace checks that a message was first handled after the earlier ones of its key.
func (c *checker) checkPlace(group string, earlier []*published, m *published) {
	k := c.courseOf(m, group)
	if k == nil || len(k.starts) == 0 {
		return
	}
	first := k.starts[0]
	for _, before := range earlier {
		if before.Due == m.Due || before.outcome != Published || before.answered >= m.Due*1_000_000 {
			continue
		}
		if c.mayBeLost(before) {
			continue
		}
		c.figures.Pairs++
		done := forever
		if other := c.courseOf(before, group); other != nil {
			done = other.done(first.By)
		}
		if done > first.At {
			c.report(Order, "%s was handled before %s of the same key was done, which was due %d ms earlier: %s",
				k.name(), before.UUID, m.Due-before.Due, first)
		}
	}
}

// done returns the earliest time at which a message was acked or dead, or forever. A worker that
// hands out the next message has the answer to the ack of the one before.
func (k *course) done(by string) int64 {
	at := forever
	for _, l := range k.leases {
		if e := l.sure["ack"]; e != nil && l.By == by {
			at = min(at, e.At)
		} else if e != nil {
			at = min(at, e.Sent)
		}
	}
	if n := len(k.leases); n > 0 && at == forever {
		for _, a := range k.leases[n-1].acks() {
			if a.verdict != refused {
				at = min(at, a.At)
			}
		}
	}
	if k.dead != nil {
		at = min(at, k.dead.Redis*1000)
	}
	return at
}

// turns are the leases of a group with SingleActive in one topic, in the order of the server's
// clock.
type turns []*lease

// allTurns returns the turns of each group in each topic, if the groups have SingleActive.
func (c *checker) allTurns() (all []turns) {
	if !c.rules.SingleActive {
		return nil
	}
	by := map[place]turns{}
	for _, k := range c.courses {
		at := place{topic: k.topic, group: k.group}
		by[at] = append(by[at], k.leases...)
	}
	for _, t := range by {
		slices.SortFunc(t, func(a, b *lease) int { return cmp.Or(cmp.Compare(a.Redis, b.Redis), cmp.Compare(a.Epoch, b.Epoch)) })
		all = append(all, t)
	}
	return all
}

// endTogether shortens leases: those of an owner end with the first one that is not settled.
func (t turns) endTogether() {
	unsettled := map[int64][]*lease{} // by epoch
	for _, l := range t {
		if len(l.sure) == 0 {
			unsettled[l.Epoch] = append(unsettled[l.Epoch], l)
		}
	}
	for _, l := range t {
		for _, other := range unsettled[l.Epoch] {
			if other.until > l.Redis {
				l.until = min(l.until, other.until)
			}
		}
	}
}

// checkTurns checks that no two owners have valid leases at one time, and that the epoch grows with
// each owner.
func (c *checker) checkTurns(t turns) {
	owners := map[int64]string{} // by epoch
	var live turns
	var newest, before *lease // the first lease of the highest epoch, and the one before it
	for i, l := range t {
		owner := l.owner()
		if was, known := owners[l.Epoch]; known && was != owner {
			c.report(OneOwner, "topic %s: epoch %d is that of %s and of %s: %s", l.Topic, l.Epoch, was, owner, l.Event)
		}
		owners[l.Epoch] = owner
		switch {
		case l.Epoch == 0:
			c.report(OneOwner, "topic %s: %s has a lease and no epoch: %s", l.Topic, owner, l.Event)
		case newest == nil || l.Epoch > newest.Epoch:
			newest, before = l, t[max(i-1, 0)]
			c.figures.Turns++
		case l.Epoch < newest.Epoch && !c.forgets(l.Topic, before.Sent, newest.last):
			c.report(OneOwner, "topic %s: epoch %d of %s comes after epoch %d of %s: %s", l.Topic, l.Epoch, owner, newest.Epoch, newest.owner(), l.Event)
		}
		live = slices.DeleteFunc(live, func(p *lease) bool { return p.until <= l.Redis || p.settle != nil && p.settle.At <= l.At })
		for _, p := range live {
			if p.Epoch != l.Epoch && !c.forgets(p.Topic, p.Sent, p.last) {
				c.report(OneOwner, "topic %s: %s has lease %s %v before lease %s of %s was over: %s",
					l.Topic, owner, l.Token, micros(p.until-l.Redis), p.Token, p.owner(), l.Event)
			}
		}
		live = append(live, l)
	}
}

// owner returns the subscription that has a lease, which is the same for both of its lanes.
func (l *lease) owner() string {
	lane, _, _ := strings.Cut(l.Token, ":")
	subscription, _, _ := strings.Cut(lane, "+")
	return subscription
}
