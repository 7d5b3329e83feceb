package faulttest

import (
	"fmt"
	"slices"
)

// verdict is what is known of an ack that a worker has sent.
type verdict int

const (
	unsure    verdict = iota // no answer came; or the client sent it again, which does not tell what it did at first
	confirmed                // Redis has taken it
	refused                  // Redis has not: the lease was another's, or there was an error
	taken                    // Redis has taken some of the call, nobody knows which
)

// ack is one that was sent under a lease, or a nack or a release.
type ack struct {
	Event // Settle
	verdict
	took int // how many of the call Redis has taken, if it said so
}

// partly is an ack of several messages of which Redis has taken some.
type partly struct {
	took  int
	names []string // of messages that nothing else has settled
}

// take takes in what is about an ack, a nack or a release. One whose call was sent more than once is only known to be
// taken if it was whole: the script leaves alone what it has settled before.
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

// acks are those that were sent under a lease.
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

// unsettled tells why a message is not through with a group, "" if it is: dead, or acked under its last lease. That
// Redis has taken the ack must be what it said. Where it said nothing, the message must have been under that lease when
// a look saw it last, if one did after the lease began.
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
			return "" // that it was claimed again is another violation
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
		if l.find(unsure) == nil && !c.forgot(k, l) { // else it may be gone because the server lost it
			c.note(some, k)
		}
	}
	c.figures.Acked++
	return ""
}

// contradicted tells why an ack of which Redis did not say that it took it cannot have settled the message.
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

// note notes a message that is settled only if it is among those that Redis has taken of a call.
func (c *checker) note(a *ack, k *course) {
	of := call{a.By, a.Call}
	if c.partly[of] == nil {
		c.partly[of] = &partly{took: a.took}
	}
	c.partly[of].names = append(c.partly[of].names, k.name())
}

// checkPartly checks that of no call more messages are gone than Redis has taken.
func (c *checker) checkPartly() {
	for _, p := range c.partly {
		if len(p.names) > p.took {
			c.report(Settlement, "Redis has taken %d acks of a call, and %d messages are gone that nothing else has settled: %q", p.took, len(p.names), p.names)
		}
	}
}
