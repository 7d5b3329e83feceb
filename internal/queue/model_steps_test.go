package queue_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// These are the steps of the model test, and their effects on the model.

func (m *model) register(t *rapid.T) {
	m.t = t
	g := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "group")
	options := queue.GroupOptions{MaxDeliveries: rapid.SampledFrom([]int{-1, 1, 2, 5}).Draw(t, "max deliveries"),
		Retention: rapid.SampledFrom([]time.Duration{-1, 0, time.Minute, time.Hour}).Draw(t, "retention"),
		MaxDead:   rapid.SampledFrom([]int{0, 1, 1, 3}).Draw(t, "max dead"),
		Expiry:    rapid.SampledFrom([]time.Duration{0, 0, 0, time.Hour}).Draw(t, "expiry"), SingleActive: g == inTurns, History: histories[g]}
	// By another process, so that this one's set is stale.
	topic := topicOf(m.Client, m.Prefix, m.topic.Name)
	if m.has[g] == nil {
		m.has[g], m.counted[g] = map[string]*known{}, map[string]int{}
		m.subs = append(m.subs, m.sub(g), m.sub(g))
	}
	m.groups[g] = options
	m.step(func() { require.NoError(t, topic.Register(ctx, g, options)) }, func(p *picture, _, _ int64) bool {
		if p.Groups[g] == nil {
			p.Groups[g] = newInGroup()
		}
		return true
	})
	if options.Expiry == 0 || m.Mini != nil {
		m.unchanged(func() { require.NoError(t, topic.Register(ctx, g, options)) })
	}
}

func (m *model) publish(t *rapid.T) {
	m.t = t
	var messages []message
	var waits []time.Duration
	for i := range rapid.IntRange(0, 5).Draw(t, "messages") {
		limit := rapid.SampledFrom([]int{0, 0, 1, 2, -1}).Draw(t, "own limit")
		next := message{name: fmt.Sprintf("m%d.%d", m.calls, i), options: queue.Options{MaxDeliveries: limit}}
		wait := rapid.SampledFrom([]time.Duration{0, 0, -1, time.Second, time.Minute, time.Hour}).Draw(t, "wait")
		if next.due = queue.In(wait); wait < 0 {
			next.due, wait = queue.At(time.UnixMilli(1)), 0
		}
		m.drawName(t, &next, &wait)
		messages = append(messages, next)
		waits = append(waits, wait)
	}
	m.publishAll(messages, waits)
}

// publishAll publishes in one call messages that are due after these times.
func (m *model) publishAll(messages []message, waits []time.Duration) []queue.Message {
	made := m.make(messages...)
	m.calls++
	began := m.now()
	plan := m.plan(made, waits, began)
	if plan.refused {
		m.still(func() { require.ErrorIs(m.t, m.topic.Publish(ctx, "PUBLISHER", m.calls, made), queue.ErrExists) })
		return made
	}
	var ids []string
	var after []time.Duration
	for i, message := range made {
		if !plan.leftOut[message.ID] {
			m.options[message.ID] = message.Options
			ids, after = append(ids, message.ID), append(after, waits[i])
		}
	}
	publish := func() { require.NoError(m.t, m.topic.Publish(ctx, "PUBLISHER", m.calls, made)) }
	m.ends("replaced")
	m.step(publish, func(p *picture, now, up int64) bool {
		p.publish(ids, after, now, up)
		for _, id := range plan.replaced {
			delete(p.Waiting, id)
		}
		return true
	})
	m.named(plan.names, began)
	m.counts("", "published", len(made)-plan.kept)
	m.counts("", "left_out", plan.kept)
	m.counts("", "replaced", len(plan.replaced)+plan.own)
	m.unchanged(publish)
	return made
}

