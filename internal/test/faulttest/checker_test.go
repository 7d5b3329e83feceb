package faulttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tale builds a history with one millisecond between events, on all clocks.
type tale struct {
	now    int64 // ms
	events []Event
}

func (s *tale) tell(events ...Event) *tale {
	for _, e := range events {
		s.now++
		e.At = s.now * int64(time.Millisecond)
		if e.Topic == "" {
			e.Topic, e.Group = "t", "g"
		}
		s.events = append(s.events, e)
	}
	return s
}

func (s *tale) wait(ms int64) *tale { s.now += ms; return s }

func (s *tale) published(uuid string, delay int64) *tale {
	s.tell(Event{Kind: Publish, UUID: uuid, Delay: delay, Redis: s.now * 1000, Sum: "sum"})
	return s.tell(Event{Kind: Published, UUID: uuid})
}

// claimed adds a lease of 100 ms and the start of its handler.
func (s *tale) claimed(by, token string, change ...func(claimed, start *Event)) *tale {
	s.tell(Event{Kind: Ask, By: by, Token: claimOf(token)})
	claimed := Event{Kind: Claimed, By: by, ID: "1", Token: token, Sent: s.now * int64(time.Millisecond), Redis: s.now * 1000,
		Due: s.now, Lease: 100, Most: 1}
	start := Event{Kind: Start, By: by, ID: "1", UUID: "m", Redis: s.now * 1000, Due: s.now, Sum: "sum"}
	for _, c := range change {
		c(&claimed, &start)
	}
	if claimed.Number == 0 {
		claimed.Number, claimed.Expiries = s.counted(claimed.ID)
		start.Number = claimed.Number
	}
	s.tell(claimed, Event{Kind: Answer, By: by, Script: "claim"})
	return s.tell(start)
}

// counted returns the group's counts for a message at its next lease.
func (s *tale) counted(id string) (number, expiries int) {
	number = 1
	alone, leased := false, false
	expire := func() {
		if leased && alone {
			number++
		}
		if leased {
			expiries++
		}
		leased = false
	}
	for _, e := range s.events {
		switch {
		case e.ID != id:
		case e.Kind == Claimed:
			expire()
			number, expiries, leased = e.Number, e.Expiries, true
			alone = expiries >= 2 && e.Most>>(expiries-1) <= 1
		case e.Kind == Settled && e.Script == "nack":
			number, expiries, leased = number+1, 0, false
		case e.Kind == Settled && e.Script != "ack":
			leased = false
		}
	}
	expire()
	return number, expiries
}

// suspected gives a lease a number of expiries in a row before it.
func suspected(expiries int) func(claimed, start *Event) {
	return func(claimed, _ *Event) { claimed.Expiries = expiries }
}

// among gives a lease a consumer that has so many messages at once at most.
func among(most int) func(claimed, start *Event) {
	return func(claimed, _ *Event) { claimed.Most = most }
}

func numbered(n int) func(claimed, start *Event) {
	return func(claimed, start *Event) { claimed.Number, start.Number = n, n }
}

func due(ms int64) func(claimed, start *Event) {
	return func(claimed, start *Event) { claimed.Due, start.Due = ms, ms }
}

func (s *tale) settles(by, script, token string, delay int64) *tale {
	s.tell(Event{Kind: End, By: by, ID: "1", Redis: s.now * 1000, Outcome: script, Delay: delay})
	return s.tell(Event{Kind: Settle, By: by, ID: "1", Token: token, Script: script, Delay: delay, Of: 1})
}

func (s *tale) settled(by, script, token string, delay int64) *tale {
	sent := s.now * int64(time.Millisecond)
	return s.tell(Event{Kind: Settled, By: by, ID: "1", Token: token, Script: script, Delay: delay, Count: 1, Of: 1, Sent: sent})
}

func (s *tale) acked(by, token string) *tale {
	return s.settles(by, "ack", token, 0).settled(by, "ack", token, 0)
}

func (s *tale) nacked(by, token string, delay int64) *tale {
	return s.settles(by, "nack", token, delay).settled(by, "nack", token, delay)
}

func (s *tale) check(rules Rules) []Violation {
	if rules.Groups == nil {
		rules.Groups = []string{"g"}
	}
	found, _ := Check(s.events, rules)
	return found
}

func begin() *tale { return (&tale{now: 1000}).published("m", 0) }

