package faulttest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// under sets the token of a claim and its handler.
func under(token string) func(claimed, start *Event) {
	return func(_, start *Event) { start.Token = token }
}

func (s *tale) handles(by, token string) *tale {
	return s.tell(Event{Kind: Start, By: by, ID: "1", UUID: "m", Token: token, Redis: s.now * 1000, Due: s.now, Sum: "sum", Sent: (s.now + 1) * 1_000_000})
}

func (s *tale) ends(kind Kind, by, token string) *tale {
	return s.tell(Event{Kind: kind, By: by, ID: "1", Token: token})
}

func TestHandlersBelongToLeases(t *testing.T) {
	t.Parallel()
	with := func(token string) *tale { return begin().claimed("a", "a:1:0", under(token)) }
	expired := func() *tale { return with("a:1:0").wait(100) }
	for name, c := range map[string]struct {
		tale *tale
		want Property // 0: nothing is wrong
		says string
	}{
		"one, and its ack":         {with("a:1:0").ends(End, "a", "a:1:0").acked("a", "a:1:0").ends(Over, "a", "a:1:0"), 0, ""},
		"after an expiry, another": {expired().ends(Over, "a", "a:1:0").claimed("b", "b:1:0", under("b:1:0")).ends(End, "b", "b:1:0").acked("b", "b:1:0").wait(9000).ends(End, "a", "a:1:0"), 0, ""},
		"frozen": {with("a:1:0").tell(Event{Kind: Down, By: "a"}).wait(9000).ends(Over, "a", "a:1:0").tell(Event{Kind: Up, By: "a", Group: "g"}).
			claimed("b", "b:1:0", under("b:1:0")).ends(End, "b", "b:1:0").acked("b", "b:1:0"), 0, ""},
		"begun as it is released": {begin().claimed("a", "a:1:0").settlesAtOnce("a", "release", "a:1:0").handles("a", "a:1:0").ends(Over, "a", "a:1:0").
			claimed("b", "b:1:0", under("b:1:0")).ends(End, "b", "b:1:0").acked("b", "b:1:0").ends(End, "a", "a:1:0"), 0, ""},
		"begun after its release, and its context goes on": {begin().claimed("a", "a:1:0").settlesAtOnce("a", "release", "a:1:0").handles("a", "a:1:0").
			wait(2001).ends(Over, "a", "a:1:0"), OneLease, "after its release"},
		"begun after its release, and its context never ends": {begin().claimed("a", "a:1:0").settlesAtOnce("a", "release", "a:1:0").handles("a", "a:1:0"),
			OneLease, "after its release"},
		"under none":                        {with("x:1:0").acked("a", "a:1:0"), OneLease, "which nobody has"},
		"under another's":                   {begin().claimed("a", "a:1:0").handles("b", "a:1:0").ends(End, "b", "a:1:0").acked("a", "a:1:0"), OneLease, "of a"},
		"twice":                             {with("a:1:0").handles("a", "a:1:0").ends(End, "a", "a:1:0").acked("a", "a:1:0"), OneLease, "twice"},
		"after its ack":                     {begin().claimed("a", "a:1:0").acked("a", "a:1:0").handles("a", "a:1:0").ends(End, "a", "a:1:0"), OneLease, "after its ack"},
		"after another's ack":               {begin().claimed("a", "a:1:0").wait(100).claimed("b", "b:1:0").acked("b", "b:1:0").wait(2100).handles("a", "a:1:0").ends(Over, "a", "a:1:0"), AckHolds, "after its ack was confirmed"},
		"while it settles":                  {with("a:1:0").settlesAtOnce("a", "ack", "a:1:0"), OneLease, "while its handler was at work"},
		"nacked, as it ran for too long":    {with("a:1:0").nackedAtOnce("a:1:0").ends(Over, "a", "a:1:0").claimed("b", "b:1:0", under("b:1:0")).ends(End, "b", "b:1:0").acked("b", "b:1:0"), 0, ""},
		"released, as its lease is lost":    {with("a:1:0").settlesAtOnce("a", "release", "a:1:0").ends(Over, "a", "a:1:0").claimed("b", "b:1:0", under("b:1:0")).ends(End, "b", "b:1:0").acked("b", "b:1:0"), 0, ""},
		"released, and its context goes on": {with("a:1:0").settlesAtOnce("a", "release", "a:1:0").wait(2001).ends(Over, "a", "a:1:0"), OneLease, "while its handler was at work"},
		"nacked, and its context goes on":   {with("a:1:0").nackedAtOnce("a:1:0").wait(2001).ends(Over, "a", "a:1:0"), OneLease, "while its handler was at work"},
		"long after its lease":              {begin().claimed("a", "a:1:0").wait(2200).handles("a", "a:1:0").ends(End, "a", "a:1:0").acked("a", "a:1:0"), OneLease, "was over"},
		"on and on":                         {with("a:1:0").wait(2200).ends(End, "a", "a:1:0").acked("a", "a:1:0"), OneLease, "its context had not ended"},
		"its context ends much too late":    {with("a:1:0").wait(2200).ends(Over, "a", "a:1:0").ends(End, "a", "a:1:0").acked("a", "a:1:0"), OneLease, "its context had not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{})
			if c.want == 0 {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.True(t, Has(found, c.want), "%v", found)
			said := ""
			for _, v := range found {
				said += v.String()
			}
			require.Contains(t, said, c.says)
		})
	}
}

func (s *tale) nackedAtOnce(token string) *tale {
	return s.tell(Event{Kind: Settle, By: "a", ID: "1", Token: token, Script: "nack", Of: 1}).settled("a", "nack", token, 0)
}

// settlesAtOnce adds a settlement before the end of the handler.
func (s *tale) settlesAtOnce(by, script, token string) *tale {
	s.tell(Event{Kind: Settle, By: by, ID: "1", Token: token, Script: script, Of: 1})
	return s.tell(Event{Kind: Settled, By: by, ID: "1", Token: token, Script: script, Of: 1, Count: 1})
}
