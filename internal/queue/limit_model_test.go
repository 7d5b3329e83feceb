package queue_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// limitModel claims, settles and loses messages of a group with a limit at random times, and knows
// what the group may have leased.
type limitModel struct {
	*world
	clock time.Time
	limit queue.GroupLimit
	subs  []*sub
	held  []leased
	taken []taking // since the clock was set back, or the limit was changed
	lost  int      // failovers in that time
	saved string   // state of the limit that a replica has
}

// taking is what one claim leased.
type taking struct {
	at int64 // microseconds
	n  int
	of string // the claim
}

// check compares each span of time between two claims with the bound.
func (m *limitModel) check(t *rapid.T) {
	if m.limit.Rate > 0 {
		for i := range m.taken {
			sum := 0
			for _, last := range m.taken[i:] {
				sum += last.n
				bound := float64(m.limit.Burst*(1+m.lost)) + m.limit.Rate*float64(last.at-m.taken[i].at)/1e6
				require.LessOrEqual(t, float64(sum), bound+1e-6, "from %d to %d µs of %v: %v", m.taken[i].at, last.at, m.limit, m.taken)
			}
		}
	}
	if m.limit.AtOnce > 0 && len(m.taken) > 0 {
		leases := m.Client.HLen(ctx, m.keys.Leases("a")).Val()
		require.LessOrEqual(t, leases, int64(m.limit.AtOnce))
	}
}

func (m *limitModel) set(clock time.Time) {
	m.clock = clock
	m.Mini.SetTime(clock)
}

// begin forgets what was claimed before.
func (m *limitModel) begin() { m.taken, m.lost = nil, 0 }

func drawLimit(t *rapid.T) queue.GroupLimit {
	l := queue.GroupLimit{AtOnce: rapid.SampledFrom([]int{0, 0, 1, 3, 10}).Draw(t, "at once")}
	if l.AtOnce == 0 || rapid.Bool().Draw(t, "rate too") {
		l.Rate = rapid.SampledFrom([]float64{queue.LeastRate, 1.0 / 60, 1, 3, 50, 777.7, 30_000, queue.MostRate}).Draw(t, "rate")
		l.Burst = rapid.SampledFrom([]int{1, 2, 5, 40}).Draw(t, "burst")
	}
	return l
}

func TestNoSpanHasMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		m := &limitModel{world: newWorld(t, redistest.Server{Client: client, Mini: mini, Prefix: fmt.Sprint("own", runs)}, "topic")}
		m.set(time.UnixMicro(rapid.Int64Range(1.7e15, 2.2e15).Draw(t, "clock")))
		m.start = 0
		m.limit = drawLimit(t)
		m.limitTo("a", m.limit)
		for range 4 {
			m.subs = append(m.subs, m.sub("a"))
		}
		many := names("%d", 0, 300)
		m.publishNow(many...)
		step := func(run func(t *rapid.T)) func(*rapid.T) { return func(t *rapid.T) { m.t = t; run(t) } }
		t.Repeat(map[string]func(*rapid.T){
			"claim":       step(m.claim),
			"claim again": step(m.claim),
			"claim more":  step(m.claim),
			"settle": step(func(t *rapid.T) {
				l := m.one(t)
				l.sub.ack(l.Leased)
			}),
			"give back": step(func(t *rapid.T) {
				l := m.one(t)
				m.count(l.sub.group.ReleaseCalls([]*queue.Leased{l.Leased}, true)...)
				claim := l.Token[:len(l.Token)-len(afterNumber(l.Token))]
				if i := len(m.taken) - 1; i >= 0 && m.taken[i].of == claim {
					m.taken[i].n--
				}
			}),
			"expire": step(func(t *rapid.T) {
				m.set(m.clock.Add(time.Hour))
				m.expire()
				m.held = nil
			}),
			"promote": step(func(t *rapid.T) { m.promote("scheduler|1") }),
			"pass": step(func(t *rapid.T) {
				span := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, 24 * time.Hour}).Draw(t, "span")
				m.set(m.clock.Add(time.Duration(rapid.Int64Range(0, 3).Draw(t, "times")) * span))
				m.held = slices.DeleteFunc(m.held, func(leased) bool { return span > time.Minute }) // they may be over
			}),
			"set the clock back": step(func(t *rapid.T) {
				m.set(m.clock.Add(-time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "by"))))
				m.begin()
			}),
			"replicate": step(func(t *rapid.T) { m.saved = m.Client.HGet(ctx, m.keys.Limits(), "a").Val() }),
			"fail over": step(func(t *rapid.T) {
				if m.saved == "" {
					m.Client.HDel(ctx, m.keys.Limits(), "a")
				} else {
					m.Client.HSet(ctx, m.keys.Limits(), "a", m.saved)
				}
				m.lost++
			}),
			"set the limit": step(func(t *rapid.T) {
				m.limit = drawLimit(t)
				m.setLimit("a", &m.limit)
				m.begin()
			}),
			"": m.check,
		})
	})
}

// one takes a message out of those that are held.
func (m *limitModel) one(t *rapid.T) leased {
	if len(m.held) == 0 {
		t.Skip("none is held")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "message")
	l := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	return l
}

func (m *limitModel) claim(t *rapid.T) {
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	slots := rapid.IntRange(0, 12).Draw(t, "slots")
	turn := rapid.Bool().Draw(t, "turn")
	ready := m.Client.LLen(ctx, m.keys.Ready("a")).Val()
	before := m.Client.HLen(ctx, m.keys.Leases("a")).Val()
	got := s.claim(rapid.SampledFrom([]int{0, 1, 9, 256}).Draw(t, "limit"), woken(slots, m.Prefix+":nowhere|"+s.id), func(c *queue.Claim) {
		c.Turn, c.Lease, c.Most = turn, 30*time.Minute, 300
	})
	require.LessOrEqual(t, len(got.Messages), slots, "nothing is claimed in advance")
	claim := ""
	for i := range got.Messages {
		l := &got.Messages[i]
		m.held = append(m.held, leased{l, s})
		claim = l.Token[:len(l.Token)-len(afterNumber(l.Token))]
	}
	if len(got.Messages) > 0 {
		m.taken = append(m.taken, taking{m.clock.UnixMicro(), len(got.Messages), claim})
	}
	if turn && slots > 0 && ready > 0 && len(got.Messages) == 0 && got.Waits && m.limit.AtOnce == 0 {
		// One message more has to fit nowhere, or the group is stalled.
		last := math.Inf(-1)
		for _, k := range m.taken {
			last = max(last, float64(k.at))
		}
		if m.lost == 0 && len(m.taken) > 0 {
			require.Less(t, float64(m.clock.UnixMicro())-last, float64(m.limit.Burst)*1e6/m.limit.Rate+1, "%v: %d leases", m.taken, before)
		}
	}
}

// afterNumber is what follows the number of the claim in a token.
func afterNumber(token string) string {
	colons := 0
	for i, c := range token {
		if c == ':' {
			if colons++; colons == 2 {
				return token[i:]
			}
		}
	}
	return ""
}