func TestCheckerAcceptsValidHistories(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*tale{
		"acked":               begin().claimed("a", "a:1:0").acked("a", "a:1:0"),
		"nacked, and acked":   begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 50).wait(50).claimed("b", "b:1:0", numbered(2)).acked("b", "b:1:0"),
		"the lease ran out":   begin().claimed("a", "a:1:0").wait(100).claimed("b", "b:1:0").acked("b", "b:1:0"),
		"acked as the server": begin().claimed("a", "a:1:0").settles("a", "ack", "a:1:0", 0),
		"not acknowledged":    (&tale{now: 1000}).tell(Event{Kind: Publish, UUID: "m"}, Event{Kind: Unknown, UUID: "m"}),
		"dead": begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 0).claimed("a", "a:2:0").nacked("a", "a:2:0", 0).
			claimed("a", "a:3:0").nacked("a", "a:3:0", 0).buried(3),
		"cancelled": begin().tell(Event{Kind: Cancel, UUID: "m"}, Event{Kind: Cancelled, UUID: "m"}),
		"a claim was sent twice": begin().tell(Event{Kind: Ask, By: "a", Token: "a:1"}).wait(90).
			claimed("a", "a:1:0", func(claimed, _ *Event) { claimed.Redis = 1094_000 }).wait(20).
			claimed("b", "b:1:0").acked("b", "b:1:0"),
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, s.check(Rules{MaxDeliveries: 3, Return: time.Second}))
		})
	}
}

func TestCheckerFindsEachViolation(t *testing.T) {
	t.Parallel()
	ack := func(s *tale) *tale { return s.claimed("a", "a:1:0").acked("a", "a:1:0") }
	dead := Event{Kind: Dead, ID: "1", UUID: "m", Redis: 1003_000}
	for name, c := range map[string]struct {
		tale *tale
		want Property
	}{
		"never delivered":           {begin(), Settlement},
		"delivered and never acked": {begin().claimed("a", "a:1:0"), Settlement},
		"refused, and there": {ack((&tale{now: 1000}).tell(
			Event{Kind: Publish, UUID: "m", Sum: "sum"}, Event{Kind: Failed, UUID: "m"})), Settlement},
		"early by its delay":       {ack((&tale{now: 1000}).published("m", 20)), NotEarly},
		"claimed before it is due": {begin().claimed("a", "a:1:0", due(1500)).acked("a", "a:1:0"), NotEarly},
		"by a false clock": {begin().claimed("a", "a:1:0", func(claimed, start *Event) {
			claimed.Redis, claimed.Due, start.Due = 9000_000, 9000, 9000
		}).acked("a", "a:1:0"), NotEarly},
		"other contents": {begin().claimed("a", "a:1:0", func(_, start *Event) { start.Sum = "x" }).acked("a", "a:1:0"), Contents},
		"nobody's":       {begin().claimed("a", "a:1:0", func(_, start *Event) { start.UUID = "x" }).acked("a", "a:1:0"), Contents},
		"dead with other contents": {begin().claimed("a", "a:1:0").tell(
			Event{Kind: Dead, ID: "1", UUID: "m", Sum: "x", Redis: 1003_000}), Contents},
		"above the limit": {begin().claimed("a", "a:1:0", numbered(4)).acked("a", "a:1:0"), Limit},
		"counted twice":   {begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 0).claimed("a", "a:2:0", numbered(3)).acked("a", "a:2:0"), Limit},
		"dead twice":      {begin().claimed("a", "a:1:0").tell(dead, dead), Limit},
		"after its ack":   {ack(begin()).claimed("b", "b:1:0").acked("b", "b:1:0"), AckHolds},
		"after its death": {begin().tell(dead).wait(10).claimed("b", "b:1:0").acked("b", "b:1:0"), AckHolds},
		"dead and acked":  {ack(begin()).tell(dead), AckHolds},
		"after its cancelling": {begin().tell(Event{Kind: Cancel, UUID: "m"}, Event{Kind: Cancelled, UUID: "m"}).
			claimed("b", "b:1:0").acked("b", "b:1:0"), AckHolds},
		"two leases": {begin().claimed("a", "a:1:0").wait(50).claimed("b", "b:1:0").acked("b", "b:1:0"), OneLease},
		"two leases, one extended": {begin().claimed("a", "a:1:0").wait(90).
			tell(Event{Kind: Extend, By: "a", ID: "1", Token: "a:1:0", Lease: 100, Redis: 1094_000}).
			tell(Event{Kind: Extended, By: "a", ID: "1", Token: "a:1:0", Lease: 100}).wait(50).
			claimed("b", "b:1:0").acked("b", "b:1:0"), OneLease},
		"a stale ack":           {begin().claimed("a", "a:1:0").wait(100).claimed("b", "b:1:0").acked("a", "a:1:0"), StaleSettle},
		"a stale nack":          {begin().claimed("a", "a:1:0").wait(100).claimed("b", "b:1:0").nacked("a", "a:1:0", 0).acked("b", "b:1:0"), StaleSettle},
		"back before its delay": {begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 50).wait(30).claimed("b", "b:1:0").acked("b", "b:1:0"), ReturnTime},
		"back late": {begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 50).wait(2000).
			claimed("b", "b:1:0", due(1060)).acked("b", "b:1:0"), ReturnTime},
		"back long after its lease": {begin().claimed("a", "a:1:0").wait(2000).claimed("b", "b:1:0").acked("b", "b:1:0"), ReturnTime},
		"of another group":          {ack(begin()).tell(Event{Kind: Claimed, Topic: "t", Group: "x", ID: "1", Token: "x:1:0"}), Isolation},
		"two copies": {begin().claimed("a", "a:1:0").acked("a", "a:1:0").
			claimed("a", "a:2:0", func(claimed, start *Event) { claimed.ID, start.ID = "2", "2" }), OneCopy},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{MaxDeliveries: 3, Return: time.Second})
			require.True(t, Has(found, c.want), "not %v but %v", c.want, found)
		})
	}
}