func (m *model) promote(t *rapid.T) {
	m.t = t
	scheduler := rapid.SampledFrom([]string{"s|1", "s|2", "s|3"}).Draw(t, "scheduler")
	var turn queue.Turn
	m.step(func() { turn = m.world.promote(scheduler) }, func(p *picture, now, _ int64) bool {
		if turn.Role != queue.Holder {
			return !turn.Expired && !turn.Purge
		}
		p.promote(now)
		expired, purge := false, false
		for name, g := range p.Groups {
			for _, h := range g.InHand {
				expired = expired || h.Until <= now
			}
			keep, most := m.groups[name].Retention, m.groups[name].MaxDead
			purge = purge || keep >= 0 && overdue(g.Dead, now-keep.Milliseconds()) || most > 0 && len(g.Dead) > most
		}
		return turn.Expired == expired && turn.Purge == purge
	})
	for _, g := range turn.Failed {
		require.Equal(t, inTurns, g)
		require.Empty(t, m.picture.Groups[g].InHand, "only leases tell whether it lives")
		m.still(func() { require.NoError(t, only(m.topic.Succeed(ctx, g))) })
		m.active.Subscription = ""
	}
	for _, g := range turn.Unused {
		require.Positive(t, m.groups[g].Expiry)
		m.step(func() { m.removeUnused(g) }, func(*picture, int64, int64) bool { return true })
		if m.hasRespite(g) {
			m.gone(g, func() {
				m.respiteOver(g)
				m.removeUnused(g)
			})
		} else { // somebody has just claimed who may not know of it
			require.True(t, m.Client.HExists(ctx, m.keys.Stats(g), "lasting").Val())
		}
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
	ready := m.picture.Groups[g].Ready
	limit := rapid.IntRange(0, 6).Draw(t, "limit")
	c := s.query(limit, lease(rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(t, "lease")),
		idle(rapid.IntRange(0, 9).Draw(t, "slots"), "nobody|"+s.id))
	c.Held, c.Most = rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "held"), rapid.SampledFrom([]int{1, 2, 3, 6}).Draw(t, "most")
	c.Expiry = m.groups[g].Expiry
	c.Counts.LeaseLost = rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "leases lost")
	m.counts(g, "lease_lost", c.Counts.LeaseLost)
	c.Counts.GivenUp = rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "given up")
	m.counts(g, "given_up", c.Counts.GivenUp)
	c.Counts.Acked = rapid.SampledFrom([]int{0, 1, 5}).Draw(t, "acked")
	m.counts(g, "acked", c.Counts.Acked)
	for _, bucket := range rapid.SliceOfN(rapid.IntRange(0, len(queue.Lateness{})-1), 0, 4).Draw(t, "lateness") {
		c.Counts.Lateness[bucket]++
		m.counts(g, queue.LateField(bucket), 1)
	}
	want, blocked, room := []string{}, 0, math.MaxInt
	rests := false // another subscription is active
	ends := m.world.active(inTurns).Ends
	over := !ends.IsZero() && ends.UnixMilli() <= m.now() && len(m.picture.Groups[g].InHand) == 0
	if g == inTurns && (m.active == nil || m.active.Subscription == "" || over) && limit > 0 {
		require.Empty(t, m.picture.Groups[g].InHand)
		m.active = &queue.Active{Subscription: s.id, Epoch: -1} // which is checked below
	} else if g == inTurns {
		rests = m.active == nil || m.active.Subscription != s.id || over
		for _, l := range m.picture.Groups[g].InHand {
			rests = rests || l.Until <= m.now() // all leases end with this one
		}
	}
	if rests {
		limit = 0
	}
	for i, r := range ready[:min(limit, len(ready))] {
		room = min(room, m.has[g][r.ID].company(c.Most))
		if c.Held+i+1 > room {
			if i == 0 {
				blocked = room
			}
			break
		}
		want = append(want, m.name[r.ID])
	}
	var claimed queue.Claimed
	m.step(func() { claimed = s.ask(c) }, func(p *picture, now, _ int64) bool {
		in := p.Groups[g]
		for _, r := range in.Ready[:len(want)] {
			in.InHand[r.ID] = byLease{now + c.Lease.Milliseconds(), fmt.Sprintf("%s:%d:%d:%d", s.id, c.Number, now, r.Due)}
		}
		in.Ready = slices.Clip(in.Ready[len(want):])
		return true
	})
	if g == inTurns && !rests && m.active.Epoch < 0 {
		require.Greater(t, claimed.Epoch, m.epoch)
		m.active.Epoch, m.epoch = claimed.Epoch, claimed.Epoch
	}
	if rests {
		require.Equal(t, queue.Claimed{Waits: c.Limit > 0 && c.Slots > 0, History: bounds(g)}, claimed)
		return
	}
	m.inOrder(g, held(claimed))
	require.Equal(t, blocked, claimed.Blocked)
	require.Equal(t, want, bodies(claimed))
	require.Equal(t, len(ready) > len(want), claimed.More)
	require.Equal(t, !claimed.More && len(want) < c.Slots || blocked > 0 && c.Slots > 0, claimed.Waits)
	for i := range claimed.Messages {
		m.inHand = append(m.inHand, leased{&claimed.Messages[i], s})
		k := m.has[g][claimed.Messages[i].ID]
		k.alone = k.company(c.Most) == 1
		require.Equal(t, k.count, claimed.Messages[i].Deliveries)
		require.Equal(t, k.expiries, claimed.Messages[i].Expiries)
		require.Equal(t, k.company(c.Most), claimed.Messages[i].Company(c.Most))
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

// settle settles messages of a group, twice.
func (m *model) settle(calls []*queue.Call, taken []*queue.Leased, next func(p *picture, now, up int64)) {
	m.step(func() { require.Equal(m.t, len(taken), m.count(calls...)) }, func(p *picture, now, up int64) bool {
		if len(taken) > 0 {
			next(p, now, up)
		}
		return true
	})
	m.unchanged(func() { require.Zero(m.t, m.count(calls...)) })
}

func (m *model) ack(t *rapid.T) {
	s, taken := m.take(t)
	dropped := rapid.IntRange(0, len(taken)).Draw(t, "dropped")
	m.counts(s.group.Name, "dropped", dropped)
	calls := append(s.group.DropCalls(taken[:dropped]), s.group.AckCalls(taken[dropped:])...)
	m.how = func(id string) string {
		if slices.ContainsFunc(taken[:dropped], func(l *queue.Leased) bool { return l.ID == id }) {
			return "dropped"
		}
		return "acked"
	}
	m.settle(calls, taken, func(p *picture, _, _ int64) {
		for _, l := range taken {
			delete(p.Groups[s.group.Name].InHand, l.ID)
			p.drop(l.ID)
		}
	})
}

func (m *model) release(t *rapid.T) {
	s, taken := m.take(t)
	m.giveBack(s, taken)
}

func (m *model) giveBack(s *sub, taken []*queue.Leased) {
	m.settle(s.group.ReleaseCalls(taken, false), taken, func(p *picture, _, _ int64) { p.Groups[s.group.Name].back(taken) })
}

func (m *model) nack(t *rapid.T) {
	s, taken := m.take(t)
	m.fail(t, s, taken, func() bool { return rapid.IntRange(0, 3).Draw(t, "dead") == 0 })
}

// bury has all that one subscription after the other claims die, and purges.
func (m *model) bury(t *rapid.T) {
	m.publish(t)
	for range rapid.IntRange(2, 5).Draw(t, "burials") {
		m.claim(t)
		if len(m.inHand) == 0 {
			continue
		}
		s, taken := m.inHand[len(m.inHand)-1].sub, []*queue.Leased(nil)
		m.inHand = slices.DeleteFunc(m.inHand, func(l leased) bool {
			if l.sub == s {
				taken = append(taken, l.Leased)
			}
			return l.sub == s
		})
		m.fail(t, s, taken, func() bool { return true })
	}
	m.purge(t)
}

// fail nacks messages of a subscription. dies tells of each whether that is its last delivery.
func (m *model) fail(t *rapid.T, s *sub, taken []*queue.Leased, dies func() bool) {
	g := s.group.Name
	var failures []queue.Failure
	var back []*queue.Leased
	dead, waits := map[string]bool{}, map[string]time.Duration{}
	for _, l := range taken {
		wait := rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "delay")
		f := queue.Failure{Leased: l, Limit: m.limit(g, l.ID), Retry: queue.In(wait),
			Dead: dies(), Reason: "for a reason"}
		if f.Dead {
			f.Nobody = rapid.SampledFrom([]queue.Cause{"", queue.TooLate, queue.Unreadable}).Draw(t, "nobody got it")
		}
		f.Postponed = !f.Dead && rapid.IntRange(0, 3).Draw(t, "postponed") == 0
		failures = append(failures, f)
		k := m.has[g][l.ID]
		*k = known{count: k.count}
		if f.Nobody == "" {
			m.counts(g, "nacked", 1)
			if !f.Postponed {
				k.count++
			}
		}
		switch {
		case f.Dead:
			m.counts(g, "dead_"+string(cmp.Or(f.Nobody, queue.Asked)), 1)
			dead[l.ID] = true
		case !f.Postponed && f.Limit > 0 && k.count >= f.Limit:
			m.counts(g, "dead_deliveries", 1)
			dead[l.ID] = true
		case wait > 0:
			m.counts(g, "retried", 1)
			waits[l.ID] = wait
		default:
			back = append(back, l)
		}
	}
	m.settle(s.group.NackCalls(failures), taken, func(p *picture, now, up int64) {
		in := p.Groups[g]
		for id := range dead {
			delete(in.InHand, id)
			in.Dead[id] = now
		}
		for id, wait := range waits {
			delete(in.InHand, id)
			in.Retry[id] = up + wait.Milliseconds()
		}
		in.back(back)
	})
}

