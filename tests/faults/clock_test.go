package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestClientsClocksAreOff(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "the clocks of all clients an hour off the server's: nothing is early, late, lost or leased twice")
			server := redistest.StartWithClock(t)
			server.SetClock(offset)
			l := newLoad(t, server, faulttest.Place{})
			l.progress(t, faulttest.Pick(150, 3000))
			l.w.Verify(loadRules)
		})
	}
}

const setBack = 30 * time.Second

func TestServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "the server's clock set back by 30 s under load, and forward again: what waits comes later, nothing is early by that clock, lost or leased twice")
	c := &clock{server: redistest.StartWithClock(t)}
	l := newLoad(t, c.server, faulttest.Place{})
	rounds := faulttest.Pick(1, 10)
	for round := range rounds {
		l.progress(t, 40)
		waits := fmt.Sprint("waits-", round)
		l.w.Await(l.w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: waits, Messages: 1, DelaysMS: []int{4000}})...)
		due := time.Now().Add(4500 * time.Millisecond) // by this machine's clock, by which it could come by mistake
		c.set(t, l, -setBack)
		set := time.Now()
		var published time.Time
		l.await(t, "publication of "+waits, func(e faulttest.Event) bool {
			published = time.Unix(0, e.At)
			return e.Kind == faulttest.Publish && e.By == waits
		})
		require.Less(t, set.Sub(published), 4*time.Second, "it was to wait still when the clock was set back")
		for time.Now().Before(due) {
			l.progress(t, 40)
		}
		c.set(t, l, 0)
	}
	l.progress(t, 40)
	rules := loadRules
	rules.ClockSteps = true
	l.w.Verify(rules)
	found := c.judge(l)
	require.Empty(t, found.early)
	require.GreaterOrEqual(t, found.back, rounds)
	for round := range rounds {
		require.Contains(t, found.came, fmt.Sprintf("waits-%d-0", round))
	}
	faulttest.Report(t, fmt.Sprintf("%d of what was published with a delay while the clock was back came then, when it was due", found.back))
}

func TestServersClockStaysBack(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "the server's clock set back by 2 s, for good: what waits comes 2 s later")
	c := &clock{server: redistest.StartWithClock(t)}
	l := &load{w: faulttest.NewWorld(t, faulttest.At(c.server.Addr()))}
	l.w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer"})
	l.w.Await(l.w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 1, DelaysMS: []int{1500}})...)
	c.set(t, l, -2*time.Second)
	l.w.Handled(1)
	l.w.Verify(faulttest.Rules{ClockSteps: true})
	var published, came time.Time
	for _, e := range l.w.History() {
		switch e.Kind {
		case faulttest.Publish:
			published = time.Unix(0, e.At)
		case faulttest.Claimed:
			came = time.Unix(0, e.At)
		}
	}
	require.GreaterOrEqual(t, came.Sub(published), 3500*time.Millisecond)
	require.Less(t, came.Sub(published), 3500*time.Millisecond+soon)
	require.Empty(t, c.judge(l).early)
	faulttest.Report(t, fmt.Sprintf("%v after it was published", came.Sub(published).Round(time.Millisecond)))
}

// clock is a server's, which is set now and then.
type clock struct {
	server *redistest.Instance
	offset time.Duration
	pieces []piece // that have ended
}

// piece is a time in which the clock went forward as all clocks do.
type piece struct {
	offset time.Duration
	leaves int64 // as Event.At: from when on the clock may be set
	end    int64 // likewise: it was set by then
}

// set sets the clock, and makes sure that it was.
func (c *clock) set(t *testing.T, l *load, offset time.Duration) {
	t.Helper()
	before, began := l.w.Client.Time(t.Context()).Val(), time.Now()
	require.False(t, before.IsZero())
	l.w.Note(faulttest.Event{Kind: faulttest.Stepped})
	c.server.SetClock(offset)
	l.w.Note(faulttest.Event{Kind: faulttest.Stepped})
	after := l.w.Client.Time(t.Context()).Val()
	require.False(t, after.IsZero())
	require.InDelta(t, (offset - c.offset).Seconds(), (after.Sub(before) - time.Since(began)).Seconds(), 1, "the clock was not set")
	c.pieces = append(c.pieces, piece{offset: c.offset, leaves: began.UnixNano(), end: time.Now().UnixNano()})
	c.offset = offset
}

// judgement is what is known of a history by the server's own clock.
type judgement struct {
	early []string        // claims before they were due by that clock, which was not later since they were to wait
	came  map[string]bool // messages that were claimed
	back  int             // with a delay, published and claimed while the clock was back
}

// judge finds what was early by the server's clock. A message whose time that clock has shown since
// it was published may have been made ready then: it is not early if the clock is back now.
func (c *clock) judge(l *load) judgement {
	found := judgement{came: map[string]bool{}}
	names, published, nacks := map[string]string{}, map[string]faulttest.Event{}, map[delivery]faulttest.Event{}
	history := l.w.History()
	for _, e := range history {
		if e.Kind == faulttest.Start {
			names[e.ID] = e.UUID
		}
	}
	for _, e := range history {
		of := delivery{e.Group, e.ID, e.Number}
		switch e.Kind {
		case faulttest.Publish:
			published[e.UUID] = e
		case faulttest.End:
			if e.Outcome == "nack" && e.Redis != 0 {
				nacks[of] = e
			}
		case faulttest.Claimed:
			if message, handled := published[names[e.ID]]; handled {
				of.number--
				c.claimed(&found, e, message, nacks[of])
			}
		}
	}
	return found
}

// claimed judges a claim of a message, which may have been nacked before it.
func (c *clock) claimed(found *judgement, e, message, nack faulttest.Event) {
	found.came[message.UUID] = true
	early := func(earliest int64, why string) {
		if e.Redis < earliest {
			found.early = append(found.early, fmt.Sprintf("%s came %d µs before %s: %s", message.UUID, earliest-e.Redis, why, e))
		}
	}
	shown := slices.ContainsFunc(c.pieces, func(p piece) bool {
		return message.At < p.end && e.At > p.leaves && time.Unix(0, p.end).Add(p.offset).UnixMilli() >= e.Due
	})
	if !shown {
		early(e.Due*1000, "it was due")
	}
	if !c.same(e.Sent, e.At) {
		return // nobody knows by which clock
	}
	if nack.Delay > 0 && c.same(nack.Sent, e.Sent) {
		early(nack.Redis/1000*1000+nack.Delay*1000, "the delay of its nack was over")
	}
	if message.Delay == 0 || message.Redis == 0 || !c.same(message.Sent, e.Sent) {
		return
	}
	early(message.Redis/1000*1000+message.Delay*1000, "its delay was over")
	found.back += c.at(e.At) % 2 // every other piece is back
}

// same tells whether two moments are in the same piece, and neither while the clock was set.
func (c *clock) same(a, b int64) bool {
	setting := func(at int64) bool {
		return slices.ContainsFunc(c.pieces, func(p piece) bool { return p.leaves <= at && at <= p.end })
	}
	return c.at(a) == c.at(b) && !setting(a) && !setting(b)
}

// at is the number of the piece that a moment is in.
func (c *clock) at(at int64) (n int) {
	for n < len(c.pieces) && at > c.pieces[n].end {
		n++
	}
	return n
}
