package consume

import (
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Answer is what became of an exchange.
type Answer struct {
	Sent   time.Time // when the exchange was sent
	Came   time.Time // when the answer came, or the client gave up
	Failed Failed
	Acked  int             // messages that the acks settled
	Lost   map[string]bool // names of the leases that Redis found lost
	Claims [2]Claimed      // in the order of Exchange.Claims
}

// Failed is the set of an exchange's parts that failed.
type Failed uint8

const (
	FailedAcks Failed = 1 << iota
	FailedReleases
	FailedNacks
	FailedExtend
	FailedOther // any other: a claim, or the registration of a group that was gone
)

// Claimed is what became of a claim.
type Claimed struct {
	Outcome  Outcome
	Messages []Message // without sequence number and lease
	queue.Claimed
}

// Outcome is whether a claim was run.
type Outcome int

const (
	Ran       Outcome = iota // it was run, and here is its answer
	GroupGone                // the group does not exist, nor anything that was claimed
	NoAnswer                 // it may have been run
	Refused                  // it was not run
)

// Answered takes in what became of an exchange.
func (m *Machine) Answered(now time.Time, x *Exchange, a *Answer) Effects {
	if a.Failed&FailedNacks == 0 {
		m.noteDeaths(x.deaths, a.Came)
	}
	m.telling -= x.decided()
	m.untold.again(&x.Settlements, a.Failed)
	if len(m.untold.Acks) == 0 {
		m.settles = false
	}
	m.counts.Acked += a.Acked
	if len(x.Nacks) > 0 && len(m.untold.Nacks) == 0 {
		m.taker.move(Paused, Takes)
	}
	if len(x.Extend) > 0 {
		m.extended(x, a)
		if !m.dates.over.IsZero() { // it may have extended what was lost meanwhile
			m.dates.over = now.Add(m.limits.Lease)
		}
	}
	timeTold := false
	for i, c := range x.Claims {
		l := &m.main
		if c.Subscription == m.second.name {
			l = &m.second
		}
		ran := m.claimed(now, l, a, &a.Claims[i])
		timeTold = timeTold || ran && l == &m.main
	}
	switch {
	case timeTold && m.judging.state == OfferExpires:
		m.judging.later = append(m.judging.later, x.asked...)
	case timeTold:
		m.answer(&x.asked)
	case len(x.asked) > 0: // they wait for the next claim
		m.judging.asked = append(m.judging.asked, x.asked...)
		m.supply = Unknown
	}
	m.ended(now, x, a.Failed != 0)
	m.out.Wake |= Feed
	return m.effects()
}

// ended takes in that an exchange is over.
func (m *Machine) ended(now time.Time, x *Exchange, failed bool) {
	if x.beside {
		if failed && m.second.state == LaneIdle {
			m.second.state = LaneBarred
		}
		return
	}
	m.talk, m.dates.answered = Idle, now
	if failed {
		m.dates.sign = time.Time{} // it may not have reached Redis
		m.watch(now)
		return
	}
	m.dates.watch = time.Time{}
	if !m.dates.cut.IsZero() {
		m.dates.cut = now.Add(lastTries)
	}
	if m.second.state == LaneBarred {
		m.second.state = LaneIdle
	}
}

// noteDeaths logs the dead letters that Redis was told of. If the lease of one ended before, it is
// delivered again instead.
func (m *Machine) noteDeaths(deaths []death, came time.Time) {
	for _, d := range deaths {
		kind := Dead
		if came.After(d.until) {
			kind = PerhapsDead
		}
		m.note(Note{Kind: kind, InHand: d.InHand, Failure: d.failure})
	}
}

// extended takes in which leases were lost, and the new deadline of the others.
func (m *Machine) extended(x *Exchange, a *Answer) {
	if a.Failed&FailedExtend != 0 {
		m.dates.extend = a.Sent // the deadlines stay, so the next exchange extends again
		return
	}
	if len(a.Lost) > 0 {
		m.lose(func(held *Message) bool { return a.Lost[held.Lease()] })
	}
	m.held.extend(x.extendTo, a.Sent.Add(m.limits.Lease))
}

// claimed takes in what became of a claim, and reports whether it was run.
func (m *Machine) claimed(now time.Time, l *Lane, a *Answer, c *Claimed) bool {
	sent := a.Sent
	if l.state == LaneUnanswered { // the leases may have begun with the first run
		sent = l.since
	}
	deadline := sent.Add(m.limits.Lease)
	if c.Outcome != Ran {
		m.claimFailed(l, c.Outcome, sent, now.Before(deadline))
		return false
	}
	limit := l.claim.Limit
	m.dates.extend = earlier(m.dates.extend, sent.Add(m.limits.Lease/3))
	l.answered(len(c.Messages) > 0)
	if c.Orphans > 0 {
		m.note(Note{Kind: Orphans, Count: c.Orphans})
	}
	m.limited, m.history = c.Limits, c.History
	m.supplied(l, c, limit)
	m.epoch = max(m.epoch, c.Epoch)
	m.hold(now, c.Messages, &lease{claimed: a.Came, deadline: deadline, epoch: c.Epoch}, a)
	if limit > 0 {
		m.told(now, c, a.Came)
	}
	if l == &m.main {
		m.clock = ServerClock{told: c.Now, sent: a.Sent, came: a.Came}
		m.brought = len(c.Messages)
	}
	if !m.dates.watch.IsZero() && deadline.Before(m.dates.watch) {
		m.watch(now)
	}
	return true
}

// supplied takes in what a claim told about the group's ready messages.
func (m *Machine) supplied(l *Lane, c *Claimed, limit int) {
	if l == &m.main && limit == 0 && m.phase == Draining {
		m.phase = Left
	}
	switch {
	case m.supply == Unknown: // a wake-up came after the claim was sent
	case l == &m.main && c.Waits:
		m.supply = Waiting
	case c.More:
		m.supply = More
	case l == &m.main || m.supply == More:
		m.supply = Empty
	}
}

// hold puts the messages of a claim behind all others, or gives them back.
func (m *Machine) hold(now time.Time, messages []Message, l *lease, a *Answer) {
	m.held.number(messages, l)
	switch {
	case len(messages) == 0:
		if m.held.buffer.len() == 0 && cap(m.held.buffer.array) > manyBrought {
			m.held.buffer = buffer{} // not that many messages come soon
		}
	case now.After(l.deadline): // the leases may be over
		if took := a.Came.Sub(a.Sent); took > m.limits.Lease {
			m.note(Note{Kind: LateAnswer, Count: len(messages), Took: took})
		}
		m.untold.release(messages)
	case m.limits.MaxInFlight == 1 && (len(m.untold.Releases) > 0 || now.Before(m.dates.over)): // others come before these
		m.untold.release(messages)
	default:
		m.held.buffer.append(messages)
	}
}

// claimFailed has a claim repeated if it may have been run. Otherwise another is made in its place.
// mayHold tells whether leases of an earlier run could still last.
func (m *Machine) claimFailed(l *Lane, outcome Outcome, sent time.Time, mayHold bool) {
	switch {
	case outcome == GroupGone:
		nothing := l.claim.Limit == 0
		if m.phase != Left { // nobody registers the group again for the counts of one that closes
			m.counts.Add(l.claim.Counts)
		}
		l.remembered = 0
		l.refused()
		if l == &m.second && nothing { // Redis has forgotten the lane, which was the purpose
			return
		}
	case outcome == NoAnswer, l == &m.second, l.state == LaneUnanswered && mayHold:
		l.unanswered(sent) // the server may refuse now what it ran before
		return
	default:
		m.counts.Add(l.claim.Counts)
		l.refused()
	}
	m.supply = Unknown
}
