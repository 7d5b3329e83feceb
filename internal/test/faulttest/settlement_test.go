package faulttest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// answered adds the answer to an ack: Redis accepted took of the messages, at the given try.
func (s *tale) answered(by, token string, took, of, tries int) *tale {
	return s.tell(Event{Kind: Settled, By: by, ID: "1", Token: token, Script: "ack", Count: took, Of: of, Tries: tries})
}

func (s *tale) unsure(by, token string) *tale {
	return s.tell(Event{Kind: Unsure, By: by, ID: "1", Token: token, Script: "ack", Err: "EOF", Tries: 4})
}

// gone adds a sample without a message that the sample before, ago ms earlier, had under a lease.
func (s *tale) gone(token string, ago int64) *tale {
	state := "in_hand"
	if token == "" {
		state = "ready"
	}
	return s.tell(Event{Kind: Gone, ID: "1", Outcome: state, Token: token, Sent: (s.now - ago) * int64(time.Millisecond)})
}

// sent returns a tale with an ack on its way to Redis.
func sent() *tale { return begin().claimed("a", "a:1:0").settles("a", "ack", "a:1:0", 0) }

func TestConfirmedAckCounts(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*tale{
		"at once":                            sent().answered("a", "a:1:0", 1, 1, 1),
		"when the client sent it again":      sent().answered("a", "a:1:0", 1, 1, 2),
		"after another that had no answer":   sent().unsure("a", "a:1:0").settles("a", "ack", "a:1:0", 0).answered("a", "a:1:0", 1, 1, 1),
		"and nobody has looked":              sent().answered("a", "a:1:0", 1, 1, 1),
		"and the last look saw it elsewhere": sent().answered("a", "a:1:0", 1, 1, 1).gone("", 1),
	} {
		t.Run(name, func(t *testing.T) {
			found, figures := Check(s.events, Rules{Groups: []string{"g"}})
			require.Empty(t, found)
			require.Equal(t, 1, figures.Acked)
			require.Zero(t, figures.Unanswered)
		})
	}
}

func TestUnansweredAckCountsUnlessContradicted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tale *tale
		seen int
	}{
		"its worker died":                         {sent(), 0},
		"the connection broke":                    {sent().unsure("a", "a:1:0"), 0},
		"it was sent again, and had done it":      {sent().answered("a", "a:1:0", 0, 1, 2), 0},
		"it was sent again, in part":              {sent().answered("a", "a:1:0", 1, 2, 2), 0},
		"the worker sent it again":                {sent().unsure("a", "a:1:0").settles("a", "ack", "a:1:0", 0).answered("a", "a:1:0", 0, 1, 1), 0},
		"a look saw it before it was claimed":     {sent().unsure("a", "a:1:0").gone("", 100), 0},
		"a look saw it under that lease":          {sent().unsure("a", "a:1:0").gone("a:1:0", 1), 1},
		"one of two was taken":                    {sent().answered("a", "a:1:0", 1, 2, 1), 0},
		"it was taken as another's, and is dead":  {sent().unsure("a", "a:1:0").wait(100).claimed("b", "b:1:0").givenUp("b", "b:1:0", "dead").buried(1), -1},
		"its lease was lost, and the next is its": {sent().unsure("a", "a:1:0").wait(100).claimed("b", "b:1:0").acked("b", "b:1:0"), -1},
	} {
		t.Run(name, func(t *testing.T) {
			found, figures := Check(c.tale.events, Rules{Groups: []string{"g"}})
			require.Empty(t, found)
			if c.seen < 0 {
				require.Zero(t, figures.Unanswered)
				return
			}
			require.Equal(t, 1, figures.Unanswered)
			require.Equal(t, c.seen, figures.Seen)
		})
	}
}

