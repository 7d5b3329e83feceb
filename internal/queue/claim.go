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

// Group is a handle on one consumer group of a topic. It keeps the KEYS of each script.
type Group struct {
	Name string

	topic   *Topic
	claim   []string // the eighth is empty, for the key of the subscription
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
	Subscription string        // random; a subscription sends its claims one after the other
	Number       uint64        // counted by the subscription; a repeat has the same number
	Limit        int           // of messages, at most 1000; 0 takes none and passes the wake-up on
	Busy         bool          // the subscription holds other messages
	Lease        time.Duration // how long the subscription holds the messages
	Slots        int           // messages it could hand out at once; 0 also if it need not be woken
	// Address is where to wake the subscription; "" if it never waits. It is woken if it has more
	// slots than messages are ready, or if it is busy and a suspect is next.
	Address  string
	Patience time.Duration // how long the address stays valid
	Bytes    int           // limit of all bodies together; the first may be larger
	Expiry   time.Duration // of the group, which the claim shows to be in use; 0: none
	Counts   Counts        // since the last claim
}

// Counts counts the messages that a subscription delivered, how late, and dropped as too late.
type Counts struct {
	Delivered, Dropped int
	LatenessMicros     int64 // the sum over all messages, which a Duration might not hold
	Latest             time.Duration
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Delivered += o.Delivered
	c.Dropped += o.Dropped
	c.LatenessMicros += o.LatenessMicros
	c.Latest = max(c.Latest, o.Latest)
}

// Claimed is the result of a claim.
type Claimed struct {
	Messages []Leased
	More     bool      // more messages are ready
	Blocked  bool      // the next message goes only to a subscription that holds no other
	Waits    bool      // no more messages are ready; the subscription is woken when one is
	Orphans  int       // IDs without a body, which were dropped
	Now      time.Time // by the server's clock
}

// Leased is a message that a subscription holds.
type Leased struct {
	ID         string
	Token      string // of the lease; calls that settle or extend it name the token
	Due        time.Time
	Deliveries int    // the number of deliveries that ended and count
	Delivered  bool   // the message may have been delivered to this group before
	Suspect    bool   // its lease has expired before: it must be held alone
	Requeued   bool   // an operator requeued it from the dead letters
	DelayedFor string // the delay that the last nack asked for, as written, or ""
	Body       []byte
}

// ClaimCall returns a call whose reply ReadClaim reads.
func (g *Group) ClaimCall(c Claim) *Call {
	keys := slices.Clone(g.claim)
	keys[7] = g.topic.keys.Claim(c.Subscription)
	return &Call{script: &claimScript, keys: keys, args: []any{
		g.Name, c.Subscription, c.Number, min(c.Limit, 1000), flag(c.Busy), millis(c.Lease), c.Slots,
		c.Address, millis(c.Patience), c.Bytes, millis(memory), g.topic.single, expiry(c.Expiry),
		c.Counts.Delivered, c.Counts.LatenessMicros / 1000, c.Counts.Latest.Milliseconds(), c.Counts.Dropped,
	}}
}

// ReadClaim returns the result of a claim, or ErrUnregistered.
func (c Claim) ReadClaim(cmd *redis.Cmd) (Claimed, error) {
	var messages []Leased
	claimed, err := c.ReadClaimTo(func(m Leased) { messages = append(messages, m) }, &Call{cmd: cmd})
	if err == nil {
		claimed.Messages = messages
	}
	return claimed, err
}

// ReadClaimTo is ReadClaim, but passes each message to add instead of allocating a slice. It may
// return an error after it has passed some.
func (c Claim) ReadClaimTo(add func(Leased), call *Call) (Claimed, error) {
	reply, err := call.cmd.Slice()
	switch {
	case err != nil:
		return Claimed{}, err
	case len(reply) == 1:
		return Claimed{}, ErrUnregistered
	case len(reply) != 9:
		return Claimed{}, fmt.Errorf("claim: unexpected reply of %d parts", len(reply))
	}
	orphans, _ := reply[4].(int64)
	bodies, _ := reply[6].([]any)
	records, _ := reply[7].([]any)
	if err := c.readMessages(Text(reply[5]), bodies, records, add); err != nil {
		return Claimed{}, err
	}
	return Claimed{
		More:    reply[1] == int64(1),
		Blocked: reply[2] == int64(1),
		Waits:   reply[3] == int64(1),
		Orphans: int(orphans),
		Now:     Instant(Text(reply[8])),
	}, nil
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
	var before, token string // due time and token of the last message; many messages share both
	var ms int64
	more := true
	for i := range bodies {
		if !more {
			return fmt.Errorf("claim: %d bodies, but %d messages", len(bodies), i)
		}
		var entry string
		entry, entries, more = strings.Cut(entries, " ")
		id, due, _ := strings.Cut(entry, ":")
		// ID and token are copies, so that they do not keep the memory of all entries.
		if i > 0 && due == before {
			id = strings.Clone(id)
		} else {
			if ms, err = strconv.ParseInt(due, 10, 64); err != nil {
				return fmt.Errorf("claim: message %q is due at %q, not a number", id, due)
			}
			own := id + number + entry[len(id):]
			id, token, before = own[:len(id)], own[len(id):], due
		}
		body := Text(bodies[i])
		m := Leased{ID: id, Token: token, Due: time.UnixMilli(ms)}
		m.Body = unsafe.Slice(unsafe.StringData(body), len(body)) // no copy; nothing else has its memory
		if len(records) > 0 {
			r := ReadRecord(Text(records[i]))
			m.Deliveries, m.Delivered, m.DelayedFor = r.Count, r.Delivered(), r.DelayedFor
			m.Suspect, m.Requeued = r.suspect(), r.requeued()
		}
		add(m)
	}
	if more {
		return fmt.Errorf("claim: %d bodies, but more messages", len(bodies))
	}
	return nil
}
