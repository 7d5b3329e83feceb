package queue

import (
	"context"
	"slices"
	"strings"
	"time"
)

// These limits are how many messages one call has at most, because the server does nothing else
// while it runs a call. A call of acks, the most frequent one, takes less than a millisecond.
const (
	acked  = 256
	nacked = 500  // a nack costs several times as much as an ack
	chunk  = 1000 // of releases and extensions; only within a call do extensions keep the order
)

// AckCalls returns calls that settle messages as done. ReadAcked reads the reply of each.
func (g *Group) AckCalls(messages []*Leased) []*Call { return g.ackCalls(messages, false) }

// DropCalls returns calls that settle messages as dropped, because it is too late for them.
func (g *Group) DropCalls(messages []*Leased) []*Call { return g.ackCalls(messages, true) }

func (g *Group) ackCalls(messages []*Leased, drops bool) []*Call {
	var calls []*Call
	by := ""
	if g.history != "" {
		by = settler()
	}
	for part := range slices.Chunk(messages, acked) {
		d := ackScript.draft(g.ack, 0, 2*len(part)+len(part), []any{
			"drops", drops, "kept", g.history, "by", by, "uuids", g.uuidsOf(part),
		})
		for left := part; len(left) > 0; {
			n := 1 // messages of one claim that are due together have the same token
			for n < len(left) && left[n].Token == left[0].Token {
				n++
			}
			d.Each("part", "token", &left[0].Token, "count", n)
			left = left[n:]
		}
		for _, m := range part {
			d.Each("message", "id", &m.ID) // pointers are not boxed
		}
		calls = append(calls, d.Call())
	}
	return calls
}

// ReleaseCalls returns calls that give undelivered messages back. They are in the order of
// claiming. Of a group that is limited, tokens go back with them.
func (g *Group) ReleaseCalls(messages []*Leased, limited bool) []*Call {
	name := ""
	if limited {
		name = g.Name
	}
	calls := leaseCalls(&releaseScript, g.release, messages, "single", g.single, "group", name)
	slices.Reverse(calls) // each call puts its messages in front of ready, so the last go first
	return calls
}

// ExtendCalls returns calls that give leases a new deadline. ReadLost reads the reply of each. With
// more than a thousand messages, the deadlines do not keep the order of the messages.
func (g *Group) ExtendCalls(messages []*Leased, lease time.Duration) []*Call {
	return leaseCalls(&extendScript, g.extend, messages, "lease", millis(lease), "subscription", "", "worker", "")
}

// Attend adds to a call of ExtendCalls that the subscription lives. worker is of Worker.Sign.
func (g *Group) Attend(extend *Call, subscription, worker string) {
	extend.set("subscription", subscription)
	extend.set("worker", worker)
}

func leaseCalls(s *Script, keys []string, messages []*Leased, pairs ...any) []*Call {
	var calls []*Call
	for part := range slices.Chunk(messages, chunk) {
		d := s.draft(keys, 0, 2*len(part), pairs)
		for _, m := range part {
			d.Each("message", "id", &m.ID, "token", &m.Token) // pointers are not boxed
		}
		calls = append(calls, d.Call())
	}
	return calls
}

// Lease returns the name of the message's lease.
func (l *Leased) Lease() string { return l.ID + " " + l.Token }

// StandDown gives up the place of the group's active subscription, unless it still holds messages.
// A standby is woken for it.
func (g *Group) StandDown(ctx context.Context, subscription string) error {
	return Do(ctx, g.topic.client, g.topic.NewCall(&standDownScript, Target{Group: g.Name}, "group", g.Name, "subscription", subscription))
}

// LeasedAt returns when the lease with a token began, by the server's clock. Extensions do not
// change that. It returns the zero time for a text that is no token.
func LeasedAt(token string) time.Time {
	part := strings.Split(token, ":")
	if len(part) != 4 {
		return time.Time{}
	}
	return Instant(part[2])
}

// ReadAcked returns how many messages a call of AckCalls settled. The others had another lease, or
// none. A repeat of a call settles nothing.
func ReadAcked(call *Call) (int, error) { return call.cmd.Int() }

// LeaseDue returns when the message with a lease's token was due. It returns the zero time for a
// text that is no token.
func LeaseDue(token string) time.Time {
	part := strings.Split(token, ":")
	if len(part) != 4 {
		return time.Time{}
	}
	return Instant(part[3])
}

// ReadLost returns the names of the lost leases.
func ReadLost(call *Call) ([]string, error) { return call.cmd.StringSlice() }

// Failure is the end of a delivery that was not acked.
type Failure struct {
	*Leased
	Retry      Due
	Dead       bool   // there is no further delivery, whatever the limit
	Nobody     Cause  // why no handler got the message, which is dead; "": this is a delivery
	Postponed  bool   // the message waits for Retry, and this delivery does not count
	Limit      int    // deliveries at most; negative: no limit
	DelayedFor string // the delay that the next claim returns; "" keeps the last one
	Reason     string // stored if the message becomes a dead letter
	Error      string // of the handler, stored in any case
}

// maxReason is how many bytes of a reason or an error are stored.
const maxReason = 1024

// NackCalls returns calls that end failed deliveries. They are in the order of delivery.
func (g *Group) NackCalls(failures []Failure) []*Call {
	var calls []*Call
	for part := range slices.Chunk(failures, nacked) {
		d := nackScript.draft(g.nack, 0, 7*len(part), []any{"group", g.Name, "single", g.single, "kept", g.history != ""})
		for _, f := range part {
			delay := f.Retry.encode()
			switch {
			case f.Nobody != "":
				delay = string(f.Nobody)
			case f.Dead:
				delay = string(Asked)
			case f.Postponed:
				delay = "+" + delay
			}
			d.Each("message", "id", f.ID, "token", f.Token, "delay", delay, "limit", f.Limit, "delayed_for", f.DelayedFor,
				"reason", f.Reason[:min(maxReason, len(f.Reason))], "said", f.Error[:min(maxReason, len(f.Error))])
		}
		calls = append(calls, d.Call())
	}
	slices.Reverse(calls) // as in ReleaseCalls
	return calls
}
