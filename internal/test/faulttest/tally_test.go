package faulttest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// buried adds a dead letter with a count of deliveries.
func (s *tale) buried(count int) *tale {
	return s.tell(Event{Kind: Dead, ID: "1", UUID: "m", Redis: 2000_000, Number: count, Outcome: "its record"})
}

// givenUp adds a nack that makes the message dead, even if deliveries are left.
func (s *tale) givenUp(by, token, how string) *tale {
	for _, kind := range []Kind{Settle, Settled} {
		s.tell(Event{Kind: kind, By: by, ID: "1", Token: token, Script: "nack", Delay: -1, Outcome: how, Count: 1, Of: 1})
	}
	return s
}

// lost adds a lease that expires.
func (s *tale) lost(token string) *tale { return s.claimed("a", token).wait(100) }

// asks adds a claim whose worker was killed before the answer.
func (s *tale) asks(by string) *tale {
	return s.tell(Event{Kind: Ask, By: by, Call: 1, Token: by + ":1", Lease: 100}).wait(50).tell(Event{Kind: Down, By: by})
}

func TestDeadMessagesMustFollowFromTheHistory(t *testing.T) {
	t.Parallel()
	nack := func(s *tale, token string) *tale { return s.claimed("a", token).nacked("a", token, 0) }
	lose := func(s *tale, times int, change ...func(claimed, start *Event)) *tale {
		for i := range times {
			s.claimed("a", fmt.Sprintf("a:%d:0", i+1), change...).wait(100)
		}
		return s
	}
	// late releases the lease of the first claim, which is lost.
	late := func(s *tale) *tale {
		s.tell(Event{Kind: Settle, By: "a", ID: "1", Token: "a:1:0", Script: "release", Of: 1})
		return s.tell(Event{Kind: Settled, By: "a", ID: "1", Token: "a:1:0", Script: "release", Of: 1, Tries: 1})
	}
	// first is a claim whose answer is lost, with leases that expire, and again its repeat.
	claim := func(s *tale, call int, err string) *tale {
		return s.tell(Event{Kind: Ask, By: "x", Call: call, Token: "x:1", Lease: 100},
			Event{Kind: Answer, By: "x", Call: call, Script: "claim", Err: err, Tries: 1})
	}
	first := func(s *tale) *tale { return claim(s, 1, "EOF").wait(100) }
	again := func(s *tale) *tale { return claim(s, 2, "").wait(1) }
	partly := Event{Kind: Settled, By: "a", ID: "1", Token: "a:3:0", Script: "nack", Count: 1, Of: 2, Tries: 1}
	for name, c := range map[string]struct {
		tale *tale
		says string // "": nothing is wrong
	}{
		"nacked as often as allowed":          {nack(nack(nack(begin(), "a:1:0"), "a:2:0"), "a:3:0").buried(3), ""},
		"nacked less":                         {nack(nack(begin(), "a:1:0"), "a:2:0").buried(2), "nobody gave it up"},
		"never leased":                        {begin().buried(3), "nobody gave it up"},
		"counted more than nacked":            {nack(nack(nack(begin(), "a:1:0"), "a:2:0"), "a:3:0").buried(4), "is dead with 4"},
		"counted less than nacked":            {nack(nack(nack(begin(), "a:1:0"), "a:2:0"), "a:3:0").buried(2), "is dead with 2"},
		"expired twice more than allowed":     {lose(begin(), 5).buried(3), ""},
		"expired once more than allowed":      {lose(begin(), 4).buried(3), "nobody gave it up"},
		"expired beside others at first":      {lose(begin(), 6, among(4)).buried(3), ""},
		"expired beside others too often":     {lose(begin(), 5, among(4)).buried(3), "nobody gave it up"},
		"a nack ends the suspicion":           {nack(nack(begin().lost("a:1:0"), "a:2:0"), "a:3:0").lost("a:4:0").buried(3), "nobody gave it up"},
		"and the next expiry begins another":  {nack(nack(begin().lost("a:1:0"), "a:2:0"), "a:3:0").lost("a:4:0").lost("a:5:0").lost("a:6:0").buried(3), ""},
		"the second expiry ends nothing":      {nack(nack(begin().lost("a:1:0"), "a:2:0"), "a:3:0").lost("a:4:0").lost("a:5:0").buried(3), "nobody gave it up"},
		"the last nack had no answer":         {nack(nack(begin(), "a:1:0"), "a:2:0").claimed("a", "a:3:0").settles("a", "nack", "a:3:0", 0).buried(3), ""},
		"the last nack was taken in part":     {nack(nack(begin(), "a:1:0"), "a:2:0").claimed("a", "a:3:0").settles("a", "nack", "a:3:0", 0).tell(partly).buried(3), ""},
		"the last nack was refused":           {nack(nack(begin(), "a:1:0"), "a:2:0").claimed("a", "a:3:0").settles("a", "nack", "a:3:0", 0).tell(Event{Kind: Settled, By: "a", ID: "1", Token: "a:3:0", Script: "nack", Of: 1, Tries: 1}).buried(3), "nobody gave it up"},
		"given up":                            {begin().claimed("a", "a:1:0").givenUp("a", "a:1:0", "dead").buried(1), ""},
		"given up, and counted twice":         {begin().claimed("a", "a:1:0").givenUp("a", "a:1:0", "dead").buried(2), "is dead with 2"},
		"nobody could read it":                {begin().claimed("a", "a:1:0").givenUp("a", "a:1:0", "undelivered").buried(0), ""},
		"others may have had it":              {nack(nack(begin(), "a:1:0"), "a:2:0").asks("x").asks("y").asks("z").buried(3), ""},
		"two others may have had it":          {nack(nack(begin(), "a:1:0"), "a:2:0").asks("x").asks("y").buried(3), "nobody gave it up"},
		"others had claims, long before":      {nack(nack(begin().asks("x").asks("y").wait(9000), "a:1:0"), "a:2:0").tell(Event{Kind: Dead, ID: "1", UUID: "m", Redis: 20_000_000}), "nobody gave it up"},
		"a nack was not counted":              {nack(begin(), "a:1:0").claimed("a", "a:2:0", numbered(1)).acked("a", "a:2:0"), "is counted wrong"},
		"a first expiry was counted":          {begin().lost("a:1:0").claimed("a", "a:2:0", numbered(2), suspected(1)).acked("a", "a:2:0"), "is counted wrong"},
		"an expiry was forgotten":             {begin().lost("a:1:0").claimed("a", "a:2:0", numbered(1)).acked("a", "a:2:0"), "is counted wrong"},
		"a second expiry was counted":         {lose(begin(), 2).claimed("a", "a:3:0", numbered(2), suspected(2)).acked("a", "a:3:0"), "is counted wrong"},
		"a third expiry was not counted":      {lose(begin(), 3).claimed("a", "a:4:0", numbered(1), suspected(3)).acked("a", "a:4:0"), "is counted wrong"},
		"an expiry beside others was counted": {lose(begin(), 3, among(4)).claimed("a", "a:4:0", numbered(2), suspected(3)).acked("a", "a:4:0"), "is counted wrong"},
		"an expiry was taken back":            {late(begin().lost("a:1:0")).claimed("b", "b:1:0", numbered(1)).acked("b", "b:1:0"), ""},
		"an expiry was taken back by nobody":  {begin().lost("a:1:0").claimed("b", "b:1:0", numbered(1)).acked("b", "b:1:0"), "is counted wrong"},
		"it was taken back from a later lease": {late(begin().lost("a:1:0").claimed("b", "b:1:0")).wait(100).
			claimed("b", "b:2:0", numbered(1), suspected(1)).acked("b", "b:2:0"), ""},
		"what was counted was taken back": {late(lose(begin(), 2).claimed("b", "b:1:0")).wait(100).
			claimed("b", "b:2:0", numbered(1), suspected(2)).acked("b", "b:2:0"), "is counted wrong"},
		"a repeated claim took an expiry back": {again(first(begin()).claimed("b", "b:1:0", numbered(1), suspected(1))).settles("b", "release", "b:1:0", 0).
			settled("b", "release", "b:1:0", 0).claimed("b", "b:2:0", numbered(1)).acked("b", "b:2:0"), ""},
		"a repeated claim had taken it back before": {again(first(begin())).claimed("b", "b:1:0", numbered(1), suspected(1)).settles("b", "release", "b:1:0", 0).
			settled("b", "release", "b:1:0", 0).claimed("b", "b:2:0", numbered(1)).acked("b", "b:2:0"), "is counted wrong"},
		"delivered after the last":      {nack(nack(nack(begin(), "a:1:0"), "a:2:0"), "a:3:0").claimed("a", "a:4:0", numbered(3)).acked("a", "a:4:0"), "or be dead with [3]"},
		"what goes back is not counted": {begin().claimed("a", "a:1:0").settles("a", "release", "a:1:0", 0).settled("a", "release", "a:1:0", 0).claimed("a", "a:2:0", numbered(2)).acked("a", "a:2:0"), "is counted wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{MaxDeliveries: 3})
			if c.says == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, Limit, found[0].Property)
			require.Contains(t, found[0].Text, c.says)
		})
	}
}

