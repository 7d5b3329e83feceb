package faulttest

import (
	"cmp"
	"slices"
	"time"
)

// span is a span of time, as Event.At.
type span struct{ from, to int64 }

type spans []span

// union sorts the spans and joins those that overlap.
func (s spans) union() (joined spans) {
	slices.SortFunc(s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, one := range s {
		if n := len(joined); n > 0 && one.from <= joined[n-1].to {
			joined[n-1].to = max(joined[n-1].to, one.to)
		} else {
			joined = append(joined, one)
		}
	}
	return joined
}

// within returns how much of a span of time these spans cover. They must not overlap.
func (s spans) within(from, to int64) (d time.Duration) {
	for _, one := range s {
		if low, high := max(one.from, from), min(one.to, to); high > low {
			d += time.Duration(high - low)
		}
	}
	return d
}

// patience is the maximum time for which workers wait before they try again.
const patience = 5500 * time.Millisecond

// forever is later than any event.
const forever = int64(1) << 62

// findOutages finds when a group was not served: the server was unreachable, or no consumer was at
// work. A group without events about its consumers counts as having one.
func (c *checker) findOutages(history []Event) {
	var all spans // outages, prolonged by the workers' wait before a retry, at most by their own length
	idle := map[string]spans{}
	c.frozen = map[string]spans{}
	working := map[string]map[string]bool{}
	for _, e := range history {
		switch e.Kind {
		case Outage:
			all = append(all, span{e.Sent, e.At + min(e.At-e.Sent, int64(patience))})
		case Up:
			if n := len(c.frozen[e.By]); n > 0 && c.frozen[e.By][n-1].to == forever {
				c.frozen[e.By][n-1].to = e.At + int64(time.Second) // time for its first actions after the thaw
			}
			if working[e.Group] == nil {
				working[e.Group] = map[string]bool{}
				idle[e.Group] = spans{{0, forever}}
			}
			if n := len(idle[e.Group]); len(working[e.Group]) == 0 {
				idle[e.Group][n-1].to = e.At
			}
			working[e.Group][e.By] = true
		case Down:
			if n := len(c.frozen[e.By]); n == 0 || c.frozen[e.By][n-1].to != forever {
				c.frozen[e.By] = append(c.frozen[e.By], span{e.At, forever})
			}
			for group, names := range working {
				if names[e.By] && len(names) == 1 {
					idle[group] = append(idle[group], span{e.At, forever})
				}
				delete(names, e.By)
			}
		}
	}
	c.unreachable = slices.Clone(all).union()
	c.outages = map[string]spans{}
	for _, group := range c.rules.Groups {
		c.outages[group] = slices.Concat(all, idle[group]).union()
	}
}

// stepped returns whether the server's clock was set in a span of time, so that its times are not
// comparable.
func (c *checker) stepped(from, to int64) bool {
	return slices.ContainsFunc(c.steps, func(at int64) bool { return from <= at && at <= to })
}

// forgets returns whether the server may have lost writes to a topic in a span of time.
func (c *checker) forgets(topic string, from, to int64) bool {
	if !c.rules.LosesData {
		return false
	}
	return c.rules.LosesIn == nil || slices.ContainsFunc(c.rules.LosesIn, func(s Span) bool {
		return (s.Topic == "" || s.Topic == topic) && from < s.Killed && to > s.Safe
	})
}

// forgot returns whether the server may have lost a lease, an extension of it, or its end.
func (c *checker) forgot(k *course, l *lease) bool { return c.forgets(k.topic, l.Sent, l.last) }