// limit is how often a message may be delivered to a group.
func (m *model) limit(group, id string) int {
	return cmp.Or(m.options[id].MaxDeliveries, m.groups[group].MaxDeliveries)
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
	m.step(func() {
		for _, call := range s.group.ExtendCalls(all, time.Hour) {
			m.do(call)
			lost, err := queue.ReadLost(call)
			require.NoError(t, err)
			require.Empty(t, lost)
		}
	}, func(p *picture, now, _ int64) bool {
		for _, l := range all {
			p.Groups[s.group.Name].InHand[l.ID] = byLease{now + time.Hour.Milliseconds(), l.Token}
		}
		return true
	})
	m.inOrder(s.group.Name, all)
}

// late settles, extends and releases with leases that are over. Nothing comes of it, but that the
// first settlement or release takes an expiry back.
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
	extend := func() {
		for _, call := range g.ExtendCalls(one, time.Hour) {
			m.do(call)
			lost, err := queue.ReadLost(call)
			require.NoError(t, err)
			require.Equal(t, []string{l.Leased.Lease()}, lost)
		}
	}
	ways := []func(){
		func() { require.Zero(t, m.count(g.AckCalls(one)...)) },
		func() {
			require.Zero(t, m.count(g.NackCalls([]queue.Failure{{Leased: l.Leased, Limit: 1}})...))
		},
		func() { require.Zero(t, m.count(g.ReleaseCalls(one, false)...)) },
	}
	m.still(extend)
	m.unchanged(extend)
	m.still(rapid.SampledFrom(ways).Draw(t, "way"))
	if k := m.has[g.Name][l.ID]; k != nil && k.lost == l.Token {
		k.expiries, k.lost = k.expiries-1, ""
		k.alone = k.alone && k.expiries > 1
		if k.expiries == 0 {
			*k = known{count: k.count}
		}
	}
	for _, again := range ways {
		m.still(again)
		m.unchanged(again)
	}
}

