package consume

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// endings tells waiting goroutines that deliveries have ended which the consumer had not settled.
type endings struct {
	mu   sync.Mutex
	next chan struct{} // closed, and made anew, when some end
}

func (e *endings) wait() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next
}

func (e *endings) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.next)
	e.next = make(chan struct{})
}

// await returns when the consumer has settled the message, or its delivery has ended.
func (s *Subscription) await(d *Delivery) {
	for {
		ended := s.endings.wait()
		if s.settledNow(d) {
			s.feed.send()
			return
		}
		select {
		case <-d.msg.Acked():
		case <-d.msg.Nacked():
		case <-ended: // perhaps another one
		}
	}
}

// settledNow settles the delivery if the consumer has, and returns whether it has ended.
func (s *Subscription) settledNow(d *Delivery) bool {
	select {
	case <-d.msg.Acked():
		s.step(func(m *Machine, now time.Time) Effects { return m.Acked(now, &d.inHand) })
		return true
	default:
	}
	select {
	case <-d.msg.Nacked():
		f := s.failure(d)
		s.step(func(m *Machine, now time.Time) Effects { return m.Nacked(now, &d.inHand, f) })
		return true
	default:
	}
	return !s.has(d)
}

// failure returns what Redis is told about a nack. If the handler has postponed the message, it has
// said how long. If its context had ended because the subscription closes, the message goes back to
// its place and the delivery does not count, unless the handler wants it dead. Otherwise the delay
// comes from the metadata if the handler has set one there, else from the message's own backoff,
// else from Backoff.
func (s *Subscription) failure(d *Delivery) queue.Failure {
	f := queue.Failure{
		Leased: &d.inHand.Leased,
		Limit:  d.limit(),
		Reason: fmt.Sprintf("nacked on the last of %d deliveries", d.limit()),
	}
	if text := d.failure.Load(); text != nil {
		f.Error = *text
	}
	v := d.verdict.Load()
	if v != nil && v.wait > 0 {
		f.Postponed, f.Retry = true, queue.In(v.wait)
		return f
	}
	if v == nil && d.interrupted() || v != nil && v.back {
		f.Postponed = true // by nothing
		return f
	}
	due, set, err := meta.Retry(d.msg.Metadata, time.Now())
	switch {
	case err != nil:
		s.logUnreadable(d, "delay", err)
		fallthrough
	case !set:
		f.Retry = queue.In(s.retryAfter(d))
	default:
		f.Retry, f.DelayedFor = due, meta.DelayedFor(d.msg.Metadata)
	}
	if v != nil {
		f.Dead, f.Reason = true, v.reason
	}
	return f
}

// retryAfter returns the backoff that the message has now, or else that of Backoff.
func (s *Subscription) retryAfter(d *Delivery) time.Duration {
	own, err := meta.ReadBackoff(d.msg.Metadata)
	if err != nil {
		s.logUnreadable(d, "backoff", err)
	}
	if own.IsSet() {
		return own.Wait(d.inHand.number())
	}
	return s.Backoff(d.inHand.number())
}

// bury ends a delivery that no consumer can get.
func (s *Subscription) bury(d *Delivery, err error) {
	s.Logger.Error("A message cannot be unmarshaled and is dead-lettered", err, watermill.LogFields{"message_id": d.inHand.ID})
	reason := "unmarshal: " + err.Error()
	s.step(func(m *Machine, now time.Time) Effects { return m.Buried(now, &d.inHand, queue.Unreadable, reason) })
}

// These errors are only logged.
var (
	errGroupGone = errors.New("data was lost, or the group was removed")
	errOrphans   = errors.New("bodies are missing")
	errLate      = errors.New("leases may be over when Redis answers")
	errGivenUp   = errors.New("not settled within CloseTimeout")
)

// tooLate counts expired messages that were dropped and are not logged yet. Many may be dropped
// after a pause, in many claims, and have one line together.
type tooLate struct {
	mu          sync.Mutex
	n           int
	first, last time.Time // when they were added
}

const (
	noneFor = time.Second // without another one, before those that were dropped are logged
	noLater = time.Minute // after the first, while there are more
)

func (t *tooLate) add(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		t.first = now
	}
	t.n, t.last = t.n+1, now
}

