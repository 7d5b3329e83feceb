package redisdelay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

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
	if !isPlain(msg.Metadata) {
		d.obey(msg.Metadata)
	}
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

// obey takes from the metadata what it says of the delivery.
func (d *delivery) obey(metadata message.Metadata) {
	if id, named := metadata[DelayIDKey]; named {
		d.delayID = id
		delete(metadata, DelayIDKey)
	}
	if limit, set, err := maxDeliveries(metadata); set && err == nil {
		d.limit = limit
	}
	if own, set, err := ownBackoff(metadata); set && err == nil {
		d.backoff = own
	}
	d.takeExpiry(metadata)
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
	late := max(0, s.serverNow(now).Sub(d.Due))
	s.counts.Add(queue.Counts{Delivered: 1, LatenessMillis: late.Milliseconds(), Latest: late})
}

// await waits for the consumer to settle the message, or for the end of its delivery.
func (s *subscription) await(d *delivery) {
	for {
		over := s.overNow()
		if s.settledNow(d) {
			signal(s.feed)
			return
		}
		select {
		case <-d.msg.Acked():
		case <-d.msg.Nacked():
		case <-over:
		}
	}
}

// settledNow settles the delivery if the consumer has, and returns true if it has ended.
func (s *subscription) settledNow(d *delivery) bool {
	select {
	case <-d.msg.Acked():
		s.ack(d)
		return true
	default:
	}
	select {
	case <-d.msg.Nacked():
		s.nack(d)
		return true
	default:
	}
	return !s.holds(d)
}

// decided tells whether the consumer has settled the message, which handOut may not have noticed yet.
func (d *delivery) decided() bool {
	select {
	case <-d.msg.Acked():
		return true
	case <-d.msg.Nacked():
		return true
	default:
		return false
	}
}

// holds tells whether a delivery is in hand.
func (s *subscription) holds(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inHand.has(d)
}

// overNow is a channel that is closed when a delivery ends that the consumer has not settled: which one is
// for those who await to find out.
func (s *subscription) overNow() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// abandon ends a delivery that the consumer has not settled. s.mu is held.
func (s *subscription) abandon(d *delivery, cause error) {
	s.inHand.remove(d)
	s.stuck = false // there is room for another
	d.ending.end(cause)
	close(s.over)
	s.over = make(chan struct{})
	signal(s.look)
}

func (s *subscription) ack(d *delivery) {
	s.end(d, func() { s.settled.acks = append(s.settled.acks, &d.Leased) })
}

func (s *subscription) nack(d *delivery) {
	f := queue.Failure{
		Leased: &d.Leased,
		Limit:  d.limit,
		Reason: fmt.Sprintf("nacked on the last of %d deliveries", d.limit),
	}
	if said := d.said.Load(); said != nil {
		f.Error = *said
	}
	due, set, err := retryDue(d.msg.Metadata, time.Now())
	switch {
	case err != nil:
		s.logger.Error("A nacked message has a delay that cannot be read, using Backoff", err, watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
		fallthrough
	case !set:
		f.Retry = queue.In(s.backoff(d)(d.number()))
	default:
		f.Retry = due.queued()
		f.DelayedFor = delayedFor(d.msg.Metadata)
	}
	if reason := d.hopeless.Load(); reason != nil {
		f.Dead, f.Reason = true, *reason
	}
	s.end(d, func() {
		s.fail(d, f)
		s.holdFor(f.Retry)
	})
}

// death is the end of a message that Redis has not been told of, or not answered.
type death struct {
	*delivery
	failure queue.Failure
	until   time.Time // the lease holds at least, so that the message is dead if Redis has answered by then
}

// dies tells whether the message gets no further delivery after the failure.
func (d *delivery) dies(f queue.Failure) bool {
	return f.Dead || d.limit > 0 && d.number() >= d.limit
}

// fail has Redis be told of a failure. s.mu is held.
func (s *subscription) fail(d *delivery, f queue.Failure) {
	s.settled.nacks = append(s.settled.nacks, f)
	if d.dies(f) {
		s.settled.deaths = append(s.settled.deaths, death{delivery: d, failure: f, until: d.deadline})
	}
}

// logDeaths logs the deaths that Redis was told of, when it has answered. It leaves alone a message whose lease was
// over, which is delivered again then.
func (s *subscription) logDeaths(deaths []death, answered time.Time) {
	for _, d := range deaths {
		fields := watermill.LogFields{"message_id": d.ID, "message_uuid": d.uuid}
		if d.failure.Error != "" {
			fields["handler_error"] = d.failure.Error
		}
		text := "A message is dead-lettered"
		if answered.After(d.until) {
			text = "A message is dead-lettered, unless its lease ran out before"
		}
		s.logger.Error(text, errors.New(d.failure.Reason), fields)
	}
}

// backoff is the message's own, or else the subscriber's.
func (s *subscription) backoff(d *delivery) func(int) time.Duration {
	own, set, err := ownBackoff(d.msg.Metadata)
	if err != nil {
		s.logger.Error("A nacked message has a backoff that cannot be read, using Backoff", err, watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
	}
	if set && err == nil {
		return own
	}
	return s.config.Backoff
}

// holdFor holds the hand-over until a message that is retried now is back in its place: in order means
// that what is claimed already comes after it. s.mu is held.
func (s *subscription) holdFor(retry queue.Due) {
	if s.config.MaxInFlight == 1 && retry.MayBeNow() {
		s.held = true
	}
}

// delayedFor is what Watermill's DelayOnError counts on from at the next delivery.
func delayedFor(metadata message.Metadata) string {
	d, ok := parseDuration(metadata.Get(delay.DelayedForKey))
	if !ok || metadata.Get(delay.DelayedUntilKey) == "" {
		return ""
	}
	return d.String()
}

// bury ends a delivery that no consumer can get.
func (s *subscription) bury(d *delivery, err error) {
	s.logger.Error("A message cannot be unmarshaled and is dead-lettered", err, watermill.LogFields{
		"message_id": d.ID,
	})
	s.end(d, func() {
		s.settled.nacks = append(s.settled.nacks, queue.Failure{
			Leased: &d.Leased, Nobody: true, Reason: "unmarshal: " + err.Error(),
		})
	})
}

// giveBack puts a message that the consumer did not take back in front of the buffer, with which it
// goes back to Redis, in order.
func (s *subscription) giveBack(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inHand.remove(d) {
		d.ending.end(errSettled)
		s.buffer.unpop(d.leased)
	}
}

// end ends a delivery, unless it was lost: settle notes the outcome, under s.mu.
func (s *subscription) end(d *delivery, settle func()) {
	s.mu.Lock()
	if !s.inHand.remove(d) {
		s.mu.Unlock()
		return
	}
	settle()
	s.stuck = false
	s.pace.observe(time.Since(d.taken))
	urgent := s.urgent()
	s.mu.Unlock()
	d.ending.end(errSettled)
	if urgent {
		signal(s.kick)
	}
}

// pace is how long the consumer takes for a message, by which what is claimed ahead is measured.
type pace struct {
	mean float64 // seconds; 0: not known
}

// mostAhead is how many messages are claimed ahead at most.
const mostAhead = 768

func (p *pace) observe(d time.Duration) {
	if p.mean == 0 {
		p.mean = d.Seconds()
	} else {
		p.mean += (d.Seconds() - p.mean) / 8
	}
}

// prefetch is how many messages the consumer gets done in the time that they may be hoarded.
func (p *pace) prefetch(inFlight int) int {
	if p.mean == 0 {
		return 0
	}
	return int(min(float64(inFlight)*hoard.Seconds()/p.mean, mostAhead))
}
