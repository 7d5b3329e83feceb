package consume

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// glance is when handOut looks, while it offers a message to a quick consumer, whether the one
// before is settled.
const glance = time.Millisecond

// handing is one goroutine that hands messages to the consumer. The subscription has one at a time.
type handing struct {
	*Subscription
	next     *Delivery   // the message on offer, or nil
	last     *Delivery   // the message that was handed over before, or nil if it is settled
	spare    *Delivery   // for the next message
	glances  *time.Timer // has run look whether last is settled
	replaced bool        // another handing goes on in its place
}

// run hands messages to the consumer until the subscription closes, or until it is replaced. It
// waits itself until the last message is settled: a consumer that handles one message after the
// other settles the last one before it takes the next.
func (h *handing) run() {
	returned := false
	defer guard.OnExit(&returned, h.exited)
	h.handOut()
	if !h.replaced {
		h.end()
	}
	returned = true
}

func (h *handing) handOut() {
	for {
		if h.last != nil && h.settledNow(h.last) {
			h.last = nil
		}
		if h.next == nil && h.take() && !h.unmarshal() {
			if h.replaced {
				return
			}
			h.next = nil
			continue
		}
		if h.offerNext() {
			if h.last != nil && !h.settledNow(h.last) {
				go h.await(h.last)
			}
			h.last, h.next = h.next, nil
			continue
		}
		if h.replaced || h.isClosing() {
			return
		}
		if h.next != nil && !h.has(h.next) {
			h.next = nil // its lease was lost
		}
	}
}

// end gives back what was not handed out.
func (h *handing) end() {
	h.glances.Stop()
	h.mu.Lock()
	h.reading.over = true
	h.mu.Unlock()
	h.takeBackLate()
	if h.next != nil {
		h.step(func(m *Machine, _ time.Time) Effects { return m.TakenBack(&h.next.inHand) })
	}
	if h.last != nil {
		go h.await(h.last)
	}
	h.step(func(m *Machine, _ time.Time) Effects { return m.TakerGone() })
	h.others.Done()
}

// takeBackLate gives back what the Unmarshaler had for long and nobody has handed out since.
func (s *Subscription) takeBackLate() {
	s.mu.Lock()
	back := s.reading.late
	s.reading.late = nil
	s.mu.Unlock()
	for _, d := range back {
		s.step(func(m *Machine, _ time.Time) Effects { return m.TakenBack(&d.inHand) })
	}
}

// exited has another goroutine go on, because the Unmarshaler has called runtime.Goexit.
func (h *handing) exited() {
	if h.next != nil {
		h.failed(guard.Exited(unmarshaler))
	}
	if !h.replaced {
		h.next = nil
		go h.run()
	}
}

// take takes the next message, and returns true if it has to be unmarshaled. If there is none for
// the consumer now, h.next stays nil.
func (h *handing) take() (taken bool) {
	if h.spare == nil {
		h.spare = &Delivery{of: h.Subscription}
		h.spare.inHand.delivery = h.spare
	}
	if guard.Err(h.ctx) != nil {
		h.close() // the function that waits for the end of ctx may run later
	}
	d := h.spare
	h.step(func(m *Machine, now time.Time) (e Effects) {
		if late := h.reading.late; len(late) > 0 {
			h.next, h.reading.late = late[0], late[1:]
			return Effects{}
		}
		d.watched = m.Pace() > glance
		came := h.askForPlaces(now, true)
		if taken, e = m.Take(now, &d.inHand); taken {
			h.next, h.spare = d, nil
			h.reading.begin(h)
		}
		e.Wake |= came &^ Feed
		return e
	})
	return taken
}