func TestCheckerFindsFaultsOfClosing(t *testing.T) {
	t.Parallel()
	closed := Event{Kind: Closed, Took: int64(7 * time.Second), Outcome: ClientOpen}
	require.Empty(t, begin().claimed("a", "a:1:0").acked("a", "a:1:0").tell(closed).check(Rules{}))
	for says, change := range map[string]func(e *Event){
		"took 7.001s to close":                        func(e *Event) { e.Took += int64(time.Millisecond) },
		"goroutines":                                  func(e *Event) { e.Err = "goroutines" },
		"the caller's client is closed":               func(e *Event) { e.Outcome = "closed" },
		"the caller's client is not known to be open": func(e *Event) { e.Outcome = "" },
	} {
		t.Run(says, func(t *testing.T) {
			e := closed
			change(&e)
			found := begin().claimed("a", "a:1:0").acked("a", "a:1:0").tell(e).check(Rules{})
			require.Len(t, found, 1)
			require.Equal(t, Closing, found[0].Property)
			require.Contains(t, found[0].Text, says)
		})
	}
}

// inOther adds a lease of another group and the start of its handler.
func (s *tale) inOther(group string, number int, due int64) *tale {
	e := Event{By: "o", Topic: "t", Group: group, ID: "1", UUID: "m", Token: "o:1:0", Sum: "sum", Number: number, Due: due, Lease: 100}
	claimed, start := e, e
	claimed.Kind, start.Kind = Claimed, Start
	claimed.Redis, start.Redis = s.now*1000, s.now*1000
	settle := Event{Kind: Settle, By: "o", Topic: "t", Group: group, ID: "1", Token: "o:1:0", Script: "ack", Of: 1}
	end := settle
	end.Kind = End
	return s.tell(claimed, start, end, settle)
}

func TestCheckerFindsEffectsBetweenGroups(t *testing.T) {
	t.Parallel()
	nacked := func() *tale {
		return begin().claimed("a", "a:1:0", due(1002)).nacked("a", "a:1:0", 50).wait(100).
			claimed("a", "a:2:0", numbered(2), due(1060)).acked("a", "a:2:0")
	}
	rules := Rules{Groups: []string{"g", "h"}}
	require.Empty(t, nacked().inOther("h", 1, 1002).check(rules))
	for name, s := range map[string]*tale{
		"its nack moves the other's":         nacked().inOther("h", 1, 1060),
		"its delivery counts for the other":  nacked().inOther("h", 2, 1002),
		"its ack takes it from the other":    nacked(),
		"it gets what is for nobody's group": nacked().inOther("h", 1, 1002).inOther("x", 1, 1002),
	} {
		t.Run(name, func(t *testing.T) {
			found := s.check(rules)
			require.True(t, Has(found, Isolation) || Has(found, Settlement), "%v", found)
			require.Equal(t, name != "its ack takes it from the other", Has(found, Isolation), "%v", found)
		})
	}
}

func TestCheckerCountsLostMessages(t *testing.T) {
	t.Parallel()
	found, figures := Check(begin().events, Rules{Groups: []string{"g"}, LosesData: true})
	require.Empty(t, found)
	require.Equal(t, 1, figures.Lost)

	at := begin().events
	in := func(safe, killed int64) []Violation {
		found, _ := Check(at, Rules{Groups: []string{"g"}, LosesData: true, LosesIn: []Span{{Safe: safe, Killed: killed}}})
		return found
	}
	require.Empty(t, in(at[0].At, at[1].At+1))
	require.True(t, Has(in(at[1].At, at[1].At+1), Settlement), "it was safe before")
	require.True(t, Has(in(0, at[0].At), Settlement), "it was published later")
}
