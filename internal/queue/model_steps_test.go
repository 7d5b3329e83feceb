package queue_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// What the model test does, and what the model makes of it.

func (m *model) register(t *rapid.T) {
	m.t = t
	g := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "group")
	options := queue.GroupOptions{MaxDeliveries: rapid.SampledFrom([]int{-1, 1, 2, 5}).Draw(t, "max deliveries"),
		Retention: rapid.SampledFrom([]time.Duration{-1, 0, time.Minute, time.Hour}).Draw(t, "retention"),
		Expiry:    rapid.SampledFrom([]time.Duration{0, 0, 0, time.Hour}).Draw(t, "expiry")}
	// By another process, so that this one's set is stale.
	topic := queue.NewTopic(m.Client, m.Prefix, m.topic.Name)
	require.NoError(t, topic.Register(ctx, g, options))
	if options.Expiry == 0 || m.Mini != nil {
		m.unchanged(func() { require.NoError(t, topic.Register(ctx, g, options)) })
	}
	if m.has[g] == nil {
		m.has[g], m.dead[g] = map[string]*known{}, map[string]bool{}
		m.subs = append(m.subs, m.sub(g), m.sub(g))
	}
	m.groups[g] = options
}

func (m *model) publish(t *rapid.T) {
	m.t = t
	var messages []message
	var waits []time.Duration
	for i := range rapid.IntRange(0, 5).Draw(t, "messages") {
		name := fmt.Sprintf("m%d.%d", m.calls, i)
		due := rapid.SampledFrom([]queue.Due{{}, {}, queue.In(time.Second), queue.In(time.Minute),
			queue.In(time.Hour), queue.At(time.UnixMilli(1))}).Draw(t, "due")
		limit := rapid.SampledFrom([]int{0, 0, 1, 2, -1}).Draw(t, "own limit")
		next, wait := message{name, due, queue.Options{MaxDeliveries: limit}}, time.Duration(0)
		m.drawName(t, &next, &wait)
		messages = append(messages, next)
		waits = append(waits, wait)
	}
	made := m.make(messages...)
	m.calls++
	began := m.now()
	plan := m.plan(made, waits, began)
	if plan.refused {
		m.unchanged(func() { require.ErrorIs(t, m.topic.Publish(ctx, "PUBLISHER", m.calls, made), queue.ErrExists) })
		return
	}
	publish := func() { require.NoError(t, m.topic.Publish(ctx, "PUBLISHER", m.calls, made)) }
	publish()
	for _, message := range made {
		if !plan.leftOut[message.ID] {
			m.options[message.ID] = message.Options
			m.pending[message.ID] = true
		}
	}
	for _, id := range plan.replaced {
		delete(m.pending, id)
	}
	m.named(plan.names, began)
	m.moved()
	m.unchanged(publish)
}

func (m *model) promote(t *rapid.T) {
	m.t = t
	before := map[string][]string{}
	for g := range m.groups {
		before[g] = m.Client.LRange(ctx, m.keys.Ready(g), 0, -1).Val()
	}
	turn := m.world.promote(rapid.SampledFrom([]string{"s|1", "s|2", "s|3"}).Draw(t, "scheduler"))
	m.moved()
	for g := range m.groups {
		after := m.Client.LRange(ctx, m.keys.Ready(g), 0, -1).Val()
		require.Equal(t, before[g], after[:len(before[g])])
		added := after[len(before[g]):]
		require.True(t, slices.IsSortedFunc(added, func(a, b string) int {
			idA, dueA, _ := strings.Cut(a, ":")
			idB, dueB, _ := strings.Cut(b, ":")
			x, _ := strconv.Atoi(dueA)
			y, _ := strconv.Atoi(dueB)
			return cmp.Or(cmp.Compare(x, y), cmp.Compare(idA, idB))
		}), "%q", added)
		if turn.Role != queue.Holder {
			require.Empty(t, added)
		}
	}
	if turn.Role == queue.Holder && m.Mini != nil {
		require.False(t, len(m.groups) > 0 && m.anyDue())
	}
	if turn.Unused != "" {
		require.Positive(t, m.groups[turn.Unused].Expiry)
		more, err := m.topic.RemoveUnused(ctx, turn.Unused)
		require.NoError(t, err)
		require.False(t, more)
		m.removed(turn.Unused)
	}
	if rapid.Bool().Draw(t, "resigns") {
		m.do(m.topic.ResignCall("s|1"))
	}
}

