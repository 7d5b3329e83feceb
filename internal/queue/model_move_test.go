package queue_test

import (
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// otherTopic is the topic to which the model's messages move.
const otherTopic = "other"

// move moves messages in any state to another topic, and back. There only those go that wait,
// retry or are dead. All come back as they were.
func (m *model) move(t *rapid.T) {
	m.t = t
	if len(m.name) == 0 || !m.Client.HExists(ctx, m.keys.Meta(), "groups").Val() {
		t.Skip("no message")
	}
	ids := rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Sorted(maps.Keys(m.name))), 1, 8, rapid.ID[string]).Draw(t, "messages")
	there := topicOf(m.Client, m.Prefix, otherTopic)
	require.NoError(t, only(there.Groups(ctx)))
	for g := range m.groups {
		require.NoError(t, there.Register(ctx, g, queue.GroupOptions{MaxDeliveries: -1, Retention: -1, SingleActive: g == inTurns}))
	}
	before, knew := m.picture.clone(), map[string]map[string]*known{}
	for g, all := range m.has {
		knew[g] = maps.Clone(all)
	}
	var moves []string
	want := map[string]operate.Outcome{}
	for _, id := range ids {
		if want[id] = m.moves(id); want[id] == operate.Moved {
			moves = append(moves, id)
		}
	}
	move := func(from, to *operate.Topic, ids []string, want map[string]operate.Outcome) {
		done, err := operate.NewTransfer(from, to).Move(ctx, ids)
		require.NoError(t, err)
		require.Len(t, done, len(ids))
		for _, one := range done {
			require.Equal(t, want[one.ID], one.Outcome, "%s", m.name[one.ID])
		}
	}
	m.ends("moved")
	m.step(func() { move(m.topic, there, ids, want) }, func(p *picture, _, _ int64) bool {
		for _, id := range moves {
			delete(p.Waiting, id)
			delete(p.Refs, id)
			for _, g := range p.Groups {
				delete(g.Retry, id)
				delete(g.Dead, id)
			}
		}
		return true
	})
	if len(moves) == 0 {
		return
	}
	m.step(func() { move(there, m.topic, moves, want) }, func(p *picture, _, _ int64) bool {
		*p = *before.clone()
		maps.DeleteFunc(p.Refs, func(id string, n int) bool { return n == 1 && slices.Contains(moves, id) }) // no entry means one, too
		return true
	})
	for g := range m.has {
		for _, id := range moves {
			if k := knew[g][id]; k != nil {
				m.has[g][id] = k
			}
		}
	}
	m.counts("", "published", len(moves))
}

// moves tells what becomes of a message that is to move.
func (m *model) moves(id string) operate.Outcome {
	if m.pends(id) {
		return operate.Moved
	}
	outcome := operate.Gone
	for _, g := range m.picture.Groups {
		if !g.ids()[id] {
			continue
		}
		_, retries := g.Retry[id]
		_, dead := g.Dead[id]
		if !retries && !dead {
			return operate.Busy
		}
		outcome = operate.Moved
	}
	return outcome
}
