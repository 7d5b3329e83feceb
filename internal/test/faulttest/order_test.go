package faulttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keyed publishes a message that is due at an instant, with partition key "k" of 12 partitions.
func (s *tale) keyed(uuid string, due int64, change ...func(*Event)) *tale {
	e := Event{Kind: Publish, UUID: uuid, Topic: "t", Key: "k", Partitions: 12, Due: due, Redis: s.now * 1000, Sum: "sum"}
	for _, c := range change {
		c(&e)
	}
	answer := e
	answer.Kind = Published
	return s.tell(e, answer)
}

// takes claims a published message for 100 ms, and begins its handler.
func (s *tale) takes(token, uuid string, epoch int64) *tale {
	e := Event{By: token[:1], ID: uuid, Token: token, Redis: s.now * 1000, Lease: 100, Most: 1, Epoch: epoch, Topic: "t", Group: "g"}
	for _, m := range s.events {
		if m.Kind == Publish && m.UUID == uuid {
			e.Topic, e.Due = m.Topic, m.Due
		}
	}
	e.Number, e.Expiries = s.counted(uuid)
	claimed, start := e, e
	claimed.Kind, start.Kind = Claimed, Start
	start.UUID, start.Sum = uuid, "sum"
	return s.tell(claimed, start)
}

// sends sends the ack of a message that was taken.
func (s *tale) sends(token string) *tale {
	return s.ofLease(token, Event{Kind: End}, Event{Kind: Settle})
}

// hears gets the answer that the ack was accepted for so many messages, of one.
func (s *tale) hears(token string, count int) *tale {
	return s.ofLease(token, Event{Kind: Settled, Count: count, Tries: 1, Sent: s.now * int64(time.Millisecond)})
}

func (s *tale) acks(token string) *tale { return s.sends(token).hears(token, 1) }

func (s *tale) ofLease(token string, events ...Event) *tale {
	for _, e := range events {
		for _, of := range s.events {
			if of.Kind == Claimed && of.Token == token {
				e.By, e.ID, e.Token, e.Topic, e.Group, e.Script, e.Of = of.By, of.ID, token, of.Topic, of.Group, "ack", 1
			}
		}
		s.tell(e)
	}
	return s
}

func withoutKey(e *Event) { e.Key, e.Partitions = "", 0 }

func inTopic(topic string, partitions int) func(*Event) {
	return func(e *Event) { e.Topic, e.Partitions = topic, partitions }
}

// two publishes a and b, and waits until both are due.
func two(change ...func(*Event)) *tale {
	return (&tale{now: 1000}).keyed("a", 1100, change...).keyed("b", 1200, change...).wait(200)
}

func TestCheckerCatchesInversionsWithinAKey(t *testing.T) {
	t.Parallel()
	other := func(e *Event) { e.Key = "other" }
	for name, c := range map[string]struct {
		tale  *tale
		wrong bool
	}{
		"one after the other": {two().takes("x:1:0", "a", 5).acks("x:1:0").takes("x:2:0", "b", 5).acks("x:2:0"), false},
		"the other one first": {two().takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), true},
		"both at once":        {two().takes("x:1:0", "a", 5).takes("x:2:0", "b", 5).acks("x:1:0").acks("x:2:0"), true},
		"the worker did not wait for the answer": {two().takes("x:1:0", "a", 5).sends("x:1:0").
			takes("x:2:0", "b", 5).hears("x:1:0", 1).acks("x:2:0"), true},
		"another worker came before the answer": {two().takes("x:1:0", "a", 5).sends("x:1:0").
			takes("y:1:0", "b", 6).hears("x:1:0", 1).acks("y:1:0"), false},
		"another worker came, and nobody has the answer": {two().takes("x:1:0", "a", 5).sends("x:1:0").
			takes("y:1:0", "b", 6).acks("y:1:0"), false},
		"the ack was refused, and the message came again": {two().takes("x:1:0", "a", 5).wait(100).sends("x:1:0").hears("x:1:0", 0).
			takes("y:1:0", "b", 6).acks("y:1:0").takes("y:2:0", "a", 6).acks("y:2:0"), true},
		"the lease was lost, and the message came again first": {two().takes("x:1:0", "a", 5).wait(100).
			takes("y:1:0", "a", 6).acks("y:1:0").takes("y:2:0", "b", 6).acks("y:2:0"), false},
		"the lease was lost, and the other one came first": {two().takes("x:1:0", "a", 5).wait(100).
			takes("y:1:0", "b", 6).acks("y:1:0").takes("y:2:0", "a", 6).acks("y:2:0"), true},
		"of two keys": {(&tale{now: 1000}).keyed("a", 1100).keyed("b", 1200, other).wait(200).
			takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), false},
		"due at one time": {(&tale{now: 1000}).keyed("a", 1100).keyed("b", 1100).wait(200).
			takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), false},
		"published when the other one was due": {(&tale{now: 1000}).keyed("b", 1200).wait(200).keyed("a", 1100).
			takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), false},
		"the first one is dead": {two().takes("x:1:0", "b", 5).acks("x:1:0").tell(
			Event{Kind: Dead, ID: "a", UUID: "a", Topic: "t", Group: "g", Redis: 1203_000}), false},
		"the first one died later": {two().takes("x:1:0", "b", 5).acks("x:1:0").tell(
			Event{Kind: Dead, ID: "a", UUID: "a", Topic: "t", Group: "g", Redis: 1903_000}), true},
		"in two partitions": {(&tale{now: 1000}).keyed("a", 1100, inTopic("p0", 12)).keyed("b", 1200, inTopic("p1", 12)).wait(200).
			takes("x:1:0", "a", 5).acks("x:1:0").takes("x:2:0", "b", 5).acks("x:2:0"), true},
		"in the partition of another number": {(&tale{now: 1000}).keyed("a", 1100, inTopic("p0", 12)).keyed("b", 1200, inTopic("p12", 16)).wait(200).
			takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), false},
		"another number, and the same partition": {(&tale{now: 1000}).keyed("a", 1100, inTopic("p0", 12)).keyed("b", 1200, inTopic("p0", 16)).wait(200).
			takes("x:1:0", "b", 5).acks("x:1:0").takes("x:2:0", "a", 5).acks("x:2:0"), true},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{})
			require.Equal(t, c.wrong, Has(found, Order), "%v", found)
		})
	}
}

