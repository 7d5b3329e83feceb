package redisdelay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// handOut hands messages to the consumer until the subscription closes.
//
// A consumer that takes one message after the other has settled the last when it takes the next. So handOut
// itself awaits the last message, and only those before it need goroutines.
func (s *subscription) handOut() {
	defer func() {
		s.looker.Stop()
		s.mu.Lock()
		s.handOver = true
		s.mu.Unlock()
		signal(s.kick)
	}()
	var last, offered *delivery
	for {
		if last != nil && s.settledNow(last) {
			last = nil
		}
		if offered == nil {
			if offered = s.take(); offered != nil && !s.unmarshal(offered) {
				offered = nil
				continue
			}
		}
		taken := s.offer(last, offered)
		if taken {
			if last != nil && !s.settledNow(last) {
				go s.await(last)
			}
			last, offered = offered, nil
			continue
		}
		select {
		case <-s.closing:
			if offered != nil {
				s.giveBack(offered)
			}
			if last != nil {
				go s.await(last)
			}
			return
		default:
		}
		if offered != nil && !s.holds(offered) {
			offered = nil // its lease was lost
		}
	}
}

// offer offers a message to the consumer, if there is one, and returns true if it was taken; else when it is
// time to look again: the last message is settled, or may be, something can be taken from the buffer, a lease
// was lost, the message expires and it may be too late for it by now, or the subscription closes.
func (s *subscription) offer(last, offered *delivery) (taken bool) {
	var out chan<- *message.Message
	var msg *message.Message
	feed := s.feed
	var late <-chan time.Time
	if offered != nil {
		if !s.holds(offered) || s.isClosing() {
			return false
		}
		out, msg = s.out, offered.msg
		if offered.tooLate.IsZero() {
			feed = nil
		} else {
			verdict, left := s.judge(offered)
			defer s.withdrawn()
			switch verdict {
			case tooLate:
				return false
			case unknown: // until feed
				out = nil
			default:
				timer := time.NewTimer(left)
				defer timer.Stop()
				late = timer.C
			}
		}
		select { // the consumer waits, most of the time
		case out <- msg:
			s.handed(offered)
			return true
		default:
		}
	}
	var acked, nacked <-chan struct{}
	switch {
	case last == nil:
	case out != nil && !last.watched:
		// Quick consumers take this one as soon as they have settled that one. To be woken for both would cost twice.
		last.watched = true // from the next look on
		s.lookSoon()
	default:
		acked, nacked = last.msg.Acked(), last.msg.Nacked()
	}
	select {
	case out <- msg:
		s.handed(offered)
		return true
	case <-feed:
	case <-s.look:
	case <-acked:
	case <-nacked:
	case <-late:
	}
	return false
}

// soon is how long it takes, about, until a message is seen to be settled while another is on offer, where the
// consumer takes less than that for a message.
const soon = time.Millisecond

// lookSoon has handOut look again soon, if nothing has it look before.
func (s *subscription) lookSoon() {
	if s.looks.CompareAndSwap(false, true) {
		s.looker.Reset(soon)
	}
}

// take takes the next message that may be handed out, or returns nil.
func (s *subscription) take() *delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buffer.len() == 0 || len(s.inHand) >= s.config.MaxInFlight || s.held || s.isClosing() || s.ctx.Err() != nil {
		return nil
	}
	now := time.Now()
	if now.After(s.buffer.first().deadline) { // the process stood still
		s.loseExpired(now)
		return nil // which has handOut look again
	}
	d := s.begin(s.buffer.pop(), now)
	if s.buffer.len() == 0 { // it takes all that it is given
		s.room += min(s.room, s.config.MaxInFlight-s.room)
	}
	switch here := s.buffer.len() + s.coming(); {
	case s.asking:
		s.goAhead()
	case here == 0 || s.more && here <= s.refill:
		signal(s.kick)
	}
	return d
}

var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// unmarshal makes the message that the consumer gets. If there is none, it ends the delivery and returns false.
func (s *subscription) unmarshal(d *delivery) bool {
	msg, err := s.message(d.Body)
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		s.bury(d, err)
		return false
	}
	d.Body = nil
	if msg.Acked() == nil { // it was not made by NewMessage, and could not tell of its Ack
		made := message.NewMessage(msg.UUID, msg.Payload)
		made.Metadata = msg.Metadata
		msg = made
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	d.obey(meta.Take(msg.Metadata))
	if d.DelayedFor != "" {
		msg.Metadata.Set(delay.DelayedForKey, d.DelayedFor)
	}
	msg.SetContext(d)
	d.msg, d.uuid = msg, msg.UUID
	return true
}

// message has the Unmarshaler make the message. A panic would end the process, and come again with the message.
func (s *subscription) message(body []byte) (msg *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the Unmarshaler panicked: %v", p)
		}
	}()
	return s.config.Unmarshaler.Unmarshal(s.topic.Name, body)
}

// obey notes what the message says about its delivery. It has no expiry if an operator requeued it.
func (d *delivery) obey(spec meta.Spec) {
	d.delayID = spec.Name.ID
	if spec.Limit != 0 {
		d.limit = spec.Limit
	}
	if spec.Backoff.IsSet() {
		d.backoff = spec.Backoff.Wait
	}
	if !d.Requeued {
		d.tooLate, d.toDead = spec.Expiry.From(d.Due), spec.Expiry.Dead
	}
}

// handed notes that the consumer has the message.
func (s *subscription) handed(d *delivery) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	d.handed = now
	if s.stuck { // it takes messages again, and none are here
		s.stuck = false
		signal(s.kick)
	}
	late := max(0, s.server.Add(now.Sub(s.heard)).Sub(d.Due)) // at least
	s.counts.Add(queue.Counts{Delivered: 1, LatenessMicros: late.Microseconds(), Latest: late})
}
