package queue_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// This is how the model treats delay IDs.

// delayIDs are those that the model publishes under.
var delayIDs = []string{"x", "a b:c"}

// nameOf is the delay ID of a message.
type nameOf struct {
	owner string // id of the message
	free  int64  // ms by the server's clock, as Redis has it
}

// drawName gives some messages a delay ID, and a due time for that: wait says when.
func (m *model) drawName(t *rapid.T, message *message, wait *time.Duration) {
	if rapid.IntRange(0, 2).Draw(t, "named") > 0 {
		return
	}
	name := rapid.SampledFrom(delayIDs).Draw(t, "delay id")
	if m.unsure(name) {
		return
	}
	message.options.DelayID = name
	message.options.Mode = rapid.SampledFrom([]queue.Mode{queue.Replace, queue.Replace, queue.Keep, queue.Reject}).Draw(t, "mode")
	message.options.Window = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "window")
	*wait = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "wait")
	message.due = queue.In(*wait)
	if *wait == 0 && rapid.Bool().Draw(t, "at an instant that is past") {
		message.due = queue.At(time.UnixMilli(1))
	}
}

// unsure tells of a delay ID whether it, or its message, is about to be due: on a server whose
// clock runs, nobody can say which is the case when a script looks.
func (m *model) unsure(name string) bool {
	n := m.taken[name]
	if n == nil || m.Mini != nil {
		return false
	}
	near := func(at int64) bool { return max(at-m.now(), m.now()-at) < 10_000 }
	return near(n.free) || near(m.due(n.owner))
}

// due is when a waiting message is due, or 0.
func (m *model) due(id string) int64 { return m.picture.Waiting[id] }

// pends tells whether a message is waiting.
func (m *model) pends(id string) bool {
	_, ok := m.picture.Waiting[id]
	return ok
}

// hasName tells who has a delay ID at a time.
func (m *model) hasName(name string, now int64) (owner string, taken bool) {
	if n := m.taken[name]; n != nil && n.free > now {
		return n.owner, true
	}
	return "", false
}

// A plan is what becomes of a call of publish.
type plan struct {
	refused  bool
	leftOut  map[string]bool    // ids of its messages that are not taken in, or not for long
	replaced []string           // ids of messages that waited
	kept     int                // messages that are left out because others have their delay IDs
	own      int                // messages of the call that others of the call replace
	names    map[string]*nameOf // as they are then, if the script looks at once
}

// plan foresees a call at a time, as if its messages were published one after the other.
func (m *model) plan(made []queue.Message, waits []time.Duration, now int64) plan {
	p := plan{leftOut: map[string]bool{}, names: map[string]*nameOf{}}
	for i, message := range made {
		o := message.Options
		if o.DelayID == "" {
			continue
		}
		before, taken := m.hasName(o.DelayID, now)
		if n := p.names[o.DelayID]; n != nil {
			before, taken = n.owner, n.free > now
		}
		switch {
		case taken && o.Mode == queue.Reject:
			return plan{refused: true}
		case taken && o.Mode == queue.Keep:
			p.leftOut[message.ID] = true
			p.kept++
			continue
		case taken:
			own := slices.IndexFunc(made, func(other queue.Message) bool { return other.ID == before })
			switch {
			case own >= 0 && waits[own] > 0:
				p.leftOut[before] = true
				p.own++
			case own < 0 && m.due(before) > now:
				p.replaced = append(p.replaced, before)
			}
		}
		p.names[o.DelayID] = &nameOf{message.ID, now + waits[i].Milliseconds() + o.Window.Milliseconds()}
	}
	return p
}

// named takes in what a call that began at a time has made of delay IDs.
func (m *model) named(names map[string]*nameOf, began int64) {
	for name, want := range names {
		stored := url.QueryEscape(name)
		owner, free := m.Client.HGet(ctx, m.keys.Names(), stored).Val(), int64(m.Client.ZScore(ctx, m.keys.Taken(), stored).Val())
		if want.free <= began { // free at once, and so perhaps not there
			delete(m.taken, name)
			continue
		}
		require.Equal(m.t, m.name[want.owner], m.name[owner], "who has %q", name)
		require.GreaterOrEqual(m.t, free, want.free)
		require.LessOrEqual(m.t, free, want.free+m.now()-began+1) // rounded up
		m.taken[name] = &nameOf{owner, free}
	}
}

