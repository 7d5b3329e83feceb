package faulttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpansThatOverlapCountOnce(t *testing.T) {
	t.Parallel()
	s := spans{{50, 60}, {0, 10}, {5, 20}, {20, 30}}.union()
	require.Equal(t, spans{{0, 30}, {50, 60}}, s)
	require.Equal(t, 25*time.Nanosecond, s.within(10, 55))
	require.Zero(t, s.within(30, 50))
}

// forgetful returns the rules for a server that may lose writes between two times, in ms.
func forgetful(safe, killed int64) Rules {
	return Rules{LosesData: true, Return: time.Second, LosesIn: []Span{{
		Safe: safe * int64(time.Millisecond), Killed: killed * int64(time.Millisecond), Topic: "t",
	}}}
}

// A server may lose the writes in a span of time, as after a failover. All others must hold.
func TestServerMayLoseOnlyWritesInASpan(t *testing.T) {
	t.Parallel()
	ack := func(s *tale) *tale { return s.claimed("a", "a:1:0").acked("a", "a:1:0") }
	dead := Event{Kind: Dead, ID: "1", UUID: "m", Redis: 2000_000}
	for name, c := range map[string]struct {
		tale *tale
		want Property // the violation if it may not be lost
	}{
		"an ack":                {ack(begin()).wait(500).again(), AckHolds},
		"a lease":               {begin().claimed("a", "a:1:0").wait(50).again(), OneLease},
		"the delay of a nack":   {begin().claimed("a", "a:1:0").nacked("a", "a:1:0", 500).again(), ReturnTime},
		"an ack before a death": {ack(begin()).tell(dead), AckHolds},
		"a cancellation": {begin().tell(Event{Kind: Cancel, UUID: "m"}, Event{Kind: Cancelled, UUID: "m"}).
			wait(500).again(), AckHolds},
		"a message": {begin(), Settlement},
		"what a group has got": {begin().claimed("a", "a:1:0", due(1002)).acked("a", "a:1:0").
			inOther("h", 1, 1005), Isolation},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(change func(*Rules)) []Violation {
				rules := forgetful(0, 1100)
				if name == "what a group has got" {
					rules.Groups = []string{"g", "h"}
				}
				change(&rules)
				return c.tale.check(rules)
			}
			require.Empty(t, check(func(*Rules) {}))
			require.Empty(t, check(func(r *Rules) { r.LosesIn = nil }), "anything may be forgotten")
			for why, change := range map[string]func(*Rules){
				"it was safe":                 func(r *Rules) { r.LosesIn[0].Safe = 1099 * int64(time.Millisecond) },
				"it was done later":           func(r *Rules) { r.LosesIn[0].Killed = 1000 * int64(time.Millisecond) },
				"it was on another server":    func(r *Rules) { r.LosesIn[0].Topic = "u" },
				"nothing was to be forgotten": func(r *Rules) { r.LosesIn = []Span{} },
				"the server forgets nothing":  func(r *Rules) { r.LosesData = false },
			} {
				require.True(t, Has(check(change), c.want), "%s, and %v may be violated", why, c.want)
			}
		})
	}
}

func TestLeasesAreNotComparedAfterAClockStep(t *testing.T) {
	t.Parallel()
	step := Event{Kind: Stepped}
	between := begin().claimed("a", "a:1:0").wait(20).tell(step).wait(20).again()
	require.Empty(t, between.check(Rules{ClockSteps: true}))
	for _, s := range []*tale{
		begin().tell(step).claimed("a", "a:1:0").wait(50).again(),
		begin().claimed("a", "a:1:0").wait(50).again().tell(step),
	} {
		require.True(t, Has(s.check(Rules{ClockSteps: true}), OneLease))
	}
}

func TestReplicatedMessagesMustNotBeLost(t *testing.T) {
	t.Parallel()
	rules := forgetful(0, 1100)
	require.Empty(t, begin().check(rules))
	rules.Replicated = true
	require.True(t, Has(begin().check(rules), Settlement))
	require.Empty(t, begin().claimed("a", "a:1:0").acked("a", "a:1:0").wait(500).again().check(rules), "its ack is")
	unsettled := begin().claimed("a", "a:1:0").acked("a", "a:1:0").wait(500).claimed("b", "b:1:0")
	require.True(t, Has(unsettled.check(rules), Settlement), "an ack that was forgotten settles nothing")
}
