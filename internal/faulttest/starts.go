package faulttest

import "time"

// late is how long after the end of its lease a handler may begin, or go without the end of its context: what a busy
// machine takes. Time when its worker was frozen does not count.
const late = 2 * time.Second

// handling is a handler that has begun under a lease.
type handling struct {
	Event          // Start
	stop    *Event // its End, or the end of its message's context, whichever came first
	over    int64  // µs by the server's clock: when its lease was over at the latest, as it was known when it began
	settled *Event // a settlement that was sent before its End
	ended   bool
}

// starts takes in the beginning of a handler.
func (c *checker) starts(k *course, e Event) {
	if e.Token == "" { // nobody knows
		return
	}
	l := k.lease(e.Token)
	switch {
	case l == nil:
		c.report(OneLease, "%s was handled under lease %s, which nobody has: %s", k.name(), e.Token, e)
	case l.By != e.By:
		c.report(OneLease, "%s was handled by %s under lease %s of %s", k.name(), e.By, e.Token, l.By)
	case l.handled != nil:
		c.report(OneLease, "%s was handled twice under lease %s: %s", k.name(), e.Token, e)
	default:
		l.handled = &handling{Event: e, over: l.latest}
		if l.settle != nil {
			c.report(OneLease, "%s was handled under lease %s after its %s", k.name(), e.Token, l.settle.Script)
		}
	}
}

// stops takes in the end of a handler, or of its message's context.
func (k *course) stops(e Event) {
	l := k.lease(e.Token)
	if l == nil || l.handled == nil {
		return
	}
	h := l.handled
	if e.Kind == End {
		h.ended = true
	}
	if h.stop == nil {
		h.stop = &e
	}
}

// checkStarts checks that handlers begin and go on only under their leases, and that nothing is settled before its
// handler has ended, so that handlers overlap only after an expiry.
func (c *checker) checkStarts(k *course) {
	for _, l := range k.leases {
		h := l.handled
		if h == nil {
			continue
		}
		if h.behindItsBack() {
			c.report(OneLease, "%s had a %s under lease %s while its handler was at work", k.name(), h.settled.Script, l.Token)
		}
		for _, other := range k.leases {
			if e := other.sure["ack"]; e != nil && other != l && !c.forgot(k, other) && c.after(h.By, e.At, h.Sent) > late {
				c.report(AckHolds, "%s was handled after its ack was confirmed: %s", k.name(), h.Event)
			}
		}
		if c.rules.ClockSteps {
			continue
		}
		if at := l.Sent + (h.over-l.Redis)*1000; c.after(h.By, at, h.Sent) > late {
			c.report(OneLease, "%s was handled after lease %s was over: %s", k.name(), l.Token, h.Event)
		}
		if at := l.Sent + (l.latest-l.Redis)*1000; h.stop != nil && c.after(h.By, at, h.stop.At) > late {
			c.report(OneLease, "%s was handled on after lease %s was over, and its context had not ended: %s", k.name(), l.Token, h.stop)
		}
	}
}

// behindItsBack tells whether the message was settled before its handler had ended. Only a nack may be, when the handler
// has run for too long: then its context ends, too.
func (h *handling) behindItsBack() bool {
	if h.settled == nil || h.settled.Script != "nack" {
		return h.settled != nil
	}
	return h.stop != nil && time.Duration(h.stop.At-h.settled.At) > late
}

// after is how long it was from one time to another, without the time when a worker was not at work, or the machine was
// too busy for anybody.
func (c *checker) after(by string, from, to int64) time.Duration {
	if to <= from {
		return 0
	}
	off := append(append(spans{}, c.frozen[by]...), c.unreachable...).union()
	return time.Duration(to-from) - off.within(from, to)
}
