package redisdelay

import (
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Whether it is too late for a message, the server's clock says, and nothing else: as a claim has told it. The
// program's own clock only says when to ask anew. Then the message is on offer no more, until the answer is there.
// So a message is neither handed over too late nor given up too early, however the two clocks run. In a test in which
// the server's stands still, too, but for one whose time ends sooner than a claim takes: it is asked for again and again.

// serverNow is what the server's clock shows at most, as far as can be told without asking it: it counts from
// when a claim was sent, which is before the server told the time. s.mu is held.
func (s *subscription) serverNow(now time.Time) time.Time { return s.server.Add(now.Sub(s.sent)) }

// verdict is what is known about a message that expires.
type verdict int

const (
	inTime  verdict = iota // it may be on offer, for a while
	unknown                // the server is asked
	tooLate                // it has ended
)

// judge says whether a message that expires may be offered to the consumer, and for how long, and ends its delivery
// if it is too late for it.
func (s *subscription) judge(d *delivery) (v verdict, left time.Duration) {
	s.mu.Lock()
	if left = d.tooLate.Sub(s.serverNow(time.Now())); left > 0 {
		s.onOffer = true
		s.mu.Unlock()
		return inTime, left
	}
	late := !s.server.Before(d.tooLate)
	if !late && !s.woken { // else run knows, and may be pausing after a failure
		s.woken = true // the next claim tells the time
		signal(s.kick)
	}
	s.mu.Unlock()
	if !late {
		return unknown, 0
	}
	s.end(d, func() {
		if d.toDead {
			s.settled.nacks = append(s.settled.nacks, queue.Failure{Leased: &d.Leased, Nobody: true, Reason: "not delivered in time"})
			return
		}
		s.counts.Add(queue.Counts{Dropped: 1})
		s.settled.acks = append(s.settled.acks, &d.Leased)
	})
	return tooLate, 0
}

// withdrawn notes that no message that expires is on offer, until the next is judged by what the server told last.
func (s *subscription) withdrawn() {
	s.mu.Lock()
	s.onOffer = false
	done := s.unjudged
	s.unjudged = nil
	s.mu.Unlock()
	call(done)
}

// answer tells those who asked that all is judged by the server's time that has just come, as soon as it is: what
// is on offer was judged by an earlier one.
func (s *subscription) answer(asked []func()) {
	s.mu.Lock()
	if s.onOffer {
		s.unjudged = append(s.unjudged, asked...)
		asked = nil
	}
	s.mu.Unlock()
	call(asked)
}

// askAgain has those who asked with a claim that failed wait for the next.
func (s *subscription) askAgain(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, x.asked...)
	s.woken = s.woken || len(x.asked) > 0
}

// answerAll ends all waiting when the subscription ends.
func (s *subscription) answerAll() {
	s.mu.Lock()
	asked := slices.Concat(s.asked, s.unjudged)
	s.asked, s.unjudged, s.gone = nil, nil, true
	s.mu.Unlock()
	call(asked)
}

func call(all []func()) {
	for _, f := range all {
		f()
	}
}
