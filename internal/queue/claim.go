package queue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// Group is a handle on one consumer group of a topic. It keeps its keys, which every call needs.
type Group struct {
	Name string

	topic   *Topic
	claim   []string // KEYS of claim, the eighth of which is the subscription's own
	ack     []string
	nack    []string
	release []string
	extend  []string
}

// Group returns a handle on a consumer group.
func (t *Topic) Group(name string) *Group {
	k := t.keys
	return &Group{
		Name:  name,
		topic: t,
		claim: []string{k.Groups(), k.Messages(), k.Ready(name), k.Unack(name), k.Leases(name),
			k.Deliveries(name), k.Waiters(name), "", k.Scheduler(), k.Idle(), k.Paused(),
			k.Resting(name), k.Stats(name), k.Dead(name)},
		ack: []string{k.Messages(), k.Options(), k.Refs(), k.Unack(name), k.Leases(name),
			k.Deliveries(name), k.Dead(name)},
		nack: []string{k.Unack(name), k.Leases(name), k.Deliveries(name), k.Ready(name),
			k.Retry(name), k.Dead(name), k.Waiters(name), k.Scheduler(), k.Stats(name)},
		release: []string{k.Unack(name), k.Leases(name), k.Ready(name), k.Waiters(name), k.Stats(name)},
		extend:  []string{k.Unack(name), k.Leases(name)},
	}
}

// Claim asks for messages of a group.
type Claim struct {
	Subscription string        // random, of one Subscribe, whose claims are answered one after the other
	Number       uint64        // counted by the subscription, the same only for a repeat
	Limit        int           // at most 1000; 0: it can take none, and passes on what woke it
	Busy         bool          // the subscription holds other messages
	Lease        time.Duration // how long the messages are the subscription's
	Slots        int           // messages that it could hand out at once; 0 also if it need not be woken
	Address      string        // where to wake it if that is more than are ready, or a suspect is next and it is busy; "" if it never waits
	Patience     time.Duration // how long the address stays valid
	Bytes        int           // of bodies, but for the first
	Expiry       time.Duration // of the group, which the claim shows to be in use; 0: none
	Counts       Counts        // since the last claim
}

// Counts is what a subscription did with messages: handed over, how late, or dropped as too late.
type Counts struct {
	Delivered, Dropped int
	LatenessMicros     int64 // of all together: a Duration has no room for a thousand that are months late
	Latest             time.Duration
}

// Add adds others.
func (c *Counts) Add(o Counts) {
	c.Delivered += o.Delivered
	c.Dropped += o.Dropped
	c.LatenessMicros += o.LatenessMicros
	c.Latest = max(c.Latest, o.Latest)
}

// Claimed is what a claim brought.
type Claimed struct {
	Messages []Leased
	More     bool      // more is ready
	Blocked  bool      // the next message wants a subscription that holds nothing else
	Waits    bool      // nothing more is ready, and the subscription will be woken when something is
	Orphans  int       // ids that had no body any more, and were dropped
	Now      time.Time // by the server's clock
}

// Leased is a message that a subscription holds.
type Leased struct {
	ID         string
	Token      string // of the lease; settling and extending name it
	Due        time.Time
	Deliveries int    // that ended before and count
	Delivered  bool   // if it may have been, to this group
	Suspect    bool   // its lease has expired before: it is to be alone in hand
	Requeued   bool   // it was a dead letter, and an operator had it delivered again
	DelayedFor string // the delay that the last nack asked for, as it was written, or ""
	Body       []byte
}

// ClaimCall makes a call whose result ReadClaim reads.
func (g *Group) ClaimCall(c Claim) *Call {
	keys := slices.Clone(g.claim)
	keys[7] = g.topic.keys.Claim(c.Subscription)
	return &Call{script: &claimScript, keys: keys, args: []any{
		g.Name, c.Subscription, c.Number, min(c.Limit, 1000), flag(c.Busy), millis(c.Lease), c.Slots,
		c.Address, millis(c.Patience), c.Bytes, millis(memory), g.topic.single, expiry(c.Expiry),
		c.Counts.Delivered, c.Counts.LatenessMicros / 1000, c.Counts.Latest.Milliseconds(), c.Counts.Dropped,
	}}
}