func TestCheckerCatchesTwoOwners(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tale  *tale
		wrong bool
	}{
		"one after the other":          {two(withoutKey).takes("x:1:0", "a", 5).acks("x:1:0").takes("y:1:0", "b", 6).acks("y:1:0"), false},
		"in two lanes":                 {two(withoutKey).takes("x:1:0", "a", 5).takes("x+:1:0", "b", 5).acks("x:1:0").acks("x+:1:0"), false},
		"one holds several":            {two(withoutKey).takes("x:1:0", "a", 5).takes("x:2:0", "b", 5).acks("x:1:0").acks("x:2:0"), false},
		"two hold one each":            {two(withoutKey).takes("x:1:0", "a", 5).takes("y:1:0", "b", 6).acks("x:1:0").acks("y:1:0"), true},
		"the lease of the first ended": {two(withoutKey).takes("x:1:0", "a", 5).wait(100).takes("y:1:0", "a", 6).acks("y:1:0").takes("y:2:0", "b", 6).acks("y:2:0"), false},
		"its leases end together": {two(withoutKey).takes("x:1:0", "a", 5).wait(50).takes("x:2:0", "b", 5).wait(50).
			takes("y:1:0", "a", 6).acks("y:1:0").takes("y:2:0", "b", 6).acks("y:2:0"), false},
		"the one that ends first was acked": {two(withoutKey).takes("x:1:0", "a", 5).wait(50).takes("x:2:0", "b", 5).acks("x:1:0").wait(50).
			takes("y:1:0", "b", 6).acks("y:1:0"), true},
		"an epoch of two":                {two(withoutKey).takes("x:1:0", "a", 5).acks("x:1:0").takes("y:1:0", "b", 5).acks("y:1:0"), true},
		"an epoch that falls":            {two(withoutKey).takes("x:1:0", "a", 5).acks("x:1:0").takes("y:1:0", "b", 4).acks("y:1:0"), true},
		"no epoch":                       {two(withoutKey).takes("x:1:0", "a", 0).acks("x:1:0").takes("y:1:0", "b", 5).acks("y:1:0"), true},
		"handled with a different epoch": {with(two(withoutKey).takes("x:1:0", "a", 5), func(e *Event) { e.Epoch = 6 }).acks("x:1:0").takes("x:2:0", "b", 5).acks("x:2:0"), true},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{SingleActive: true})
			require.Equal(t, c.wrong, Has(found, OneOwner), "%v", found)
			require.True(t, c.wrong || len(found) == 0, "%v", found)
		})
	}
}

// with changes the last event.
func with(s *tale, change func(*Event)) *tale {
	change(&s.events[len(s.events)-1])
	return s
}

// A failover that loses a takeover gives the place back to the owner before.
func TestCheckerAllowsALowerEpochAfterALostTakeoverOnly(t *testing.T) {
	t.Parallel()
	s := (&tale{now: 1000}).keyed("a", 1010, withoutKey).keyed("b", 1020, withoutKey).keyed("c", 1030, withoutKey).wait(100).
		takes("x:1:0", "a", 5).acks("x:1:0").wait(100)
	safe := s.now * int64(time.Millisecond)
	s.takes("y:1:0", "b", 6).acks("y:1:0")
	killed := (s.now + 1) * int64(time.Millisecond)
	s.wait(100).takes("x:2:0", "c", 5).acks("x:2:0")
	rules := func(safe, killed int64) Rules {
		return Rules{SingleActive: true, LosesData: true, LosesIn: []Span{{Safe: safe, Killed: killed}}}
	}
	require.Empty(t, s.check(rules(safe, killed)))
	require.True(t, Has(s.check(rules(killed+1, killed+2)), OneOwner))
	require.True(t, Has(s.check(Rules{SingleActive: true}), OneOwner))
}