func (m *model) claim(t *rapid.T) {
	m.t = t
	if len(m.subs) == 0 {
		t.Skip("no groups")
	}
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	g := s.group.Name
	ready := m.Client.LRange(ctx, m.keys.Ready(g), 0, -1).Val()
	limit := rapid.IntRange(0, 6).Draw(t, "limit")
	c := s.query(limit, lease(rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(t, "lease")),
		idle(rapid.IntRange(0, 9).Draw(t, "slots"), "nobody|"+s.id))
	c.Busy = rapid.Bool().Draw(t, "busy")
	c.Expiry = m.groups[g].Expiry
	claimed := s.ask(c)

	want := []string{}
	for i, entry := range ready[:min(limit, len(ready))] {
		id, _, _ := strings.Cut(entry, ":")
		suspect := m.has[g][id].suspect
		if suspect && (i > 0 || c.Busy) {
			require.Equal(t, i == 0, claimed.Blocked)
			break
		}
		want = append(want, m.name[id])
		if suspect {
			break
		}
	}
	require.Equal(t, want, bodies(claimed))
	require.Equal(t, len(ready) > len(want), claimed.More)
	require.Equal(t, !claimed.More && len(want) < c.Slots, claimed.Waits)
	for i := range claimed.Messages {
		m.inHand = append(m.inHand, leased{&claimed.Messages[i], s})
		k := *m.has[g][claimed.Messages[i].ID]
		require.Equal(t, k, known{claimed.Messages[i].Deliveries, claimed.Messages[i].Suspect})
	}
	if len(want) > 0 {
		m.unchanged(func() {
			again := s.ask(c)
			again.Waits = claimed.Waits
			require.Equal(t, claimed, again)
		})
	}
}

// take takes some messages of one subscription out of hand, in order.
func (m *model) take(t *rapid.T) (s *sub, taken []*queue.Leased) {
	m.t = t
	if len(m.inHand) == 0 {
		t.Skip("nothing in hand")
	}
	s = rapid.SampledFrom(m.inHand).Draw(t, "message of").sub
	var left []leased
	for _, l := range m.inHand {
		if l.sub == s && rapid.Bool().Draw(t, "takes "+m.name[l.ID]) {
			taken = append(taken, l.Leased)
		} else {
			left = append(left, l)
		}
	}
	m.inHand = left
	return s, taken
}

// settle settles messages, twice.
func (m *model) settle(calls []*queue.Call, want int) {
	require.Equal(m.t, want, m.count(calls...))
	m.unchanged(func() { require.Zero(m.t, m.count(calls...)) })
}

func (m *model) ack(t *rapid.T) {
	s, taken := m.take(t)
	m.settle(s.group.AckCalls(taken), len(taken))
	for _, l := range taken {
		delete(m.has[s.group.Name], l.ID)
	}
}

func (m *model) release(t *rapid.T) {
	s, taken := m.take(t)
	m.settle(s.group.ReleaseCalls(taken), len(taken))
}

func (m *model) nack(t *rapid.T) {
	s, taken := m.take(t)
	g := s.group.Name
	var failures []queue.Failure
	for _, l := range taken {
		f := queue.Failure{Leased: l, Limit: cmp.Or(m.options[l.ID].MaxDeliveries, m.groups[g].MaxDeliveries),
			Retry: queue.In(rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "delay")),
			Dead:  rapid.IntRange(0, 9).Draw(t, "dead") == 0, Reason: "for a reason"}
		failures = append(failures, f)
		k := m.has[g][l.ID]
		*k = known{count: k.count + 1}
		if f.Dead || (f.Limit > 0 && k.count >= f.Limit) {
			m.dead[g][l.ID] = true
		}
	}
	m.settle(s.group.NackCalls(failures, m.groups[g].Retention), len(taken))
}

func (m *model) extend(t *rapid.T) {
	m.t = t
	if len(m.inHand) == 0 {
		t.Skip("nothing in hand")
	}
	s := rapid.SampledFrom(m.inHand).Draw(t, "message of").sub
	var all []*queue.Leased
	for _, l := range m.inHand {
		if l.sub == s {
			all = append(all, l.Leased)
		}
	}
	for _, call := range s.group.ExtendCalls(all, time.Hour) {
		m.do(call)
		lost, err := queue.ReadLost(call)
		require.NoError(t, err)
		require.Empty(t, lost)
	}
}