// checkNames compares the delay IDs that are taken.
func (m *model) checkNames() {
	now := m.now()
	for name, n := range m.taken {
		if n.free <= now {
			continue
		}
		stored := url.QueryEscape(name)
		owner, free := m.Client.HGet(ctx, m.keys.Names(), stored).Val(), int64(m.Client.ZScore(ctx, m.keys.Taken(), stored).Val())
		if n.free > m.now() { // still
			require.Equal(m.t, *n, nameOf{owner, free}, "who has %q", name)
		}
	}
	for _, stored := range m.Client.ZRangeByScore(ctx, m.keys.Taken(), above(m.now())).Val() {
		name, err := url.QueryUnescape(stored)
		require.NoError(m.t, err)
		require.Contains(m.t, m.taken, name)
	}
}

// elapse has time go by.
func (m *model) elapse(d time.Duration) {
	m.step(func() { m.world.travel(d) }, func(p *picture, _, _ int64) bool {
		if m.Mini == nil {
			p.shift(d.Milliseconds())
		}
		return true
	})
	if m.Mini == nil { // where everything moves instead of the clock
		for _, n := range m.taken {
			n.free -= d.Milliseconds()
		}
	}
}

// forgetName frees the delay ID of a message that is not waiting any more.
func (m *model) forgetName(id string) {
	maps.DeleteFunc(m.taken, func(_ string, n *nameOf) bool { return n.owner == id })
}

// cancelNamed cancels by a delay ID.
func (m *model) cancelNamed(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(delayIDs).Draw(t, "delay id")
	if m.unsure(name) || !m.Client.HExists(ctx, m.keys.Meta(), "groups").Val() {
		t.Skip("nobody knows")
	}
	cancel := func() error { return m.topic.Cancel(ctx, operate.Ref{DelayID: name}) }
	owner, taken := m.hasName(name, m.now())
	switch {
	case !taken:
		m.still(func() { require.ErrorIs(t, cancel(), queue.ErrNotFound) })
	case m.due(owner) <= m.now():
		m.still(func() { require.ErrorIs(t, cancel(), operate.ErrTooLate) })
	default:
		m.ends("cancelled")
		m.step(func() { require.NoError(t, cancel()) }, func(p *picture, _, _ int64) bool {
			delete(p.Waiting, owner)
			return true
		})
		m.forgetName(owner)
		m.unchanged(func() { require.ErrorIs(t, cancel(), queue.ErrNotFound) })
	}
}

// renamed foresees what a new due time of a waiting message makes of its delay ID. It is refused if
// another message has that by now.
func (m *model) renamed(id string, wait time.Duration, now int64) (names map[string]*nameOf, refused, unsure bool) {
	o := m.options[id]
	if !m.pends(id) || o.DelayID == "" {
		return nil, false, false
	}
	if m.unsure(o.DelayID) {
		return nil, false, true
	}
	if owner, taken := m.hasName(o.DelayID, now); taken && owner != id {
		return nil, true, false
	}
	return map[string]*nameOf{o.DelayID: {id, now + (wait + o.Window).Milliseconds()}}, false, false
}

// outlive has a message wait beyond the end of its delay ID, which another has by then, and gives
// it another due time.
func (m *model) outlive(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(delayIDs).Draw(t, "delay id")
	if m.unsure(name) {
		t.Skip("nobody knows")
	}
	put := func(wait time.Duration) string {
		options := queue.Options{DelayID: name, Mode: queue.Replace}
		made := m.publishAll([]message{{fmt.Sprintf("m%d", m.calls), queue.In(wait), options}}, []time.Duration{wait})
		return made[0].ID
	}
	first := put(time.Minute)
	m.elapse(2 * time.Minute)
	put(time.Hour)
	m.rescheduleTo(t, first, nil, time.Hour)
}

func above(ms int64) *redis.ZRangeBy {
	return &redis.ZRangeBy{Min: fmt.Sprintf("(%d", ms), Max: "+inf"}
}
