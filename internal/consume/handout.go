package consume

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// glance is how long handOut waits, about, before it looks whether a message is settled while
// another one is on offer, if the consumer takes less than that for a message.
const glance = time.Millisecond

// handing is the state of handOut.
type handing struct {
	*Subscription
	next    *Delivery   // the message on offer, or nil
	last    *Delivery   // the message that was handed over before, or nil if it is settled
	spare   *Delivery   // for the next message
	glances *time.Timer // has handOut look whether last is settled
}

// handOut hands messages to the consumer until the subscription closes. It waits itself until the
// last message is settled: a consumer that handles one message after the other settles the last one
// before it takes the next.
func (s *Subscription) handOut() {
	h := handing{Subscription: s, glances: stoppedTimer(s.offer.send)}
	defer s.step(func(m *Machine, _ time.Time) Effects { return m.TakerGone() })
	defer h.glances.Stop()
	for {
		if h.last != nil && s.settledNow(h.last) {
			h.last = nil
		}
		if h.next == nil && h.take() && !s.unmarshal(h.next) {
			h.next = nil
			continue
		}
		if h.offerNext() {
			if h.last != nil && !s.settledNow(h.last) {
				go s.await(h.last)
			}
			h.last, h.next = h.next, nil
			continue
		}
		if s.isClosing() {
			break
		}
		if h.next != nil && !s.has(h.next) {
			h.next = nil // its lease was lost
		}
	}
	if h.next != nil {
		s.step(func(m *Machine, _ time.Time) Effects { return m.TakenBack(&h.next.inHand) })
	}
	if h.last != nil {
		go s.await(h.last)
	}
}

// take takes the next message, and returns false if there is none for the consumer now.
func (h *handing) take() (taken bool) {
	if h.spare == nil {
		h.spare = &Delivery{of: h.Subscription}
		h.spare.inHand.delivery = h.spare
	}
	d := h.spare
	h.step(func(m *Machine, now time.Time) (e Effects) {
		d.watched = m.Pace() > glance
		taken, e = m.Take(now, &d.inHand)
		return e
	})
	if taken {
		h.next, h.spare = d, nil
	}
	return taken
}

// offerNext offers the next message, if there is one, and returns true if the consumer took it.
// Otherwise it returns when the last message may be settled, a message may be taken, a lease was
// lost, it may be too late for the message, or the subscription closes.
func (h *handing) offerNext() (taken bool) {
	var out chan<- *message.Message
	var msg *message.Message
	var late <-chan time.Time
	feed := h.feed
	if h.next != nil {
		if !h.has(h.next) || h.isClosing() {
			return false
		}
		out, msg, feed = h.out, h.next.msg, nil
		if end, thenDead := h.next.expiry(); !end.IsZero() {
			verdict, left := h.judge(h.next, end, thenDead)
			defer h.step(func(m *Machine, _ time.Time) Effects { return m.Withdrawn() })
			switch verdict {
			case TooLate:
				return false
			case Unclear: // feed comes when the next claim has told the time
				out, feed = nil, h.feed
			default:
				timer := time.NewTimer(left)
				defer timer.Stop()
				late = timer.C
			}
		}
		select { // most often the consumer waits already
		case out <- msg:
			h.handed(h.next)
			return true
		default:
		}
	}
	var acked, nacked <-chan struct{}
	switch {
	case h.last == nil:
	case out != nil && !h.last.watched:
		// A quick consumer takes the next message as soon as it has settled the last one. To be
		// woken for both would cost twice.
		h.last.watched = true // from the next look on
		h.glances.Reset(glance)
	default:
		acked, nacked = h.last.msg.Acked(), h.last.msg.Nacked()
	}
	select {
	case out <- msg:
		h.handed(h.next)
		return true
	case <-feed:
	case <-h.offer:
	case <-acked:
	case <-nacked:
	case <-late:
	}
	return false
}

func (s *Subscription) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// has reports whether a delivery has not ended.
func (s *Subscription) has(d *Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Has(&d.inHand)
}

// handed notes that the consumer has the message.
func (s *Subscription) handed(d *Delivery) {
	s.step(func(m *Machine, now time.Time) Effects { return m.Handed(now, &d.inHand) })
}

// judge decides whether a message that expires may be on offer, and for how long.
func (s *Subscription) judge(d *Delivery, end time.Time, thenDead bool) (v Verdict, left time.Duration) {
	s.step(func(m *Machine, now time.Time) (e Effects) {
		v, left, e = m.Judge(now, &d.inHand, end, thenDead)
		return e
	})
	return v, left
}

var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// unmarshal makes the message that the consumer gets. If it cannot, it ends the delivery and
// returns false.
func (s *Subscription) unmarshal(d *Delivery) bool {
	msg, err := s.callUnmarshaler(d.inHand.Body)
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		s.bury(d, err)
		return false
	}
	d.inHand.Body = nil
	d.accept(msg)
	return true
}

// callUnmarshaler turns a panic into an error. It would end the process, and the message would come
// again and end the next one.
func (s *Subscription) callUnmarshaler(body []byte) (msg *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the Unmarshaler panicked: %v", p)
		}
	}()
	return s.Unmarshal(s.Topic.Name, body)
}
