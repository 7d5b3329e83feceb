package redisdelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// delivery is a claimed message on its way to the consumer, or with it.
type delivery struct {
	queue.Leased
	info     Delivery
	sequence uint64    // by which deliveries are in order
	claimed  time.Time // when the claim was answered
	deadline time.Time // until when the lease holds at least
	taken    time.Time // by handOut
	handed   time.Time // to the consumer; zero: not yet
	limit    int       // deliveries at most; negative: no limit

	msg    *message.Message
	uuid   string // of msg, which is the consumer's to change
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// newDelivery is made from what a claim brought. s.mu is held.
func (s *subscription) newDelivery(m queue.Leased, sent time.Time) *delivery {
	d := &delivery{
		Leased: m,
		info: Delivery{
			ID:          m.ID,
			Topic:       s.topic.Name,
			Group:       s.group.Name,
			Number:      m.Deliveries + 1,
			Redelivered: m.Deliveries > 0 || m.Suspect,
			DueAt:       m.Due,
		},
		sequence: s.sequence,
		claimed:  time.Now(),
		deadline: sent.Add(s.config.LeaseDuration),
		limit:    s.config.MaxDeliveries,
	}
	ctx := context.WithValue(s.values, deliveryKey{}, d)
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	return d
}

// handOut hands messages to the consumer until the subscription closes.
func (s *subscription) handOut() {
	defer func() {
		s.mu.Lock()
		s.handOver = true
		s.mu.Unlock()
		signal(s.kick)
	}()
	for {
		d := s.take()
		if d == nil {
			return
		}
		if err := s.unmarshal(d); err != nil {
			s.bury(d, err)
			continue
		}
		select {
		case s.out <- d.msg:
		case <-d.ctx.Done():
			continue // its lease was lost
		case <-s.closing:
			s.giveBack(d)
			return
		}
		s.handed(d)
		if s.config.MaxInFlight > 1 {
			go s.await(d)
			continue
		}
		select {
		case <-d.msg.Acked():
			s.ack(d)
		case <-d.msg.Nacked():
			s.nack(d)
		case <-d.ctx.Done():
		case <-s.closing:
			go s.await(d)
			return
		}
	}
}

// take waits for the next message that may be handed out, nil if the subscription closes.
func (s *subscription) take() *delivery {
	for {
		select {
		case <-s.closing:
			return nil
		default:
		}
		s.mu.Lock()
		if len(s.buffer) > 0 && len(s.inHand) < s.config.MaxInFlight && !s.held {
			d := s.buffer[0]
			s.buffer[0] = nil
			s.buffer = s.buffer[1:]
			d.taken = time.Now()
			s.inHand[d] = struct{}{}
			if len(s.buffer) == 0 && s.room < s.config.MaxInFlight {
				s.room *= 2 // it takes all that it is given
			}
			low := len(s.buffer) == 0 || len(s.buffer) == s.pace.prefetch(s.config.MaxInFlight)/2
			s.mu.Unlock()
			if low {
				signal(s.kick)
			}
			return d
		}
		s.mu.Unlock()
		select {
		case <-s.feed:
		case <-s.closing:
			return nil
		}
	}
}

var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// unmarshal makes the message that the consumer gets.
func (s *subscription) unmarshal(d *delivery) error {
	msg, err := s.config.Unmarshaler.Unmarshal(s.topic.Name, d.Body)
	if err != nil {
		return err
	}
	d.Body = nil
	if msg == nil {
		return errNoMessage
	}
	if msg.Acked() == nil { // it was not made by NewMessage, and could not tell of its Ack
		made := message.NewMessage(msg.UUID, msg.Payload)
		made.Metadata = msg.Metadata
		msg = made
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if d.DelayedFor != "" {
		msg.Metadata.Set(delay.DelayedForKey, d.DelayedFor)
	}
	if limit, set, err := maxDeliveries(msg.Metadata); set && err == nil {
		d.limit = limit
	}
	msg.SetContext(d.ctx)
	d.msg, d.uuid = msg, msg.UUID
	return nil
}

// handed notes that the consumer has the message.
func (s *subscription) handed(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.handed = time.Now()
	s.stuck = false
}

// await waits for the consumer to settle the message.
func (s *subscription) await(d *delivery) {
	select {
	case <-d.msg.Acked():
		s.ack(d)
	case <-d.msg.Nacked():
		s.nack(d)
	case <-d.ctx.Done(): // lost, or closed
	}
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
	due, set, err := retryDue(d.msg.Metadata, time.Now())
	switch {
	case err != nil:
		s.logger.Error("A nacked message has a delay that cannot be read, using Backoff", err, watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
		fallthrough
	case !set:
		f.Retry = queue.In(s.config.Backoff(d.info.Number))
	default:
		f.Retry = due.queued()
		f.DelayedFor = delayedFor(d.msg.Metadata)
	}
	if d.limit > 0 && d.info.Number >= d.limit {
		s.logger.Error("A message is dead-lettered", errors.New(f.Reason), watermill.LogFields{
			"message_id": d.ID, "message_uuid": d.msg.UUID,
		})
	}
	s.end(d, func() {
		s.settled.nacks = append(s.settled.nacks, f)
		s.holdFor(f.Retry)
	})
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
			Leased: &d.Leased, Dead: true, Reason: "unmarshal: " + err.Error(),
		})
	})
}

// giveBack puts a message that the consumer did not take back in front of the buffer, with which it
// goes back to Redis, in order.
func (s *subscription) giveBack(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.inHand[d]; held {
		delete(s.inHand, d)
		s.buffer = slices.Insert(s.buffer, 0, d)
	}
}

// end ends a delivery, unless it was lost: settle notes the outcome, under s.mu.
func (s *subscription) end(d *delivery, settle func()) {
	s.mu.Lock()
	if _, held := s.inHand[d]; !held {
		s.mu.Unlock()
		return
	}
	delete(s.inHand, d)
	settle()
	s.stuck = false
	s.pace.observe(time.Since(d.taken))
	s.mu.Unlock()
	d.cancel(errSettled)
	signal(s.kick)
	signal(s.feed)
}

// pace is how long the consumer takes for a message, by which what is claimed ahead is measured.
type pace struct {
	mean float64 // seconds; 0: not known
}

// mostAhead is how many messages are claimed ahead at most.
const mostAhead = 512

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