// A claim without an answer may have leased messages, until a repeat is answered.
func TestUnansweredClaimsCountUntilARepeatIsAnswered(t *testing.T) {
	t.Parallel()
	group := Rules{Groups: []string{"g", "h"}}
	// in another group the message comes with a false state
	other := func(s *tale) *tale {
		s.claimed("a", "a:1:0", due(1003)).acked("a", "a:1:0")
		for _, e := range []Event{
			{Kind: Claimed, By: "h", ID: "1", Token: "h:1:0", Redis: s.now * 1000, Due: 1003, Lease: 100, Number: 2},
			{Kind: Settle, By: "h", ID: "1", Token: "h:1:0", Script: "ack", Of: 1},
			{Kind: Settled, By: "h", ID: "1", Token: "h:1:0", Script: "ack", Of: 1, Count: 1},
		} {
			e.Topic, e.Group = "t", "h"
			s.tell(e)
		}
		return s
	}
	ask := func(call int) Event { return Event{Kind: Ask, By: "x", Call: call, Token: "x:1", Lease: 100} }
	answer := func(call int, err string) Event {
		return Event{Kind: Answer, By: "x", Call: call, Script: "claim", Err: err, Tries: 1}
	}
	for name, s := range map[string]*tale{
		"none":                            begin(),
		"one was repeated, and answered":  begin().tell(ask(1), answer(1, "EOF"), ask(2), answer(2, "")),
		"one was refused":                 begin().tell(ask(1), answer(1, "server: NOPERM")),
		"one of another topic":            begin().tell(Event{Kind: Ask, By: "x", Call: 1, Token: "x:1", Topic: "u", Group: "g"}),
		"one was long before the message": (&tale{now: 1000}).asks("x").wait(9000).published("m", 0),
	} {
		t.Run(name, func(t *testing.T) {
			found := other(s).check(group)
			require.True(t, Has(found, Isolation), "%v", found)
		})
	}
	for name, s := range map[string]*tale{
		"nobody has the answer":                     begin().asks("x"),
		"the answer came when its leases were over": begin().tell(ask(1), answer(1, "EOF")).wait(100).tell(ask(2), answer(2, "")),
		"the repeat had no answer either":           begin().tell(ask(1), answer(1, "EOF"), ask(2), answer(2, "EOF")),
		"the repeat was refused":                    begin().tell(ask(1), answer(1, "EOF"), ask(2), answer(2, "server: LOADING")),
	} {
		t.Run(name, func(t *testing.T) {
			require.False(t, Has(other(s).check(group), Isolation))
		})
	}
}