// close ends a subscription: it gives back what it holds, and does not wait any more. Another takes
// its place.
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
	m.giveBack(s, held)
	var claimed queue.Claimed
	m.still(func() { claimed = s.claim(0, idle(0, "nobody|"+s.id)) })
	require.Empty(t, claimed.Messages)
	require.False(t, claimed.Waits)
	if s.group.Name == inTurns {
		m.still(func() { require.NoError(t, s.group.StandDown(ctx, s.id)) })
		if m.active != nil && m.active.Subscription == s.id {
			m.active.Subscription = ""
		}
	}
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
	dies := func(g string) func(id string) bool {
		return func(id string) bool {
			k, limit := m.has[g][id], m.limit(g, id)
			return k.alone && limit > 0 && k.count+1 >= limit
		}
	}
	order := m.order
	m.step(func() { require.False(t, m.world.expire()) }, func(p *picture, now, _ int64) bool {
		for name, g := range p.Groups {
			g.expire(now, order[name], m.groups[name].SingleActive, dies(name))
		}
		return true
	})
	var left []leased
	for _, l := range m.inHand {
		g := l.sub.group.Name
		if _, ok := m.picture.Groups[g].InHand[l.ID]; ok {
			left = append(left, l)
			continue
		}
		m.lost = append(m.lost, l)
		m.counts(g, "expired", 1)
		k := m.has[g][l.ID]
		if k.alone {
			k.count++
		}
		if _, dead := m.picture.Groups[g].Dead[l.ID]; dead {
			m.counts(g, "dead_lease", 1)
		} else if k.expiries == 0 {
			m.counts(g, "suspects", 1)
		}
		k.expiries, k.alone, k.lost = k.expiries+1, false, l.Token
		if _, dead := m.picture.Groups[g].Dead[l.ID]; dead {
			*k = known{count: k.count}
		}
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

// crash has subscriptions claim and lose what they hold, several times in a row.
func (m *model) crash(t *rapid.T) {
	for range rapid.IntRange(2, 4).Draw(t, "crashes") {
		m.claim(t)
		if len(m.inHand) > 0 {
			m.lose(t)
		}
	}
}

func (m *model) purge(t *rapid.T) {
	m.t = t
	var excess map[string]int
	m.ends("purged")
	m.step(func() {
		var more bool
		var err error
		excess, more, err = m.topic.Purge(ctx)
		require.NoError(t, err)
		require.False(t, more)
	}, func(p *picture, now, _ int64) bool { return maps.Equal(excess, p.purge(now, m.groups)) })
	for name := range m.groups {
		m.counts(name, "dead_purged", excess[name])
	}
	if m.Mini != nil {
		m.unchanged(func() { require.False(t, m.world.purge()) })
	}
}

func (m *model) remove(t *rapid.T) {
	m.t = t
	if len(m.groups) == 0 || rapid.IntRange(0, 2).Draw(t, "seldom") > 0 {
		t.Skip("no group")
	}
	g := rapid.SampledFrom(slices.Sorted(maps.Keys(m.groups))).Draw(t, "group")
	m.gone(g, func() { require.NoError(t, m.topic.Remove(ctx, g)) })
	m.unchanged(func() { require.NoError(t, m.topic.Remove(ctx, g)) })
}

// gone removes a group.
func (m *model) gone(group string, remove func()) {
	delete(m.groups, group)
	delete(m.has, group)
	delete(m.counted, group)
	if group == inTurns {
		m.active, m.epoch = nil, m.now()-1 // the first owner of a new group has the time at least
	}
	m.step(remove, func(p *picture, _, _ int64) bool {
		p.remove(group)
		return true
	})
	m.subs = slices.DeleteFunc(m.subs, func(s *sub) bool { return s.group.Name == group })
	for _, all := range []*[]leased{&m.inHand, &m.lost} {
		*all = slices.DeleteFunc(*all, func(l leased) bool { return l.sub.group.Name == group })
	}
}
