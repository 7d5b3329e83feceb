package queue_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Groups come and go at random times, with and without a window, while messages are published,
// become due, are settled and cancelled. Each group gets what the model says, in order and once,
// and in the end nothing is left.
func TestGroupsThatComeAtAnyTime(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		prefix, runs, outer := s.Prefix, 0, t
		rapid.Check(t, func(t *rapid.T) {
			runs++
			s.Prefix = fmt.Sprint(prefix, ":", runs)
			m := &windowModel{outer: outer, world: newWorld(t, s, "topic"), has: map[string]*hasGot{}}
			t.Repeat(map[string]func(*rapid.T){
				"publish": m.publishSome, "join": m.joinOne, "take": m.takeSome, "cancel": m.cancelOne,
				"remove": m.removeOne, "pass": m.passTime, "step": m.stepOnly,
				"": func(t *rapid.T) { m.t = t; queuetest.Check(outer, s.Client, s.Prefix) },
			})
			m.t = t
			m.finish(t)
		})
	})
}

// windowModel says what each group is to get.
type windowModel struct {
	*world
	outer  *testing.T
	n      int
	waits  []string // published while there was no group
	has    map[string]*hasGot
	open   bool     // whether there is a window
	ends   int64    // when, in ms
	inside []string // what it has
}

// hasGot is what a group is to get, and what it got.
type hasGot struct{ want, got []string }

func (m *windowModel) enter(names ...string) {
	if len(m.has) == 0 {
		m.waits = append(m.waits, names...)
		return
	}
	for _, g := range m.has {
		g.want = append(g.want, names...)
	}
	if m.isOpen() {
		m.inside = append(m.inside, names...)
	}
}

func (m *windowModel) isOpen() bool { return m.open && m.now() < m.ends }

func (m *windowModel) publishSome(t *rapid.T) {
	m.t = t
	var names []string
	for range rapid.SampledFrom([]int{1, 3, 700}).Draw(t, "messages") {
		m.n++
		names = append(names, fmt.Sprint("m", m.n))
	}
	if rapid.Bool().Draw(t, "delayed") {
		m.publish(in(names[0], time.Millisecond))
		m.pass(2 * time.Millisecond)
		if len(m.has) > 0 {
			m.promoteAll()
		}
		names = names[:1]
	} else {
		m.publishNow(names...)
	}
	m.enter(names...)
}

var windowGroups = []string{"a", "b", "c", "broadcast:d"}

func (m *windowModel) joinOne(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(windowGroups).Draw(t, "group")
	if m.has[name] != nil {
		t.Skip("it is there")
	}
	options := standard
	if name != "broadcast:d" {
		options.Window = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "window")
	}
	got, err := m.topic.Join(ctx, name, options)
	require.NoError(t, err)
	g, want := &hasGot{}, queue.Registered{}
	lasting := slices.ContainsFunc(slices.Collect(maps.Keys(m.has)), func(g string) bool { return g != "broadcast:d" })
	switch {
	case len(m.has) == 0:
		g.want, want.Waited = slices.Clone(m.waits), len(m.waits)
	case options.Window > 0 && m.isOpen():
		g.want, want.Taken = slices.Clone(m.inside), len(m.inside)
	}
	if want.Taken == 0 && !lasting && (len(m.has) == 0 || options.Window == 0 || !m.isOpen()) {
		m.open, m.inside = options.Window > 0, nil
		if m.open {
			_, err := fmt.Sscanf(m.window(), "window:%d", &m.ends)
			require.NoError(t, err)
		}
		if len(m.has) == 0 {
			m.inside = slices.Clone(m.waits)
		}
	}
	require.Equal(t, want, got)
	m.has[name] = g
	m.waits = nil
	m.promoteAll()
}

// stepOnly copies a part of the window for a group, whose process then ends.
func (m *windowModel) stepOnly(t *rapid.T) {
	m.t = t
	if len(m.inside) <= 1100 || !m.isOpen() || m.has["c"] != nil || len(m.has) == 0 {
		t.Skip("no large window")
	}
	call := m.topic.JoinCall("c", windowed(time.Minute), m.window())
	m.do(call)
	if reply := call.Reply().([]any); reply[0] == "ok" {
		m.has["c"] = &hasGot{want: slices.Clone(m.inside)}
	}
}

func (m *windowModel) takeSome(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(windowGroups).Draw(t, "group")
	if m.has[name] == nil {
		t.Skip("no group")
	}
	s := m.sub(name)
	claimed := s.claim(rapid.IntRange(1, 500).Draw(t, "messages"))
	m.has[name].got = append(m.has[name].got, bodies(claimed)...)
	s.ack(held(claimed)...)
}

// cancelOne has a group retry its next message, and cancels it. The group has had it then.
func (m *windowModel) cancelOne(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(windowGroups).Draw(t, "group")
	if m.has[name] == nil {
		t.Skip("no group")
	}
	s := m.sub(name)
	claimed := s.claim(1)
	if len(claimed.Messages) == 0 {
		t.Skip("no message")
	}
	s.nack(failed(&claimed.Messages[0], after(time.Hour)))
	gone := bodies(claimed)[0]
	require.NoError(t, m.topic.Cancel(ctx, operate.Ref{ID: m.id[gone]}))
	m.has[name].got = append(m.has[name].got, gone)
	m.inside = slices.DeleteFunc(m.inside, func(name string) bool { return name == gone })
}

func (m *windowModel) removeOne(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(windowGroups).Draw(t, "group")
	if m.has[name] == nil || rapid.IntRange(0, 2).Draw(t, "seldom") > 0 {
		t.Skip("no group")
	}
	require.NoError(t, m.topic.Remove(ctx, name))
	delete(m.has, name)
	if len(m.has) == 0 {
		m.open, m.inside = false, nil
	}
}

// passTime has time pass, on the embedded server, and a scheduler look.
func (m *windowModel) passTime(t *rapid.T) {
	m.t = t
	if m.Mini != nil {
		m.pass(rapid.SampledFrom([]time.Duration{time.Millisecond, 11 * time.Second, 2 * time.Minute}).Draw(t, "time"))
	}
	m.sweepUnused()
}

// finish has every group get all that it is to get, removes all, and finds nothing left.
func (m *windowModel) finish(t *rapid.T) {
	for name, g := range m.has {
		g.got = append(g.got, m.takeAll(name)...)
		sameOrder(t, g.want, g.got)
		require.NoError(t, m.topic.Remove(ctx, name))
	}
	if m.Mini != nil {
		m.pass(11 * time.Second) // the end of copies
	} else {
		for _, name := range must(m.topic.Removing(ctx)) {
			require.NoError(t, m.Client.ZAddXX(ctx, m.keys.Idle(), redis.Z{Score: 1, Member: name}).Err())
		}
	}
	m.sweepUnused()
	require.NoError(t, m.topic.Register(ctx, "last", standard))
	m.promoteAll()
	require.Len(t, m.takeAll("last"), len(m.waits))
	require.Empty(t, m.stored())
	require.Zero(t, m.Client.Exists(ctx, m.keys.Refs(), m.keys.Idle()).Val())
	queuetest.Check(m.outer, m.Client, m.Prefix)
}
