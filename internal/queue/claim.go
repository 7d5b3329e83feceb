package queue

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// Group is a handle on one consumer group of a topic. It keeps the keys of the frequent scripts.
type Group struct {
	Name string

	topic  *Topic
	single bool // the group has SingleActive

	history string // see Keeping

	claim, ack, nack, release, extend []string
}

// Group returns a handle on a consumer group.
func (t *Topic) Group(name string) *Group {
	keysOf := func(s *Script) []string { return s.keysOf(t.keys, Target{Group: name}) }
	return &Group{
		Name: name, topic: t,
		claim: keysOf(&claimScript), ack: keysOf(&ackScript), nack: keysOf(&nackScript),
		release: keysOf(&releaseScript), extend: keysOf(&extendScript),
	}
}

// SingleActive has the handle be one on a group with SingleActive. If another subscription is
// active, claims bring nothing, and the subscription stands by at its address if it has slots.
func (g *Group) SingleActive() *Group {
	g.single = true
	return g
}

// Keeping returns a handle that has the history of the group told of what is settled. history is
// Claimed.History.
func (g *Group) Keeping(history string) *Group {
	if g.history == history {
		return g
	}
	kept := *g
	kept.history = history
	return &kept
}

// Claim asks for messages of a group.
type Claim struct {
	Subscription string        // random; a subscription sends its claims one after the other
	Number       uint64        // counted by the subscription; a repeat has the same number
	Limit        int           // of messages, at most 1000; 0 takes none and passes the wake-up on
	Held         int           // messages that the subscription holds, or that its other lane may bring
	Most         int           // messages that the consumer has at once at most
	Lease        time.Duration // how long the subscription holds the messages
	Slots        int           // messages it could hand out at once; 0 also if it need not be woken
	// Address is where to wake the subscription; "" if it never waits. It is woken if it has more
	// slots than messages are ready, or if it holds too many for a suspect that is next.
	Address  string
	Patience time.Duration // how long the address stays valid
	Bytes    int           // limit of all bodies together; the first may be larger
	Expiry   time.Duration // of the group, which the claim shows to be in use; 0: none
	Counts   Counts        // since the last claim
	Worker   string        // of Worker.Sign, to show that the subscription lives; "" most often
	Epoch    int64         // the highest that claims of the subscription returned
	Turn     bool          // the subscription was woken, or polls: it need not leave tokens to those that wait
}

// Claimed is the result of a claim.
type Claimed struct {
	Messages []Leased
	More     bool // more messages are ready
	// Blocked is how many messages the subscription may hold with the next one, a suspect, if it
	// holds too many for it; else 0.
	Blocked int
	Waits   bool      // no more messages are ready; the subscription is woken when one is
	Orphans int       // IDs without a body, which were dropped
	Now     time.Time // by the server's clock
	Epoch   int64     // with SingleActive, of the active subscription if it is this one; else 0
	Limits  Limits    // of the group
	History string    // the bounds of the group's history, for Keeping; "": it keeps none
}

// Leased is a message that a subscription holds.
type Leased struct {
	ID         string
	Token      string // of the lease; calls that settle or extend it name the token
	Due        time.Time
	Deliveries int    // the number of deliveries that ended and count
	Delivered  bool   // the message may have been delivered to this group before
	Expiries   int    // leases of it that expired in a row; with one or more, it is a suspect
	Requeued   bool   // an operator requeued it from the dead letters
	DelayedFor string // the delay that the last nack asked for, as written, or ""
	Body       []byte
	UUID       string // once it is unmarshaled; the caller sets it
}

// ClaimCall returns a call whose reply ReadClaim reads.
func (g *Group) ClaimCall(c Claim) *Call {
	d := claimScript.draft(g.claim, 0, c.Counts.arguments(), []any{
		"claim", g.topic.keys.Claim(c.Subscription),
		"group", g.Name, "subscription", c.Subscription, "number", c.Number, "limit", min(c.Limit, 1000), "held", c.Held,
		"lease", millis(c.Lease), "slots", c.Slots, "address", c.Address, "patience", millis(c.Patience), "bytes", c.Bytes,
		"memory", millis(memory), "expiry", expiry(c.Expiry), "most", c.Most, "worker", c.Worker, "latest_ms", c.Counts.latest(),
		"single", g.single, "known", c.Epoch, "turn", c.Turn,
	})
	c.Counts.each(func(field string, n int) { d.Each("figure", "field", field, "more", n) })
	return d.Call()
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
	parts, err := call.cmd.Slice()
	if err != nil {
		return Claimed{}, err
	}
	reply, err := claimScript.Read(parts)
	if err != nil {
		return Claimed{}, err
	}
	if reply.Refusal != "" {
		return Claimed{}, ErrUnregistered
	}
	err = c.readMessages(reply.Text("entries"), reply.Text("since"), reply.List("bodies"), reply.List("records"), reply.List("expiries"), add)
	if err != nil {
		return Claimed{}, err
	}
	epoch, _ := strconv.ParseInt(reply.Text("epoch"), 10, 64)
	return Claimed{
		Epoch:   epoch,
		More:    reply.Flag("left"),
		Blocked: reply.Number("blocked"),
		Waits:   reply.Flag("waits"),
		Orphans: reply.Number("orphans"),
		Now:     Instant(reply.Text("now")),
		Limits:  Limits(reply.Number("limits")),
		History: reply.Text("history"),
	}, nil
}

// readMessages reads the parts of a reply that are about messages, which were leased at a time.
func (c Claim) readMessages(entries, since string, bodies, records, expiries []any, add func(Leased)) (err error) {
	if len(records) > 0 && len(records) != len(bodies) {
		return fmt.Errorf("claim: %d messages with %d records", len(bodies), len(records))
	}
	if len(expiries) > 0 && len(expiries) != len(bodies) {
		return fmt.Errorf("claim: %d messages with %d counts of expiries", len(bodies), len(expiries))
	}
	if len(bodies) == 0 && entries == "" {
		return nil
	}
	number := c.Subscription + ":" + strconv.FormatUint(c.Number, 10) + ":" + since
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
			m.Requeued = r.requeued()
		}
		if len(expiries) > 0 {
			n, _ := expiries[i].(int64)
			m.Expiries = int(n)
		}
		add(m)
	}
	if more {
		return fmt.Errorf("claim: %d bodies, but more messages", len(bodies))
	}
	return nil
}

// Company returns how many messages a subscription may hold together with this one, if its consumer
// has at most most messages at once. The second expired lease in a row halves it, and so does each
// further one, down to one. The claim script has the same rule.
func (l *Leased) Company(most int) int {
	if l.Expiries < 2 {
		return math.MaxInt
	}
	return max(1, most>>min(l.Expiries-1, 62))
}
