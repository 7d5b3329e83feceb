package consume

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// fakeRedis is one consumer group as the scripts keep it, in a few lines. Its clock is the model's,
// but for an offset.
type fakeRedis struct {
	offset   time.Duration // of its clock
	messages map[string]*fakeMessage
	ready    []*fakeMessage
	named    int                  // number of the last id
	last     int                  // number of the last place in the order
	claims   map[string]fakeClaim // the last one of each lane that brought something
	waits    bool                 // the subscription is among the waiters
	wakes    int                  // wake-ups on their way to it
	gone     bool                 // the group is
	limit    int                  // of deliveries that count; 0: none
	atOnce   int                  // messages that the group leases at most; 0: any number
	turns    bool                 // the subscription waits until it may lease more
	counted  map[string]int       // expiries of each message that counted as deliveries
}

// fakeMessage is a message that is not acked. It is in ready, leased, waiting for its retry, or
// dead.
type fakeMessage struct {
	id         string
	place      int // in the order; a message that is retried at once keeps it
	deliveries int
	expiries   int       // leases that expired in a row
	alone      bool      // it was claimed to be held alone, so that an expiry counts
	expired    int       // leases that expired at all
	lost       string    // token of the lease that expired last
	token      string    // of its lease; "": not leased
	deadline   time.Time // of its lease
	retry      time.Time // zero: it waits for none
	dead       bool
	returned   bool // its lease ran out, so that it may come out of order
}

type fakeClaim struct {
	number uint64
	since  time.Time
	ids    []string
}

func newFakeRedis(offset time.Duration) *fakeRedis {
	return &fakeRedis{offset: offset, messages: map[string]*fakeMessage{}, claims: map[string]fakeClaim{}, counted: map[string]int{}}
}

func (f *fakeRedis) publish(n int) {
	for range n {
		f.named++
		m := &fakeMessage{id: fmt.Sprintf("%026d", f.named)}
		f.messages[m.id] = m
		f.push(m)
	}
	f.wake()
}

// push puts a message behind all others.
func (f *fakeRedis) push(m *fakeMessage) {
	f.last++
	m.place = f.last
	f.ready = append(f.ready, m)
}

// putBack puts messages in their places.
func (f *fakeRedis) putBack(m *fakeMessage) {
	i, _ := slices.BinarySearchFunc(f.ready, m, func(a, b *fakeMessage) int { return a.place - b.place })
	f.ready = slices.Insert(f.ready, i, m)
}

func (f *fakeRedis) wake() {
	if f.waits {
		f.waits = false
		f.wakes++
	}
}

// wakeTurn wakes the subscription if it waits until it may lease more.
func (f *fakeRedis) wakeTurn() {
	if f.turns {
		f.turns = false
		f.wakes++
	}
}

// lease returns how many messages a claim may lease by the limit of the group.
func (f *fakeRedis) lease(c *queue.Claim) int {
	if f.atOnce == 0 {
		return c.Limit
	}
	free := f.atOnce
	for _, m := range f.messages {
		if m.token != "" {
			free--
		}
	}
	return max(min(c.Limit, c.Slots, free), 0)
}

// lose is a server without its data.
func (f *fakeRedis) lose() {
	*f = fakeRedis{offset: f.offset, messages: map[string]*fakeMessage{}, claims: map[string]fakeClaim{}, counted: f.counted, last: f.last, named: f.named, gone: true, atOnce: f.atOnce}
}

// disown ends all leases.
func (f *fakeRedis) disown(now time.Time) {
	for _, m := range f.messages {
		if m.token != "" {
			m.deadline = now.Add(-1)
		}
	}
	f.step(now)
}

