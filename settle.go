package redisdelay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

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
	due, set, err := meta.Retry(d.msg.Metadata, time.Now())
	switch {
	case err != nil:
		s.logger.Error("A nacked message has a delay that cannot be read, using Backoff", err, watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
		fallthrough
	case !set:
		f.Retry = queue.In(s.backoff(d)(d.number()))
	default:
		f.Retry = due
		f.DelayedFor = meta.DelayedFor(d.msg.Metadata)
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
	own, err := meta.ReadBackoff(d.msg.Metadata)
	if err != nil {
		s.logger.Error("A nacked message has a backoff that cannot be read, using Backoff", err, watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
	}
	if own.IsSet() {
		return own.Wait
	}
	return s.config.Backoff
}

// holdFor holds the hand-over until a message that is retried now is back in its place: in order means
// that what is claimed already comes after it, and goes back for that. s.mu is held.
func (s *subscription) holdFor(retry queue.Due) {
	if s.config.MaxInFlight == 1 && retry.MayBeNow() {
		s.held, s.trust = true, 0
	}
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
	s.trust++
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
