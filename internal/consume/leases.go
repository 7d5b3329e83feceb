package consume

import (
	"time"
)

// Watch is when to call Tick; the zero time is never.
func (m *Machine) Watch() time.Time {
	if m.dates.cut.IsZero() || m.Owes() {
		return m.dates.watch
	}
	if m.dates.watch.IsZero() {
		return m.dates.cut
	}
	return earlier(m.dates.watch, m.dates.cut)
}

// Tick ends the deliveries whose lease has run out while Redis did not answer, or between two
// attempts to reach it. If all settlements are answered, it ends the calls to a Redis that does not
// answer: what is left comes back when its leases end.
func (m *Machine) Tick(now time.Time) Effects {
	if !m.dates.watch.IsZero() && !now.Before(m.dates.watch) {
		m.watch(now) // may end the last delivery that owes something
	}
	if !m.dates.cut.IsZero() && !m.Owes() && !now.Before(m.dates.cut) {
		m.dates.cut, m.out.Cut = time.Time{}, true
	}
	return m.effects()
}

// watch ends the deliveries whose lease has run out, and sets when to look again.
func (m *Machine) watch(now time.Time) {
	m.loseExpired(now)
	next := now.Add(m.limits.Lease)
	m.held.each(func(held *Message) { next = earlier(next, held.deadline) })
	m.dates.watch = next.Add(time.Millisecond)
}

// loseExpired loses the messages whose lease was not extended in time, by the process's clock.
// Other subscriptions have them, now or soon. With SingleActive all leases end with the first, as
// in Redis. Otherwise a message could be handed out before one that comes again.
//
// Redis may have a lease for longer, because it began or was extended after the call was sent. In
// strict order nothing is claimed while a handler runs whose lease is lost, until Redis has it no
// more for certain. Otherwise a claim would bring what comes after its message.
func (m *Machine) loseExpired(now time.Time) {
	expired := func(held *Message) bool { return now.After(held.deadline) }
	if m.limits.SingleActive {
		some := false
		m.held.each(func(held *Message) { some = some || expired(held) })
		expired = func(*Message) bool { return some }
	}
	running := m.held.lost
	m.lose(expired)
	if m.strict() && m.held.lost > running {
		m.dates.over = now.Add(m.limits.Lease)
	}
}

// lose ends the deliveries whose lease is lost. A lease whose message no handler got is given back
// all the same. So Redis takes back its expiry, if it has expired: the message did not end the
// process. While a handler runs, it may do that yet: see Outlived.
func (m *Machine) lose(lost func(*Message) bool) {
	gone := m.held.buffer.remove(lost)
	some := len(gone) > 0
	for i := range gone {
		gone[i] = gone[i].withoutBody()
	}
	for i := len(m.held.inHand) - 1; i >= 0; i-- {
		in := m.held.inHand[i]
		if !lost(&in.Message) {
			continue
		}
		some = true
		if in.handed.IsZero() {
			gone = append(gone, in.withoutBody())
		} else {
			m.held.lost++
			m.noteLost(in)
		}
		m.abandon(in, LeaseLost)
	}
	m.untold.release(gone)
	if some {
		m.out.Wake |= Feed | Talk
	}
}

// Outlived means that the consumer has settled a message whose lease was lost. So the message did
// not end the process. The lease is given back, and Redis takes back its expiry.
func (m *Machine) Outlived(in *InHand) {
	m.held.lost--
	if m.held.lost == 0 {
		m.dates.over = time.Time{} // what is given back comes before what is claimed
	}
	if m.phase != Over {
		back := in.withoutBody()
		back.used = true
		m.untold.release([]Message{back})
	}
}

func (m *Machine) noteLost(in *InHand) {
	m.counts.LeaseLost++
	m.note(Note{Kind: LostLease, InHand: in})
}
