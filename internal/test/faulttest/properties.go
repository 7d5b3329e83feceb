package faulttest

import (
	"cmp"
	"slices"
)

// checkMessage checks a message in all groups together.
func (c *checker) checkMessage(m *published) {
	if len(m.ids) > 1 {
		c.report(OneCopy, "%s is in Redis %d times: %q", m.UUID, len(m.ids), m.ids)
	}
	if m.outcome == Failed && len(m.ids) > 0 {
		c.report(Settlement, "%s was refused, and is there: %q", m.UUID, m.ids)
	}
	if m.outcome != Published || m.cancelled != 0 {
		return
	}
	if m.cancel != 0 && !m.notThere {
		c.report(Settlement, "the workload is wrong: nobody knows whether %s was cancelled", m.UUID)
	}
	for _, group := range c.rules.Groups {
		why := "was published and never came"
		if m.notThere {
			why = "was published and was not there to be cancelled"
		}
		if k := c.courseOf(m, group); k != nil {
			why = c.unsettled(k)
		}
		switch {
		case why == "":
		case c.mayBeLost(m):
			c.figures.Lost++
		default:
			c.report(Settlement, "%s %s: group %q", m.UUID, why, group)
		}
	}
}

// mayBeLost returns whether the server may have lost a confirmed message.
func (c *checker) mayBeLost(m *published) bool {
	return !c.rules.Replicated && c.forgets(m.Topic, m.At, m.answered)
}

func (c *checker) courseOf(m *published, group string) *course {
	for _, id := range m.ids {
		if k := c.courses[place{m.Topic, group, id}]; k != nil {
			return k
		}
	}
	return nil
}

// name sets the UUIDs in courses of messages that no handler of the group has seen.
func (c *checker) name() {
	known := map[place]string{}
	for _, m := range c.messages {
		for _, id := range m.ids {
			known[place{topic: m.Topic, id: id}] = m.UUID
		}
	}
	for _, k := range c.courses {
		if k.uuid == "" {
			k.uuid = known[place{topic: k.topic, id: k.id}]
		}
	}
}

// sort sorts the leases.
func (c *checker) sort(k *course) {
	slices.SortStableFunc(k.leases, func(a, b *lease) int {
		if c.rules.ClockSteps {
			return cmp.Compare(a.At, b.At)
		}
		return cmp.Compare(a.Redis, b.Redis)
	})
}

// checkCourse checks a message in one group.
func (c *checker) checkCourse(k *course) {
	if !slices.Contains(c.rules.Groups, k.group) {
		c.report(Isolation, "%s came to group %q, which is not one of %q", k.name(), k.group, c.rules.Groups)
	}
	m := c.messages[k.uuid]
	c.checkStarts(k)
	for i, l := range k.leases {
		now := c.shown(l.Event)
		if now < l.Due*1000 {
			c.report(NotEarly, "%s was claimed %v before it was due: %s", k.name(), micros(l.Due*1000-now), l.Event)
		}
		c.figures.Latest = max(c.figures.Latest, micros(now-l.Due*1000))
		if i == 0 && m != nil {
			c.notBefore(m, now, l.Event)
			c.checkIsolation(k, l)
		}
		if m != nil && m.cancelled != 0 && l.Sent > m.cancelled && !c.forgets(m.Topic, m.cancel, m.cancelled) {
			c.report(AckHolds, "%s was claimed after it was cancelled: %s", k.name(), l.Event)
		}
		c.checkNumber(k, i)
		c.checkLease(k, i)
	}
	c.checkDeath(k)
}

func (k *course) name() string { return cmp.Or(k.uuid, k.id) + " of group " + k.group }

// checkNumber checks that no delivery is counted twice and that none exceeds the limit.
func (c *checker) checkNumber(k *course, i int) {
	l := k.leases[i]
	if limit := c.rules.MaxDeliveries; limit > 0 && l.Number > limit {
		c.report(Limit, "%s was delivered for the %dth time, at most %d are allowed", k.name(), l.Number, limit)
	}
	if l.Number-1 > i+c.unseen(k, 0, l.At) {
		c.report(Limit, "%s has number %d after %d deliveries: one was counted twice: %s", k.name(), l.Number, i, l.Event)
	}
	c.checkTally(k, i)
}

// checkIsolation checks that the first delivery in a group is independent of other groups. It must
// have the same due time as theirs, and must not count their deliveries.
func (c *checker) checkIsolation(k *course, l *lease) {
	if c.forgot(k, l) {
		return
	}
	at := place{topic: k.topic, id: k.id}
	first := c.firsts[at]
	if first == nil {
		c.firsts[at] = l
		return
	}
	// Unknown leases may have used up deliveries, but do not change the due time.
	from := c.messages[k.uuid].At
	unseen := c.unseen(k, from, l.At)+c.unseen(c.courses[place{k.topic, first.Group, k.id}], from, first.At) > 0
	if l.Due != first.Due || l.Number != first.Number && !unseen {
		c.report(Isolation, "%s came as delivery %d, due at %d, and to group %s as delivery %d, due at %d: %s",
			k.name(), l.Number, l.Due, first.Group, first.Number, first.Due, l.Event)
	}
}

// checkLease checks a lease against earlier ones.
func (c *checker) checkLease(k *course, i int) {
	l := k.leases[i]
	if !c.forgot(k, l) {
		c.checkSettled(k, l, k.leases[i+1:])
	}
	if i == 0 || c.forgot(k, k.leases[i-1]) {
		return
	}
	before := k.leases[i-1]
	ended := before.settle != nil && before.settle.At <= l.At
	if !ended && l.Redis < before.until && !c.stepped(before.Sent, l.At) {
		c.report(OneLease, "%s was leased as %s %v before lease %s was over", k.name(), l.Token, micros(before.until-l.Redis), before.Token)
	}
	c.checkReturn(k, before, l)
}

// checkSettled checks that a confirmed settlement is final, and that its lease was current at that
// time.
func (c *checker) checkSettled(k *course, l *lease, after []*lease) {
	for _, later := range after {
		for script, e := range l.sure {
			switch {
			case script == "ack" && later.Sent > e.At:
				c.report(AckHolds, "%s was claimed after its ack was confirmed: %s", k.name(), later.Event)
			case script == "ack", later.At < e.Sent:
				// After an earlier ack, the later claim would have found nothing.
				c.report(StaleSettle, "%s: its %s under lease %s was taken, though it was leased as %s by then",
					k.name(), script, l.Token, later.Token)
			}
		}
	}
}

// checkDeath checks that a message became dead once, finally, and for a valid reason.
func (c *checker) checkDeath(k *course) {
	if k.dead == nil {
		return
	}
	if k.deaths > 1 {
		c.report(Limit, "%s is dead %d times", k.name(), k.deaths)
	}
	c.checkReason(k)
	for _, l := range k.leases {
		if c.forgot(k, l) {
			continue
		}
		if l.find(confirmed) != nil {
			c.report(AckHolds, "%s is dead, and its ack was confirmed", k.name())
		}
		if k.dead.Redis != 0 && !c.rules.ClockSteps && l.Redis > k.dead.Redis {
			c.report(AckHolds, "%s was claimed after it died: %s", k.name(), l.Event)
		}
	}
}