// offerNext offers the next message, if there is one, and returns true if the consumer took it.
// Otherwise it returns when there may be something else to do:
//
//   - the last message is settled,
//   - a message can be taken from the buffer,
//   - the lease of a message was lost, or it is too late for it,
//   - the subscription closes.
func (h *handing) offerNext() (taken bool) {
	var out chan<- *message.Message
	var msg *message.Message
	var late <-chan time.Time
	feed := h.feed
	if h.next != nil {
		if !h.keeps() || h.isClosing() {
			return false
		}
		out, msg, feed = h.out, h.next.msg, nil
		if end, thenDead := h.next.expiry(); !end.IsZero() {
			verdict, left := h.judge(h.next, end, thenDead)
			defer h.step(func(m *Machine, _ time.Time) Effects { return m.Withdrawn() })
			feed = h.feed // each claim tells the time anew
			switch verdict {
			case TooLate:
				return false
			case Unclear:
				out = nil
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
	case <-s.leaving:
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

// reading is the message that the Unmarshaler has, and what became of earlier ones that it had for
// long. Subscription.mu guards it.
type reading struct {
	by      *handing    // whose next message the Unmarshaler has; nil: it has none
	timer   *time.Timer // calls watchUnmarshaler
	running bool        // the timer runs
	late    []*Delivery // to be handed out; their goroutines were replaced
	over    bool        // nothing more is handed out
}

// patience is how long the Unmarshaler may hold up other messages. Then another goroutine hands
// these out.
const patience = time.Second

// begin notes that the Unmarshaler gets a message. The timer is not set anew for each message,
// because that would cost more than the rest.
func (r *reading) begin(by *handing) {
	r.by = by
	if !r.running {
		r.running = true
		r.timer.Reset(patience)
	}
}

// watchUnmarshaler has another goroutine hand out messages while the Unmarshaler hangs.
func (s *Subscription) watchUnmarshaler() {
	if slow := s.findSlow(); slow != nil {
		s.Logger.Error("The Unmarshaler takes long for a message, others go on without it", errSlow,
			watermill.LogFields{"message_id": slow.inHand.ID})
	}
}

// findSlow replaces a goroutine that the Unmarshaler has held up, and returns its message.
// Otherwise it returns nil, and sets the timer anew while the Unmarshaler has a message.
func (s *Subscription) findSlow() (slow *Delivery) {
	s.step(func(_ *Machine, now time.Time) (e Effects) {
		r := &s.reading
		r.running = false
		if r.by == nil {
			return e
		}
		if left := r.by.next.inHand.taken.Add(patience).Sub(now); left > 0 {
			r.running = true
			r.timer.Reset(left)
			return e
		}
		slow = r.by.next
		return s.replaceHandOut()
	})
	return slow
}

// replaceHandOut starts a goroutine in place of the one that is in the Unmarshaler. s.mu is held.
func (s *Subscription) replaceHandOut() Effects {
	h := s.reading.by
	s.reading.by = nil
	h.next.slow = true
	go (&handing{Subscription: s, last: h.last, glances: h.glances}).run()
	return s.machine.Lingers(&h.next.inHand)
}

// isSlow reports whether the Unmarshaler has had a message for long.
func (s *Subscription) isSlow(d *Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.slow
}

// keeps reports whether the delivery of the next message has not ended, and this goroutine is to
// hand it out. A goroutine that was replaced leaves the message to its successor.
func (h *handing) keeps() bool {
	h.mu.Lock()
	has := h.read()
	h.mu.Unlock()
	if h.replaced {
		h.leave()
		return false
	}
	return has
}

// read notes that the Unmarshaler is done with the next message, and reports whether its delivery
// has not ended. s.mu is held.
func (h *handing) read() (has bool) {
	if h.reading.by == h {
		h.reading.by = nil
	}
	h.replaced = h.next.slow
	return h.machine.Has(&h.next.inHand)
}

// leave has the message of a goroutine that was replaced handed out, or given back.
func (h *handing) leave() {
	d := h.next
	h.mu.Lock()
	d.slow = false
	over := h.reading.over
	if !over {
		h.reading.late = append(h.reading.late, d)
	}
	h.mu.Unlock()
	if over {
		h.step(func(m *Machine, _ time.Time) Effects { return m.TakenBack(&d.inHand) })
		h.talk.send()
	}
	h.feed.send()
}

// unmarshaler names the user's code in errors.
const unmarshaler = "the Unmarshaler"

var (
	errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")
	errSlow      = fmt.Errorf("the Unmarshaler has not returned within %v", patience)
)

// unmarshal makes the message that the consumer gets. If it cannot, it ends the delivery and
// returns false.
func (h *handing) unmarshal() bool {
	d := h.next
	msg, err := h.callUnmarshaler(d.inHand.Body)
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		h.failed(err)
		return false
	}
	d.inHand.Body = nil
	d.accept(msg)
	return true
}

// callUnmarshaler turns a panic into an error. It would end the process, and the message would come
// again and end the next one.
func (s *Subscription) callUnmarshaler(body []byte) (msg *message.Message, err error) {
	defer guard.Recover(&err, unmarshaler)
	msg, err = s.Unmarshal(s.Topic.Name, body)
	return msg, guard.Sound(err)
}

// failed buries the next message, unless its delivery has ended meanwhile.
func (h *handing) failed(err error) {
	h.mu.Lock()
	has := h.read()
	h.mu.Unlock()
	if has {
		h.bury(h.next, err)
	}
}
