package consume

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// glance is about how long it takes until a message is seen to be settled while another is on offer, where the consumer takes
// less than that for a message.
const glance = time.Millisecond

// handOut hands messages to the consumer until the subscription closes.
//
// A consumer that takes one message after the other has settled the last one when it takes the next. So handOut itself awaits
// the last message, and only those before it need goroutines.
func (s *Subscription) handOut() {
	h := handing{Subscription: s, glances: stoppedTimer(s.offer.send)}
	defer s.step(func(m *Machine, _ time.Time) Effects { return m.TakerGone() })
	defer h.glances.Stop()
	for {
		if h.last != nil && s.settledNow(h.last) {
			h.last = nil
		}
		if h.next == nil {
			if h.next = h.take(); h.next != nil && !s.unmarshal(h.next) {
				h.next = nil
				continue
			}
		}
		if h.offer() {
			if h.last != nil && !s.settledNow(h.last) {
				go s.await(h.last)
			}
			h.last, h.next = h.next, nil
			continue
		}
		if s.isClosing() {
			h.end()
			return
		}
		if h.next != nil && !s.has(h.next) {
			h.next = nil // its lease was lost
		}
	}
}

// handing is what the goroutine of handOut keeps.
type handing struct {
	*Subscription
	last    *Delivery   // which was taken last, if it is not seen to be settled
	next    *Delivery   // which is on offer
	spare   *Delivery   // which nothing was taken for yet
	glances *time.Timer // has it look whether last is settled
}

// take takes the next message that may be handed out, or returns nil.
func (h *handing) take() *Delivery {
	d := h.spare
	if d == nil {
		d = &Delivery{of: h.Subscription}
		d.inHand.delivery = d
	}
	h.spare = d
	now := time.Now()
	h.mu.Lock()
	taken, e := h.machine.Take(now, &d.inHand)
	d.watched = h.machine.Pace() > glance
	h.mu.Unlock()
	h.carryOut(&e)
	if !taken {
		return nil
	}
	h.spare = nil
	return d
}

// offer offers the next message to the consumer, if there is one, and reports whether it was taken. Else it returns when it is
// time to look again: the last message is settled, or may be; a message may be taken from the buffer; a lease was lost; the
// message expires, and it may be too late for it by now; or the subscription closes.
func (h *handing) offer() (taken bool) {
	var out chan<- *message.Message
	var msg *message.Message
	feed := h.feed
	var late <-chan time.Time
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
			case Unclear: // until the next claim has told the time
				out, feed = nil, h.feed
			default:
				timer := time.NewTimer(left)
				defer timer.Stop()
				late = timer.C
			}
		}
		select { // the consumer waits, most of the time
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
		// A quick consumer takes this message as soon as it has settled that one. To be woken for both would cost twice.
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
	case <-h.Subscription.offer:
	case <-acked:
	case <-nacked:
	case <-late:
	}
	return false
}

// end takes back the message on offer, and leaves the last one to a goroutine.
func (h *handing) end() {
	if d := h.next; d != nil {
		h.mu.Lock()
		taken := h.machine.TakenBack(&d.inHand)
		h.mu.Unlock()
		if taken {
			d.ending.end(errSettled)
		}
	}
	if h.last != nil {
		go h.await(h.last)
	}
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
	now := time.Now()
	s.mu.Lock()
	e := s.machine.Handed(now, &d.inHand)
	s.mu.Unlock()
	s.carryOut(&e)
}

// judge reports whether a message that expires may be on offer, and for how long.
func (s *Subscription) judge(d *Delivery, end time.Time, thenDead bool) (Verdict, time.Duration) {
	s.mu.Lock()
	v, left, e := s.machine.Judge(time.Now(), &d.inHand, end, thenDead)
	s.mu.Unlock()
	if v == TooLate {
		d.ending.end(errSettled)
	}
	s.carryOut(&e)
	return v, left
}

var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// unmarshal makes the message that the consumer gets. If there is none, it ends the delivery and returns false.
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

// callUnmarshaler turns a panic into an error: it would end the process, and come again with the message.
func (s *Subscription) callUnmarshaler(body []byte) (msg *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the Unmarshaler panicked: %v", p)
		}
	}()
	return s.Unmarshal(s.Topic.Name, body)
}