// late settles, extends and releases with leases that are over: nothing comes of it.
func (m *model) late(t *rapid.T) {
	m.t = t
	if len(m.lost) == 0 {
		t.Skip("nothing is lost")
	}
	lost := slices.DeleteFunc(slices.Clone(m.lost), func(l leased) bool { // of what others hold now
		return !slices.ContainsFunc(m.inHand, func(h leased) bool { return h.ID == l.ID && h.sub.group.Name == l.sub.group.Name })
	})
	if len(lost) == 0 {
		lost = m.lost
	}
	l := rapid.SampledFrom(lost).Draw(t, "lost lease")
	g, one := l.sub.group, []*queue.Leased{l.Leased}
	settle := func() {
		require.Zero(t, m.count(g.AckCalls(one)...))
		require.Zero(t, m.count(g.NackCalls([]queue.Failure{{Leased: l.Leased, Limit: 1}}, time.Hour)...))
		require.Zero(t, m.count(g.ReleaseCalls(one)...))
		for _, call := range g.ExtendCalls(one, time.Hour) {
			m.do(call)
			lost, err := queue.ReadLost(call)
			require.NoError(t, err)
			require.Equal(t, []string{l.ID}, lost)
		}
	}
	settle()
	m.unchanged(settle)
}

// close ends a subscription: it gives back what it holds, and does not wait any more. Another takes its place.
func (m *model) close(t *rapid.T) {
	m.t = t
	if len(m.subs) == 0 {
		t.Skip("no groups")
	}
	i := rapid.IntRange(0, len(m.subs)-1).Draw(t, "subscription")
	s := m.subs[i]
	var held []*queue.Leased
	m.inHand = slices.DeleteFunc(m.inHand, func(l leased) bool {
		if l.sub == s {
			held = append(held, l.Leased)
		}
		return l.sub == s
	})
	m.settle(s.group.ReleaseCalls(held), len(held))
	claimed := s.claim(0, idle(0, "nobody|"+s.id))
	require.Empty(t, claimed.Messages)
	require.False(t, claimed.Waits)
	waiters := m.Client.ZRange(ctx, m.keys.Waiters(s.group.Name), 0, -1).Val()
	require.NotContains(t, waiters, "nobody|"+s.id)
	m.subs[i] = m.sub(s.group.Name)
}

func (m *model) travel(t *rapid.T) {
	m.t = t
	m.elapse(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 3 * time.Second,
		2 * time.Minute, 2 * time.Hour}).Draw(t, "time"))
}

func (m *model) expire(t *rapid.T) {
	m.t = t
	require.False(t, m.world.expire())
	var left []leased
	for _, l := range m.inHand {
		g := l.sub.group.Name
		if m.field(m.keys.Leases(g), m.name[l.ID]) == l.Token {
			left = append(left, l)
			continue
		}
		m.lost = append(m.lost, l)
		k := m.has[g][l.ID]
		if k.suspect {
			k.count++
			if limit := cmp.Or(m.options[l.ID].MaxDeliveries, m.groups[g].MaxDeliveries); limit > 0 && k.count >= limit {
				m.dead[g][l.ID] = true
			}
		}
		k.suspect = true
	}
	m.inHand = left
	if m.Mini != nil {
		m.unchanged(func() { require.False(t, m.world.expire()) })
	}
}

// lose has all leases run out.
func (m *model) lose(t *rapid.T) {
	m.t = t
	if len(m.inHand) == 0 {
		t.Skip("nothing in hand")
	}
	m.elapse(2 * time.Hour)
	m.expire(t)
	require.Empty(t, m.inHand)
}

func (m *model) purge(t *rapid.T) {
	m.t = t
	require.False(t, m.world.purge())
	for g, ids := range m.dead {
		for id := range ids {
			_, err := m.Client.ZScore(ctx, m.keys.Dead(g), id).Result()
			if err != nil {
				require.GreaterOrEqual(t, m.groups[g].Retention, time.Duration(0))
				delete(ids, id)
				delete(m.has[g], id)
			}
		}
	}
}

func (m *model) remove(t *rapid.T) {
	m.t = t
	if len(m.groups) == 0 || rapid.IntRange(0, 2).Draw(t, "seldom") > 0 {
		t.Skip("no group")
	}
	g := rapid.SampledFrom(slices.Sorted(maps.Keys(m.groups))).Draw(t, "group")
	require.NoError(t, m.topic.Remove(ctx, g))
	m.unchanged(func() { require.NoError(t, m.topic.Remove(ctx, g)) })
	m.removed(g)
}

