package faulttest

import "time"

// checkReturn checks the time at which a message was delivered again.
func (c *checker) checkReturn(k *course, before, l *lease) {
	if nack := before.sure["nack"]; nack != nil && nack.Delay >= 0 {
		for _, e := range k.ends { // with the server's time just before the nack
			if e.By == before.By && e.At >= before.At && e.At <= nack.At && e.Redis != 0 {
				earliest := over(e.Redis, nack.Delay)
				if now := c.shown(l.Event); now < earliest {
					c.report(ReturnTime, "%s came back %v before the delay of its nack, %d ms, was over", k.name(), micros(earliest-now), nack.Delay)
				}
			}
		}
	}
	if c.rules.Return > 0 && !c.rules.ClockSteps {
		c.notLater(k, before, l)
	}
}

// notLater checks that a message was claimed within a bound after it could be claimed again. These
// times do not count:
//
//   - Outages of server and network since the last lease began.
//   - Times without a working consumer of the group since then.
//   - Leases by claims without an answer.
//   - Times when consumers held other messages, unless these became due when this one was overdue.
func (c *checker) notLater(k *course, before, l *lease) {
	ready := before.ends(l)
	late := micros(l.began - ready)
	late -= c.outages[k.group].within(before.Sent, l.At)
	for _, ask := range c.lostAsks[k.group] {
		if ask.topic == k.topic && ask.from > before.Sent && ask.from < l.At {
			late -= ms(int(ask.lease) + 1000)
		}
	}
	c.figures.Back = max(c.figures.Back, late)
	if late <= c.rules.Return {
		return
	}
	overdue := l.Sent - int64(late-c.rules.Return)
	what := "its lease was lost"
	if before.sure["nack"] != nil {
		what = "the delay of its nack was over"
	}
	if other := c.overtaken(k, before, overdue, l.Sent); other != "" {
		c.report(ReturnTime, "%s came back %v after %s, more than %v, and after %s, which was due later", k.name(), late, what, c.rules.Return, other)
		return
	}
	if late -= c.busy(k, l.Sent-int64(late), l.Sent); late > c.rules.Return {
		c.report(ReturnTime, "%s came back %v after %s, more than %v", k.name(), late, what, c.rules.Return)
	}
}

// ends returns the latest time, in µs by the server's clock, at which a message could be claimed
// again after a lease. next is the next lease. The due time of a nacked message is computed, not
// taken from Redis, unless the nack had an instant instead of a delay.
func (l *lease) ends(next *lease) int64 {
	for _, script := range []string{"nack", "release"} {
		if e := l.sure[script]; e != nil {
			return l.due(*e, next)
		}
	}
	if l.told != nil { // it was settled at any time until then, or not at all
		return max(l.latest, l.due(*l.told, next))
	}
	return l.latest
}

// due returns when a message is due again after a settlement.
func (l *lease) due(e Event, next *lease) int64 {
	switch {
	case e.Script != "nack":
		return l.server(e.At)
	case e.Delay < 0:
		return max(l.server(e.At), next.Due*1000)
	default:
		return l.server(e.At) + (e.Delay+1)*1000
	}
}

// overtaken returns a message of the group that became due and was claimed in a span of time, "" if
// none.
func (c *checker) overtaken(k *course, before *lease, from, to int64) string {
	for _, other := range c.courses {
		if other == k || other.topic != k.topic || other.group != k.group {
			continue
		}
		for _, l := range other.leases {
			if l.Sent > from && l.At < to && l.Due*1000 > before.server(from) {
				return other.name()
			}
		}
	}
	return ""
}

// busy returns how long, in a span of time, consumers of the group held messages of the topic.
func (c *checker) busy(k *course, from, to int64) time.Duration {
	var in spans
	for _, other := range c.courses {
		if other.topic != k.topic || other.group != k.group {
			continue
		}
		for _, l := range other.leases {
			in = append(in, span{l.At, l.last})
		}
	}
	return in.union().within(from, to)
}