func TestCheckerFindsMessagesGoneWithoutAnAck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tale *tale
		says string
	}{
		"nobody acked it":   {begin().claimed("a", "a:1:0").gone("a:1:0", 1), "was neither acked"},
		"its ack was stale": {sent().answered("a", "a:1:0", 0, 1, 1), "Redis had refused its ack"},
		"its ack was an error": {sent().tell(Event{
			Kind: Refused, By: "a", ID: "1", Token: "a:1:0", Script: "ack", Err: "server: OOM", Tries: 1,
		}), "Redis had refused its ack"},
		"its last lease had no ack": {sent().unsure("a", "a:1:0").wait(100).claimed("b", "b:1:0"), "was neither acked"},
		"its last lease's ack was stale": {sent().unsure("a", "a:1:0").wait(100).claimed("b", "b:1:0").settles("b", "ack", "b:1:0", 0).
			answered("b", "b:1:0", 0, 1, 1), "Redis had refused its ack"},
		"an ack had no answer, and was refused before": {sent().answered("a", "a:1:0", 0, 1, 1).gone("", 1), "Redis had refused"},
		"it was gone before its ack was sent":          {begin().claimed("a", "a:1:0").gone("a:1:0", 1).settles("a", "ack", "a:1:0", 0), "was gone before"},
		"it was ready when it was seen last":           {sent().wait(100).unsure("a", "a:1:0").gone("", 1), "was not under lease"},
		"it was another's when it was seen last":       {sent().wait(100).unsure("a", "a:1:0").gone("x:1:0", 1), "was not under lease"},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.tale.check(Rules{})
			require.Len(t, found, 1)
			require.Equal(t, Settlement, found[0].Property)
			require.Contains(t, found[0].Text, c.says)
		})
	}
}

// both returns a tale with an ack of two messages, of which Redis accepted one.
func both() *tale {
	s := &tale{now: 1000}
	for _, id := range []string{"1", "2"} {
		of := func(claimed, start *Event) { claimed.ID, start.ID, start.UUID = id, id, "m"+id }
		s.published("m"+id, 0).claimed("a", "a:"+id+":0", of)
	}
	for _, kind := range []Kind{Settle, Settled} {
		for _, id := range []string{"1", "2"} {
			s.tell(Event{Kind: kind, By: "a", Call: 7, ID: id, Token: "a:" + id + ":0", Script: "ack", Count: 1, Of: 2, Tries: 1})
		}
	}
	return s
}

func TestPartlyAcceptedAckSettlesNoMoreThanAccepted(t *testing.T) {
	t.Parallel()
	found := both().check(Rules{})
	require.Len(t, found, 1)
	require.Contains(t, found[0].Text, "Redis has taken 1 acks of a call, and 2 messages are gone")
	require.Len(t, both().check(Rules{LosesData: true, LosesIn: []Span{}}), 1)
	require.Empty(t, both().check(Rules{LosesData: true}), "the server may have lost the other")
	other := func(claimed, start *Event) { claimed.ID, start.ID, start.UUID = "2", "2", "m2" }
	ack := Event{Kind: Settle, By: "b", ID: "2", Token: "b:1:0", Script: "ack", Of: 1}
	taken := ack
	taken.Kind, taken.Count = Settled, 1
	require.Empty(t, both().wait(100).claimed("b", "b:1:0", other).tell(ack, taken).check(Rules{}))
}

func TestUnconfirmedCancellationSettlesNothing(t *testing.T) {
	t.Parallel()
	require.True(t, Has(begin().tell(Event{Kind: Cancel, UUID: "m"}).check(Rules{}), Settlement))
	lost := begin().tell(Event{Kind: Cancel, UUID: "m"}, Event{Kind: NotThere, UUID: "m"})
	require.True(t, Has(lost.check(Rules{}), Settlement), "what was published is not there to be cancelled")
	require.False(t, Has(lost.check(Rules{LosesData: true}), Settlement))
}

// The repeats of the client are counted.
func TestTriesAreCounted(t *testing.T) { // not parallel, because the recorder is global
	redis.SetOTelRecorder(tries{})
	t.Cleanup(func() { redis.SetOTelRecorder(nil) })
	p, client := throughProxy(t)
	for n := range 5 {
		var cmds []redis.Cmder
		for range n + 1 {
			cmds = append(cmds, redis.NewIntCmd(t.Context(), "incr", "n"))
		}
		do := func() int64 {
			c := count{cmds: cmds}
			ctx := countTries(t.Context(), &c)
			if n == 0 {
				require.NoError(t, client.Process(ctx, cmds[0]))
			} else {
				pipe := client.Pipeline()
				require.NoError(t, pipe.BatchProcess(ctx, cmds...))
				_, err := pipe.Exec(ctx)
				require.NoError(t, err)
			}
			return c.tries.Load()
		}
		do() // the client may need a connection
		require.EqualValues(t, 1, do(), n)
		p.Swallow(1, incr)
		require.GreaterOrEqual(t, do(), int64(2), n) // more, if the commands that prepare the new connection are as many
	}
}
