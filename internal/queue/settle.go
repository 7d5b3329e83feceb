package queue

import (
	"slices"
	"time"
)

// These are how many messages one call carries at most. The server does nothing for anybody else while it runs one: that of
// acks, which most messages go through, is to take less than a millisecond.
const (
	acked  = 256
	nacked = 500  // each costs several times as much as an ack
	chunk  = 1000 // of releases, and of extensions, which keep the order within a call
)

// AckCalls settles messages as done.
func (g *Group) AckCalls(messages []*Leased) []*Call {
	var calls []*Call
	for part := range slices.Chunk(messages, acked) {
		args := make([]any, 0, 2*len(part)+2)
		for len(part) > 0 {
			n := 1 // with the same token, as those of one claim have that are due together
			for n < len(part) && part[n].Token == part[0].Token {
				n++
			}
			args = append(args, &part[0].Token, n)
			for _, m := range part[:n] {
				args = append(args, &m.ID) // pointers are not boxed
			}
			part = part[n:]
		}
		calls = append(calls, &Call{script: &ackScript, keys: g.ack, args: args})
	}
	return calls
}

// ReleaseCalls hands messages back that were not delivered. They are in the order of claiming.
func (g *Group) ReleaseCalls(messages []*Leased) []*Call {
	calls := g.calls(&releaseScript, g.release, []any{g.topic.single}, messages)
	slices.Reverse(calls) // each call puts its messages in front of ready: the last of them go first
	return calls
}

// ExtendCalls gives leases a new deadline. ReadLost reads each call's result. Beyond a thousand, the
// deadlines no longer keep the order of the messages.
func (g *Group) ExtendCalls(messages []*Leased, lease time.Duration) []*Call {
	return g.calls(&extendScript, g.extend, []any{millis(lease)}, messages)
}

func (g *Group) calls(s *Script, keys []string, head []any, messages []*Leased) []*Call {
	var calls []*Call
	for part := range slices.Chunk(messages, chunk) {
		args := make([]any, 0, len(head)+2*len(part))
		args = append(args, head...)
		for _, m := range part {
			args = append(args, &m.ID, &m.Token) // pointers are not boxed
		}
		calls = append(calls, &Call{script: s, keys: keys, args: args})
	}
	return calls
}

// Lease names the lease of a message.
func (l *Leased) Lease() string { return l.ID + " " + l.Token }

// ReadLost returns which of the leases are lost, by their names.
func ReadLost(call *Call) ([]string, error) {
	return call.cmd.StringSlice()
}

// Failure is the end of a delivery that was not acked.
type Failure struct {
	*Leased
	Retry      Due
	Dead       bool   // no further delivery, whatever the limit
	Nobody     bool   // Dead, and nobody got it, so that this is no delivery
	Limit      int    // deliveries at most; negative: no limit
	DelayedFor string // what the next delivery is told of its delay; "" keeps what there was
	Reason     string // kept with the message if it dies of this
	Error      string // what the handler said, kept in any case
}

// maxReason is how much of a reason is kept.
const maxReason = 1024

// NackCalls ends deliveries that failed. They are in the order of delivery.
func (g *Group) NackCalls(failures []Failure, retention time.Duration) []*Call {
	var calls []*Call
	for part := range slices.Chunk(failures, nacked) {
		args := make([]any, 0, 2+7*len(part))
		args = append(args, millis(retention), g.topic.single)
		for _, f := range part {
			delay := f.Retry.encode()
			switch {
			case f.Nobody:
				delay = "undelivered"
			case f.Dead:
				delay = "dead"
			}
			args = append(args, f.ID, f.Token, delay, f.Limit, f.DelayedFor, clip(f.Reason), clip(f.Error))
		}
		calls = append(calls, &Call{script: &nackScript, keys: g.nack, args: args})
	}
	slices.Reverse(calls) // as in ReleaseCalls
	return calls
}

func clip(s string) string {
	if len(s) > maxReason {
		return s[:maxReason]
	}
	return s
}