// take returns the number to log. If it is too early, or there is none, take returns 0, and the
// earlier of wake and the time to ask again. A zero wake stays zero.
func (t *tooLate) take(now, wake time.Time) (n int, again time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := earlier(t.last.Add(noneFor), t.first.Add(noLater))
	if t.n == 0 || now.Before(due) {
		if t.n > 0 && due.Before(wake) {
			wake = due
		}
		return 0, wake
	}
	n, t.n = t.n, 0
	return n, wake
}

// logTooLate logs how many expired messages were dropped, once no more are. It returns when to look
// next.
func (s *Subscription) logTooLate(now, wake time.Time) time.Time {
	n, wake := s.tooLate.take(now, wake)
	if n > 0 {
		s.Logger.Info("Messages had expired and were dropped", watermill.LogFields{"messages": n})
	}
	return wake
}

func (s *Subscription) logUnreadable(d *Delivery, what string, err error) {
	s.Logger.Error("A nacked message has a "+what+" that cannot be read, using Backoff", err, watermill.LogFields{
		"message_id": d.inHand.ID, "message_uuid": d.msg.UUID,
	})
}

// log writes a log line of the machine.
func (s *Subscription) log(n Note) {
	switch n.Kind {
	case LostLease:
		s.logLimit("The lease of a message was lost while its handler ran", ErrLeaseLost, n, s.LeaseDuration)
	case Overrun:
		s.logLimit("A handler or the Unmarshaler ran for too long, its message is delivered again", errors.New(n.Failure.Reason), n, s.LeaseDuration+s.MaxExtension)
	case GivenUp:
		s.logLimit("A message was not settled within CloseTimeout, it is delivered again when its lease ends", errGivenUp, n, s.CloseTimeout)
		if d := n.InHand.delivery; !s.isSlow(d) {
			s.watchLateAck(d, time.Millisecond)
		}
	case Dead:
		s.logDeath("A message is dead-lettered", n)
	case PerhapsDead:
		s.logDeath("A message is dead-lettered, unless its lease ran out before", n)
	case Orphans:
		s.Logger.Error("Messages had lost their bodies in Redis and were dropped", errOrphans, watermill.LogFields{"messages": n.Count})
	case TooLateToDeliver:
		s.tooLate.add(time.Now())
	case LateAnswer: // once: each answer may be late
		s.link.saidLate.Do(func() {
			s.Logger.Error("Redis took longer to answer than LeaseDuration, so what it gave goes back; LeaseDuration has to be well above that",
				errLate, watermill.LogFields{"took": n.Took, "lease_duration": s.LeaseDuration, "messages": n.Count})
		})
	}
}

// logLimit logs that a message was taken from its handler, or the Unmarshaler, at a limit.
func (s *Subscription) logLimit(text string, err error, n Note, limit time.Duration) {
	s.Logger.Error(text, err, s.fields(n.InHand).Add(watermill.LogFields{"limit": limit}))
}

// fields names a message in the log. Its UUID is not known while the Unmarshaler has it for long.
func (s *Subscription) fields(in *InHand) watermill.LogFields {
	fields := watermill.LogFields{"message_id": in.ID}
	if d := in.delivery; !s.isSlow(d) {
		fields["message_uuid"] = d.uuid
	}
	return fields
}

// watchLateAck logs the ack of a message that was given up. It looks after wait, and then at
// doubled intervals, until the lease is over. It keeps no goroutine, because Close leaves none
// behind.
func (s *Subscription) watchLateAck(d *Delivery, wait time.Duration) {
	if wait > 2*s.LeaseDuration {
		return
	}
	time.AfterFunc(wait, func() {
		select {
		case <-d.msg.Acked():
			s.Logger.Error("A handler acked its message after CloseTimeout, in vain: it is delivered again", errGivenUp,
				s.fields(&d.inHand).Add(watermill.LogFields{"limit": s.CloseTimeout}))
		case <-d.msg.Nacked():
		default:
			s.watchLateAck(d, 2*wait)
		}
	})
}

func (s *Subscription) logDeath(text string, n Note) {
	fields := s.fields(n.InHand)
	if n.Failure.Error != "" {
		fields["handler_error"] = n.Failure.Error
	}
	s.Logger.Error(text, errors.New(n.Failure.Reason), fields)
}