// ReadClaim returns what a claim brought, or ErrUnregistered.
func (c Claim) ReadClaim(call *Call) (Claimed, error) { return c.ReadReply(call.cmd) }

// ReadClaimTo is ReadClaim for who has room for the messages: each goes to add, before what may be wrong with the
// next is known.
func (c Claim) ReadClaimTo(add func(Leased), call *Call) (Claimed, error) {
	return c.read(call.cmd, add)
}

// ReadReply is ReadClaim for who sees the call pass by.
func (c Claim) ReadReply(cmd *redis.Cmd) (Claimed, error) {
	var messages []Leased
	claimed, err := c.read(cmd, func(m Leased) { messages = append(messages, m) })
	if err == nil {
		claimed.Messages = messages
	}
	return claimed, err
}

func (c Claim) read(cmd *redis.Cmd, add func(Leased)) (Claimed, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return Claimed{}, err
	}
	if len(reply) == 1 {
		return Claimed{}, ErrUnregistered
	}
	if len(reply) != 9 {
		return Claimed{}, fmt.Errorf("claim: unexpected reply of %d parts", len(reply))
	}
	orphans, _ := reply[4].(int64)
	claimed := Claimed{
		More:    reply[1] == int64(1),
		Blocked: reply[2] == int64(1),
		Waits:   reply[3] == int64(1),
		Orphans: int(orphans),
		Now:     Instant(Text(reply[8])),
	}
	entries, _ := reply[5].(string)
	bodies, _ := reply[6].([]any)
	records, _ := reply[7].([]any)
	if err := c.readMessages(entries, bodies, records, add); err != nil {
		return Claimed{}, err
	}
	return claimed, nil
}

// readMessages reads the parts of a reply that are about messages.
func (c Claim) readMessages(entries string, bodies, records []any, add func(Leased)) (err error) {
	if len(records) > 0 && len(records) != len(bodies) {
		return fmt.Errorf("claim: %d messages with %d records", len(bodies), len(records))
	}
	if len(bodies) == 0 && entries == "" {
		return nil
	}
	number := c.Subscription + ":" + strconv.FormatUint(c.Number, 10)
	var before, token string // the due time of the message before, and its token: many have the same
	var ms int64
	more := true
	for i := range bodies {
		if !more {
			return fmt.Errorf("claim: %d bodies, but %d messages", len(bodies), i)
		}
		var entry string
		entry, entries, more = strings.Cut(entries, " ")
		id, due, _ := strings.Cut(entry, ":")
		// Neither ID nor token keeps the memory of all entries.
		if i > 0 && due == before {
			id = strings.Clone(id)
		} else {
			if ms, err = strconv.ParseInt(due, 10, 64); err != nil {
				return fmt.Errorf("claim: message %q is due at %q, not a number", id, due)
			}
			own := id + number + entry[len(id):]
			id, token, before = own[:len(id)], own[len(id):], due
		}
		body, _ := bodies[i].(string)
		m := Leased{ID: id, Token: token, Due: time.UnixMilli(ms), Body: bytesOf(body)}
		if len(records) > 0 {
			r := ReadRecord(Text(records[i]))
			m.Deliveries, m.Delivered, m.Suspect, m.DelayedFor = r.Count, r.Delivered(), r.suspect(), r.DelayedFor
			m.Requeued = r.requeued()
		}
		add(m)
	}
	if more {
		return fmt.Errorf("claim: %d bodies, but more messages", len(bodies))
	}
	return nil
}

// bytesOf is the text's memory, without a copy. It is only for what a reply holds, which the client has
// read into a buffer of its own and no one else has.
func bytesOf(text string) []byte {
	return unsafe.Slice(unsafe.StringData(text), len(text))
}