func (m *model) removed(group string) {
	delete(m.groups, group)
	delete(m.has, group)
	delete(m.dead, group)
	m.subs = slices.DeleteFunc(m.subs, func(s *sub) bool { return s.group.Name == group })
	for _, all := range []*[]leased{&m.inHand, &m.lost} {
		*all = slices.DeleteFunc(*all, func(l leased) bool { return l.sub.group.Name == group })
	}
}

// waiting draws a message, most often one that waits, and tells in which groups it waits for a retry.
func (m *model) waiting(t *rapid.T) (id string, retries []string) {
	m.t = t
	if len(m.name) == 0 {
		t.Skip("no message")
	}
	all := slices.Sorted(maps.Keys(m.name))
	if waits := slices.Sorted(maps.Keys(m.pending)); len(waits) > 0 && rapid.Bool().Draw(t, "pending") {
		all = waits
	}
	id = rapid.SampledFrom(all).Draw(t, "message")
	for g := range m.groups {
		if m.Client.ZScore(ctx, m.keys.Retry(g), id).Err() == nil {
			retries = append(retries, g)
		}
	}
	return id, retries
}

// refused is how an operation on a message that does not wait ends.
func (m *model) refused(id string) error {
	if m.Client.HExists(ctx, m.keys.Messages(), id).Val() {
		return queue.ErrTooLate
	}
	return queue.ErrNotFound
}

func (m *model) cancel(t *rapid.T) {
	id, retries := m.waiting(t)
	if !m.pending[id] && len(retries) == 0 {
		want := m.refused(id)
		m.unchanged(func() { require.ErrorIs(t, m.topic.Cancel(ctx, queue.Ref{ID: id}), want) })
		return
	}
	require.NoError(t, m.topic.Cancel(ctx, queue.Ref{ID: id}))
	if m.pending[id] {
		m.forgetName(id)
	}
	delete(m.pending, id)
	for _, g := range retries {
		delete(m.has[g], id)
	}
}

func (m *model) reschedule(t *rapid.T) {
	id, retries := m.waiting(t)
	wait := rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "delay")
	began := m.now()
	names, refused, unsure := m.renamed(id, wait, began)
	if unsure {
		t.Skip("nobody knows who has the delay id")
	}
	reschedule := func() error { return m.topic.Reschedule(ctx, queue.Ref{ID: id}, queue.In(wait)) }
	switch {
	case refused:
		m.unchanged(func() { require.ErrorIs(t, reschedule(), queue.ErrExists) })
	case !m.pending[id] && len(retries) == 0:
		require.ErrorIs(t, reschedule(), m.refused(id))
	default:
		require.NoError(t, reschedule())
		m.named(names, began)
	}
}

// letter draws a dead letter.
func (m *model) letter(t *rapid.T) (group, id string) {
	m.t = t
	for _, g := range slices.Sorted(maps.Keys(m.dead)) {
		if len(m.dead[g]) > 0 {
			return g, rapid.SampledFrom(slices.Sorted(maps.Keys(m.dead[g]))).Draw(t, "dead letter")
		}
	}
	t.Skip("nothing is dead")
	return "", ""
}

func (m *model) requeue(t *rapid.T) {
	g, id := m.letter(t)
	n, err := m.topic.Group(g).Requeue(ctx, []string{id, id})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	delete(m.dead[g], id)
	*m.has[g][id] = known{}
	m.unchanged(func() {
		n, err := m.topic.Group(g).Requeue(ctx, []string{id})
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func (m *model) discard(t *rapid.T) {
	g, id := m.letter(t)
	n, err := m.topic.Group(g).Discard(ctx, []string{id})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	delete(m.dead[g], id)
	delete(m.has[g], id)
}

func (m *model) pause(t *rapid.T) {
	m.t = t
	if len(m.subs) == 0 {
		t.Skip("no groups")
	}
	s := rapid.SampledFrom(m.subs).Draw(t, "subscription")
	which := rapid.SampledFrom([]string{"", s.group.Name}).Draw(t, "paused")
	require.NoError(t, only(m.topic.Pause(ctx, which)))
	ready := m.ready(s.group.Name)
	require.Empty(t, s.claim(9, idle(9, "nobody|"+s.id)).Messages)
	require.Equal(t, ready, m.ready(s.group.Name))
	require.NoError(t, only(m.topic.Resume(ctx, which)))
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
