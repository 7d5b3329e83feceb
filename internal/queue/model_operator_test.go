package queue_test

import (
	"maps"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// These are the operators' steps in the model test.

// waiting draws a message, most often one that waits, and tells in which groups it waits for a
// retry.
func (m *model) waiting(t *rapid.T) (id string, retries []string) {
	m.t = t
	if len(m.name) == 0 {
		t.Skip("no message")
	}
	all := slices.Sorted(maps.Keys(m.name))
	if waits := slices.Sorted(maps.Keys(m.picture.Waiting)); len(waits) > 0 && rapid.Bool().Draw(t, "pending") {
		all = waits
	}
	id = rapid.SampledFrom(all).Draw(t, "message")
	for name, g := range m.picture.Groups {
		if _, waits := g.Retry[id]; waits {
			retries = append(retries, name)
		}
	}
	return id, retries
}

// refused is how an operation on a message that does not wait ends.
func (m *model) refused(id string) error {
	if m.picture.ids()[id] {
		return operate.ErrTooLate
	}
	return queue.ErrNotFound
}

func (m *model) cancel(t *rapid.T) {
	id, retries := m.waiting(t)
	pending := m.pends(id)
	if !pending && len(retries) == 0 {
		want := m.refused(id)
		m.still(func() { require.ErrorIs(t, m.topic.Cancel(ctx, operate.Ref{ID: id}), want) })
		return
	}
	m.ends("cancelled")
	m.step(func() { require.NoError(t, m.topic.Cancel(ctx, operate.Ref{ID: id})) }, func(p *picture, _, _ int64) bool {
		delete(p.Waiting, id)
		for _, g := range retries {
			delete(p.Groups[g].Retry, id)
			p.drop(id)
		}
		return true
	})
	if !m.picture.ids()[id] {
		m.forgetName(id)
	}
}

func (m *model) reschedule(t *rapid.T) {
	id, retries := m.waiting(t)
	m.rescheduleTo(t, id, retries, rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "delay"))
}

func (m *model) rescheduleTo(t *rapid.T, id string, retries []string, wait time.Duration) {
	began := m.now()
	names, refused, unsure := m.renamed(id, wait, began)
	if unsure {
		t.Skip("nobody knows who has the delay id")
	}
	reschedule := func() error { return m.topic.Reschedule(ctx, operate.Ref{ID: id}, queue.In(wait)) }
	switch {
	case refused:
		m.still(func() { require.ErrorIs(t, reschedule(), queue.ErrExists) })
	case !m.pends(id) && len(retries) == 0:
		want := m.refused(id)
		m.still(func() { require.ErrorIs(t, reschedule(), want) })
	default:
		m.step(func() { require.NoError(t, reschedule()) }, func(p *picture, now, up int64) bool {
			due := now
			if wait > 0 {
				due = up + wait.Milliseconds()
			}
			if _, pends := p.Waiting[id]; pends {
				p.Waiting[id] = due
			}
			for _, g := range retries {
				p.Groups[g].Retry[id] = due
			}
			return true
		})
		m.named(names, began)
	}
}

// letter draws a dead letter.
func (m *model) letter(t *rapid.T) (group, id string) {
	m.t = t
	for _, name := range slices.Sorted(maps.Keys(m.picture.Groups)) {
		if dead := m.picture.Groups[name].Dead; len(dead) > 0 {
			return name, rapid.SampledFrom(slices.Sorted(maps.Keys(dead))).Draw(t, "dead letter")
		}
	}
	t.Skip("nothing is dead")
	return "", ""
}

