package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// After any operations in any order, a message is in one place, and in the stream once and not
// early. No message is gone that may not be.
func TestAnyOrderOfTransitionsOfATopicWithAStream(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		runs, prefix := 0, s.Prefix
		rapid.Check(t, func(t *rapid.T) {
			runs++
			s.Prefix = fmt.Sprint(prefix, "-", runs)
			m := &streamModel{world: newWorld(t, s, "topic").streaming(queue.StreamOptions{Retention: -1}), messages: map[string]*flowing{}}
			t.Repeat(map[string]func(*rapid.T){
				"":           m.check,
				"publish":    m.publish,
				"promote":    m.move,
				"travel":     m.travel,
				"cancel":     m.cancel,
				"reschedule": m.reschedule,
				"requeue":    m.requeue,
				"discard":    m.discard,
				"pause":      m.pause,
				"open":       m.open,
				"purge":      m.purge,
			})
		})
	})
}

// flowing is a message of the model.
type flowing struct {
	message
	due  int64 // by the server's clock, at least
	seen string
}

type streamModel struct {
	*world
	messages map[string]*flowing // by name
	may      map[string]bool     // which may be gone by what was done last
	paused   bool
	most     int // dead messages that are kept; 0: no limit

	asked, gone, moved, late int // messages: of all calls, deleted by operators, moved after a wait, dead because it was late
}

func (m *streamModel) check(t *rapid.T) {
	m.t = t
	places, there := map[string][]string{}, 0
	for place, names := range map[string][]string{"stream": m.entries(), "pending": m.pending(),
		"retry": m.zset(m.keys.Retry(queue.StreamGroup)), "dead": m.dead(queue.StreamGroup)} {
		for _, name := range names {
			places[name] = append(places[name], place)
			there++
		}
	}
	for name, f := range m.messages {
		switch at := places[name]; {
		case f.seen == "gone" || (len(at) == 0 && m.may[name]):
			require.Empty(t, at, "%s comes back", name)
			f.seen = "gone"
		default:
			require.Len(t, at, 1, "%s was in %q, and is in", name, f.seen)
			if f.seen == "stream" {
				require.Equal(t, "stream", at[0], "%s leaves the stream", name)
			}
			if at[0] == "stream" && f.seen != "stream" {
				require.False(t, m.paused, "%s moves during a pause", name)
				require.LessOrEqual(t, f.due, m.now(), "%s is early", name)
			}
			switch {
			case f.seen != "" && f.seen != "stream" && at[0] == "stream":
				m.moved++
			case f.seen != "dead" && at[0] == "dead":
				m.late++
			}
			f.seen = at[0]
		}
		delete(places, name)
	}
	require.Empty(t, places, "of no message")
	m.checkCounters(t, there)
	m.may = map[string]bool{}
	found, err := queuetest.Violations(ctx, m.Client, m.Prefix)
	if err != nil {
		t.Fatalf("%v", err)
	}
	require.Empty(t, found)
}

// checkCounters compares counters with the messages there, and those that are gone.
func (m *streamModel) checkCounters(t *rapid.T, there int) {
	c := must(m.topic.Stats(ctx))
	g := c.Groups[0]
	require.Equal(t, m.asked, c.Counter("published")+c.Counter("left_out"))
	require.Equal(t, c.Counter("published"), there+c.Counter("replaced")+g.Counter("dropped")+g.Counter("dead_purged")+m.gone)
	require.Equal(t, m.moved, delivered(g))
	require.Equal(t, m.late, g.Counter("dead_late"))
	require.Equal(t, m.late, died(g))
}