// step does the due-time work at a time: retries become ready, and leases end.
func (f *fakeRedis) step(now time.Time) {
	var due []*fakeMessage
	for _, m := range f.messages {
		switch {
		case !m.retry.IsZero() && !now.Before(m.retry):
			due = append(due, m)
		case m.token != "" && now.After(m.deadline):
			m.expired++
			m.expiries++
			if m.alone {
				m.deliveries++
				f.counted[m.id]++
			}
			m.token, m.lost, m.alone, m.returned = "", m.token, false, true
			f.wakeTurn()
			if f.limit > 0 && m.deliveries >= f.limit {
				m.dead = true
				continue
			}
			f.putBack(m)
			f.wake()
		}
	}
	slices.SortFunc(due, func(a, b *fakeMessage) int {
		return cmpOr(a.retry.Compare(b.retry), strings.Compare(a.id, b.id))
	})
	for _, m := range due {
		m.retry = time.Time{}
		f.push(m)
		f.wake()
	}
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// next is when step has something to do; ok is false if never.
func (f *fakeRedis) next() (at time.Time, ok bool) {
	for _, m := range f.messages {
		end := m.retry
		if m.token != "" {
			end = m.deadline.Add(time.Nanosecond)
		}
		if !end.IsZero() && (!ok || end.Before(at)) {
			at, ok = end, true
		}
	}
	return at, ok
}

func (f *fakeRedis) leased(l *queue.Leased) *fakeMessage {
	if m := f.messages[l.ID]; m != nil && m.token == l.Token {
		return m
	}
	return nil
}

// ack reports whether it settled the message.
func (f *fakeRedis) ack(l *queue.Leased) bool {
	if f.leased(l) == nil {
		f.takeBack(l)
		return false
	}
	delete(f.messages, l.ID)
	return true
}

// ackAll returns how many of the messages it settled.
func (f *fakeRedis) ackAll(all []*queue.Leased) (settled int) {
	for _, l := range all {
		settled += btoi(f.ack(l))
	}
	return settled
}

// takeBack takes back the expiry of a lease that is settled or given back too late.
func (f *fakeRedis) takeBack(l *queue.Leased) {
	if m := f.messages[l.ID]; m != nil && m.lost == l.Token {
		m.lost = ""
		m.expiries--
	}
}

func (f *fakeRedis) release(l *queue.Leased) {
	if m := f.leased(l); m != nil {
		m.token = ""
		f.putBack(m)
		f.wake()
	} else {
		f.takeBack(l)
	}
}

func (f *fakeRedis) nack(failure *queue.Failure, now time.Time) {
	m := f.leased(failure.Leased)
	if m == nil {
		f.takeBack(failure.Leased)
		return
	}
	m.token, m.expiries, m.alone, m.lost, m.returned = "", 0, false, "", false
	if failure.Nobody == "" && !failure.Postponed {
		m.deliveries++
	}
	switch {
	case failure.Dead, failure.Nobody != "", !failure.Postponed && failure.Limit > 0 && m.deliveries >= failure.Limit:
		m.dead = true
	case failure.Retry.MayBeNow():
		f.putBack(m)
		f.wake()
	default:
		m.retry = now.Add(retryAfter)
	}
}

func (f *fakeRedis) extend(l *queue.Leased, deadline time.Time) (held bool) {
	m := f.leased(l)
	if m != nil {
		m.deadline = deadline
	}
	return m != nil
}

// claim is what claim.lua does.
func (f *fakeRedis) claim(c *queue.Claim, now time.Time) Claimed {
	if f.gone {
		return Claimed{Outcome: GroupGone}
	}
	answer := Claimed{Claimed: queue.Claimed{Now: now.Add(f.offset)}}
	if last, ok := f.claims[c.Subscription]; ok && last.number >= c.Number {
		answer.More = len(f.ready) > 0
		for _, id := range last.ids {
			if m := f.messages[id]; m != nil && m.token == f.token(c, m, last.since) {
				answer.Messages = append(answer.Messages, m.message())
			}
		}
		return answer
	}
	var ids []string
	limit := f.lease(c)
	if f.atOnce > 0 {
		answer.Limits = queue.AtOnceLimited
	}
	for room := math.MaxInt; len(ids) < limit && len(f.ready) > 0; {
		m := f.ready[0]
		message := m.message()
		company := message.Company(c.Most)
		if room = min(room, company); c.Held+len(ids)+1 > room {
			if len(ids) == 0 {
				answer.Blocked = room
			}
			break
		}
		f.ready = f.ready[1:]
		m.token, m.deadline, m.alone = f.token(c, m, now), now.Add(c.Lease), company == 1
		ids = append(ids, m.id)
		answer.Messages = append(answer.Messages, m.message())
	}
	delete(f.claims, c.Subscription)
	if len(ids) > 0 {
		f.claims[c.Subscription] = fakeClaim{c.Number, now, ids}
	}
	isMain := c.Address != ""
	if isMain && c.Limit == 0 {
		f.waits, f.turns = false, false
	}
	short := isMain && limit < min(c.Limit, c.Slots) && len(f.ready) > 0 && answer.Blocked == 0
	switch {
	case short:
		answer.More, answer.Waits = true, true
		f.waits, f.turns = false, true
	case len(f.ready) > 0:
		answer.More = true
		if answer.Blocked > 0 && c.Slots > 0 {
			f.waits, answer.Waits = false, true
		}
		f.wake()
	case isMain && len(ids) < c.Slots:
		f.waits, answer.Waits = true, true
	}
	return answer
}

func (f *fakeRedis) token(c *queue.Claim, m *fakeMessage, since time.Time) string {
	return fmt.Sprintf("%s:%d:%d:%d", c.Subscription, c.Number, since.UnixMilli(), m.place)
}

func (m *fakeMessage) message() Message {
	return Message{Leased: queue.Leased{ID: m.id, Token: m.token, Due: time.UnixMilli(1), Deliveries: m.deliveries, Expiries: m.expiries}}
}