func (m *model) requeue(t *rapid.T) {
	g, id := m.letter(t)
	m.step(func() {
		n, err := m.topic.Group(g).Requeue(ctx, []string{id, id})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}, func(p *picture, now, _ int64) bool {
		delete(p.Groups[g].Dead, id)
		p.Groups[g].Retry[id] = now
		return true
	})
	*m.has[g][id] = known{}
	m.unchanged(func() {
		n, err := m.topic.Group(g).Requeue(ctx, []string{id})
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func (m *model) discard(t *rapid.T) {
	g, id := m.letter(t)
	m.ends("deleted")
	m.step(func() {
		n, err := m.topic.Group(g).Discard(ctx, []string{id})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}, func(p *picture, _, _ int64) bool {
		delete(p.Groups[g].Dead, id)
		p.drop(id)
		return true
	})
}

// kill kills a message that is not ready. The model knows no entries that are out of force.
func (m *model) kill(t *rapid.T) {
	m.t = t
	if len(m.name) == 0 || len(m.subs) == 0 {
		t.Skip("no message or no group")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.name))).Draw(t, "message")
	g := rapid.SampledFrom(m.subs).Draw(t, "of").group.Name
	in := m.picture.Groups[g]
	if in == nil || slices.ContainsFunc(in.Ready, func(r readied) bool { return r.ID == id }) {
		t.Skip("it is ready, or the group is gone")
	}
	kill := func() (string, error) { return m.topic.Kill(ctx, g, id, "killed") }
	_, pends := m.picture.Waiting[id]
	_, held := in.InHand[id]
	_, retries := in.Retry[id]
	_, dead := in.Dead[id]
	var want string
	switch {
	case pends:
		want = operate.Waiting
	case held:
		want = operate.InHand
	case retries:
		want = operate.Retrying
	case dead:
		m.unchanged(func() {
			state, err := kill()
			require.NoError(t, err)
			require.Equal(t, operate.Dead, state)
		})
		return
	default:
		m.still(func() { require.ErrorIs(t, only(kill()), queue.ErrNotFound) })
		return
	}
	m.inHand = slices.DeleteFunc(m.inHand, func(l leased) bool { return l.ID == id && l.sub.group.Name == g })
	if k := m.has[g][id]; k != nil {
		*k = known{count: k.count}
	}
	died := []string{g}
	if pends {
		died = slices.Collect(maps.Keys(m.picture.Groups))
	}
	for _, group := range died {
		m.counts(group, "dead_killed", 1)
	}
	m.step(func() {
		state, err := kill()
		require.NoError(t, err)
		require.Equal(t, want, state)
	}, func(p *picture, now, _ int64) bool {
		delete(p.Groups[g].InHand, id)
		delete(p.Groups[g].Retry, id)
		p.Groups[g].Dead[id] = now
		if pends {
			delete(p.Waiting, id)
			for _, other := range p.Groups {
				other.Dead[id] = now
			}
			if len(p.Groups) > 1 {
				p.Refs[id] = len(p.Groups)
			}
		}
		return true
	})
	if pends {
		m.forgetName(id)
	}
}

func (m *model) pause(t *rapid.T) {
	m.t = t
	if len(m.subs) == 0 {
		t.Skip("no groups")
	}
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	which := rapid.SampledFrom([]string{"", s.group.Name}).Draw(t, "paused")
	m.still(func() {
		lasts := rapid.SampledFrom([]time.Duration{0, 24 * time.Hour}).Draw(t, "lasts")
		require.NoError(t, only(m.topic.Pause(ctx, which, "ann", "why", lasts)))
		require.Empty(t, s.claim(9, idle(9, "nobody|"+s.id)).Messages)
		ended, more, err := m.topic.EndPauses(ctx)
		require.NoError(t, err)
		require.Empty(t, ended, "it is not over")
		require.False(t, more)
		require.NoError(t, only(m.topic.Resume(ctx, which)))
	})
}

func (m *model) audit(t *rapid.T) {
	m.t = t
	if !m.Client.HExists(ctx, m.keys.Meta(), "groups").Val() {
		t.Skip("no topic")
	}
	audit, err := m.topic.Audit(ctx)
	require.NoError(t, err)
	require.Empty(t, audit.Violations)
	require.Zero(t, audit.Unconfirmed)
}