func (m *streamModel) publish(t *rapid.T) {
	m.t = t
	var call []message
	var delays []time.Duration
	for range rapid.IntRange(1, 4).Draw(t, "messages") {
		delay := time.Duration(rapid.IntRange(0, 3).Draw(t, "minutes")) * time.Minute
		msg := in(fmt.Sprint("m", m.calls, ".", len(call)), delay)
		delays = append(delays, delay)
		if id := rapid.SampledFrom([]string{"", "", "p", "q"}).Draw(t, "delay id"); id != "" {
			mode := rapid.SampledFrom([]queue.Mode{queue.Replace, queue.Keep, queue.Reject}).Draw(t, "mode")
			msg = under(msg, id, mode, time.Duration(rapid.IntRange(0, 1).Draw(t, "window"))*time.Minute)
		}
		if rapid.Bool().Draw(t, "expires") {
			msg.options.Expiry = queue.Expiry{Lateness: 30 * time.Second, Dead: rapid.Bool().Draw(t, "dead")}
		}
		call = append(call, msg)
	}
	before := m.now()
	err := m.trySend(call...)
	if errors.Is(err, queue.ErrExists) {
		return // and check finds none of them
	}
	require.NoError(t, err)
	m.asked += len(call)
	for i, msg := range call {
		m.messages[msg.name] = &flowing{message: msg, due: before + delays[i].Milliseconds()}
	}
	for name, f := range m.messages { // the ID may keep it out, or have it replaced
		if slices.ContainsFunc(call, func(msg message) bool {
			return msg.options.DelayID != "" && msg.options.DelayID == f.options.DelayID
		}) {
			m.may[name] = true
		}
	}
}

func (m *streamModel) move(t *rapid.T) {
	m.t = t
	now := m.now()
	m.promote(fmt.Sprint("s|", rapid.IntRange(1, 2).Draw(t, "scheduler")))
	for name, f := range m.messages {
		m.may[name] = f.seen == "pending" && f.options.Expiry.Lateness > 0 && !f.options.Expiry.Dead && f.due+29_000 <= now
	}
}

func (m *streamModel) travel(t *rapid.T) {
	m.t = t
	d := time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second
	m.world.travel(d)
	if m.Mini == nil { // what is stored has moved, not the clock
		for _, f := range m.messages {
			f.due -= d.Milliseconds()
		}
	}
}

// seenIn returns the messages that were seen in a place, or skips the step.
func (m *streamModel) seenIn(t *rapid.T, place string) []string {
	m.t = t
	var names []string
	for name, f := range m.messages {
		if f.seen == place {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Skip()
	}
	slices.Sort(names)
	return names
}

func (m *streamModel) cancel(t *rapid.T) {
	name := rapid.SampledFrom(m.seenIn(t, "pending")).Draw(t, "message")
	require.NoError(t, m.topic.Cancel(ctx, operate.Ref{ID: m.id[name]}))
	m.gone++
	m.may[name] = true
}

func (m *streamModel) reschedule(t *rapid.T) {
	name := rapid.SampledFrom(m.seenIn(t, "pending")).Draw(t, "message")
	before := m.now()
	err := m.topic.Reschedule(ctx, operate.Ref{ID: m.id[name]}, queue.In(time.Minute))
	if !errors.Is(err, queue.ErrExists) {
		require.NoError(t, err)
		m.messages[name].due = before + 60_000
	}
}

func (m *streamModel) requeue(t *rapid.T) {
	name := rapid.SampledFrom(m.seenIn(t, "dead")).Draw(t, "message")
	require.Equal(t, 1, must(m.topic.Group(queue.StreamGroup).Requeue(ctx, []string{m.id[name]})))
}

func (m *streamModel) discard(t *rapid.T) {
	name := rapid.SampledFrom(m.seenIn(t, "dead")).Draw(t, "message")
	require.Equal(t, 1, must(m.topic.Group(queue.StreamGroup).Discard(ctx, []string{m.id[name]})))
	m.gone++
	m.may[name] = true
}

func (m *streamModel) pause(t *rapid.T) {
	m.t = t
	if m.paused {
		require.True(t, must(m.topic.Resume(ctx, "")))
	} else {
		require.NoError(t, only(m.topic.Pause(ctx, "", "", "", 0)))
	}
	m.paused = !m.paused
}

// open has another process use the topic.
func (m *streamModel) open(t *rapid.T) {
	m.t = t
	m.most = rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "max dead")
	m.retarget(m.topic.Name, queue.StreamOptions{Retention: -1, MaxDead: m.most, MaxLen: rapid.Int64Range(0, 1).Draw(t, "long") * 100_000})
	require.NoError(t, only(m.topic.Groups(ctx)))
}

func (m *streamModel) purge(t *rapid.T) {
	m.t = t
	before := m.dead(queue.StreamGroup)
	require.False(t, m.world.purge())
	left := m.dead(queue.StreamGroup)
	many := max(len(before)-m.most, 0)
	if m.most == 0 {
		many = 0
	}
	require.Equal(t, before[many:], left)
	for _, name := range before[:many] {
		m.may[name] = true
	}
}
