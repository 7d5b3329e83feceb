package faulttest

import (
	"fmt"
	"slices"
)

// verdict is the known result of a settlement that a worker sent.
type verdict int

const (
	unsure    verdict = iota // there was no answer, or it is to a repeat and the first call may have taken effect
	confirmed                // Redis accepted it
	refused                  // Redis refused it: the lease was lost, or there was an error
	taken                    // Redis accepted some messages of the call; it is unknown which
)

// ack is an ack, nack or release that was sent under a lease.
type ack struct {
	Event // Settle
	verdict
	took int // how many messages of the call Redis accepted, if known
}

// partly is an ack of several messages of which Redis accepted some.
type partly struct {
	took  int
	names []string // messages that nothing else settled
}

// take records an event about an ack, nack or release. The script skips messages that it settled
// before. So if a call was sent more than once, it is only known to be accepted if all its messages
// were.
func (l *lease) take(e Event) {
	sent := l.settlements[e.Script]
	if e.Kind == Settle {
		l.settlements[e.Script] = append(sent, &ack{Event: e})
		return
	}
	i := slices.IndexFunc(sent, func(a *ack) bool { return a.By == e.By && a.Call == e.Call })
	if i < 0 {
		return
	}
	switch {
	case e.Kind == Settled && e.Count == e.Of:
		sent[i].verdict = confirmed
	case e.Kind == Unsure, e.Tries != 1:
	case e.Kind == Refused, e.Count == 0:
		sent[i].verdict = refused
	default:
		sent[i].verdict, sent[i].took = taken, e.Count
	}
}

// acks returns the acks sent under a lease.
func (l *lease) acks() []*ack { return l.settlements["ack"] }

// find returns the first ack of a lease with a verdict, or nil.
func (l *lease) find(v verdict) *ack {
	for _, a := range l.acks() {
		if a.verdict == v {
			return a
		}
	}
	return nil
}

// unsettled returns why a message is not settled in a group. It returns "" if the message is dead
// or acked under its last lease. Redis must have confirmed the ack. If there was no answer, the
// last sample with the message must have it under that lease. This is not required if no sample was
// taken after the lease began.
func (c *checker) unsettled(k *course) string {
	if k.dead != nil {
		return ""
	}
	if len(k.leases) == 0 {
		return "was never claimed, and is gone"
	}
	for _, l := range k.leases[:len(k.leases)-1] {
		if l.find(confirmed) != nil && !c.forgot(k, l) {
			c.figures.Acked++
			return "" // the later claim is another violation
		}
	}
	l := k.leases[len(k.leases)-1]
	some := l.find(taken)
	switch {
	case l.find(confirmed) != nil:
	case len(l.acks()) == 0:
		return "was neither acked nor is it dead"
	case l.find(unsure) == nil && some == nil:
		return fmt.Sprintf("is gone, and Redis had refused its ack: %s", l.told)
	default:
		if why := c.contradicted(k, l); why != "" {
			return why
		}
		c.figures.Unanswered++
		if c.gone[k.place].Token == l.Token {
			c.figures.Seen++
		}
		if l.find(unsure) == nil && !c.forgot(k, l) { // otherwise the server may have lost it
			c.note(some, k)
		}
	}
	c.figures.Acked++
	return ""
}

// contradicted returns why an unconfirmed ack cannot have settled the message, or "".
func (c *checker) contradicted(k *course, l *lease) string {
	gone, looked := c.gone[k.place]
	switch {
	case !looked || c.forgets(k.topic, l.Sent, max(l.last, gone.At)):
		return ""
	case gone.At < l.acks()[0].At:
		return fmt.Sprintf("was gone before its ack was sent, which nobody has confirmed: %s", gone)
	case gone.Sent > l.At && gone.Token != l.Token:
		return fmt.Sprintf("was not under lease %s any more when it was seen last, and nobody has confirmed its ack: %s", l.Token, gone)
	}
	return ""
}

// note records a message that is settled only if it is among those that Redis accepted of a call.
func (c *checker) note(a *ack, k *course) {
	of := call{a.By, a.Call}
	if c.partly[of] == nil {
		c.partly[of] = &partly{took: a.took}
	}
	c.partly[of].names = append(c.partly[of].names, k.name())
}

// checkPartly checks that no call settled more messages than Redis accepted.
func (c *checker) checkPartly() {
	for _, p := range c.partly {
		if len(p.names) > p.took {
			c.report(Settlement, "Redis has taken %d acks of a call, and %d messages are gone that nothing else has settled: %q", p.took, len(p.names), p.names)
		}
	}
}
