package faulttest

import "time"

// late is how long after the end of its lease a handler may begin, or its context may end, on a
// busy machine. Time when its worker was frozen does not count.
const late = 2 * time.Second

// handling is a handler that began under a lease.
type handling struct {
	Event          // Start
	stop    *Event // its End, or the end of its message's context, whichever came first
	over    int64  // latest end of its lease, in µs by the server's clock, as known when the handler began
	settled *Event // a settlement sent before its End
	ended   bool
}

// starts records the beginning of a handler.
func (c *checker) starts(k *course, e Event) {
	if e.Token == "" { // its lease is unknown
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
		if l.Epoch != e.Epoch {
			c.report(OneOwner, "%s was claimed with epoch %d and handled with another: %s", k.name(), l.Epoch, e)
		}
		if l.settle != nil && l.settle.Script != "release" { // which checkStarts looks at
			c.report(OneLease, "%s was handled under lease %s after its %s", k.name(), e.Token, l.settle.Script)
		}
	}
}

// stops records the end of a handler or of its message's context.
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

// checkStarts checks that handlers begin and run only under their leases, and that no message is
// settled before its handler has ended. So handlers overlap only after an expiry.
func (c *checker) checkStarts(k *course) {
	for _, l := range k.leases {
		h := l.handled
		if h == nil {
			continue
		}
		if h.begunLate(l) {
			c.report(OneLease, "%s was handled under lease %s after its release, and its context had not ended", k.name(), l.Token)
		}
		if h.settledEarly() {
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

// begunLate returns whether the handler began after its message was given back, with a context that
// had not ended. A consumer may take a message just when its lease is lost.
func (h *handling) begunLate(l *lease) bool {
	return l.settle != nil && l.settle.Script == "release" && h.Sent > l.settle.At &&
		(h.stop == nil || time.Duration(h.stop.At-h.Sent) > late)
}

// settledEarly returns whether the message was settled before its handler had ended. Two kinds are
// allowed if the context ends too: a nack, when the handler has run for too long, and a release,
// when the lease was lost.
func (h *handling) settledEarly() bool {
	if h.settled == nil || h.settled.Script == "ack" {
		return h.settled != nil
	}
	return h.stop != nil && time.Duration(h.stop.At-h.settled.At) > late
}

// after returns the time from one instant to another, without the time when the worker was frozen
// or the machine was too busy.
func (c *checker) after(by string, from, to int64) time.Duration {
	if to <= from {
		return 0
	}
	off := append(append(spans{}, c.frozen[by]...), c.unreachable...).union()
	return time.Duration(to-from) - off.within(from, to)
}
