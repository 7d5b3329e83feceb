package queue_test

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// The model says where every message is, and since or until when. That follows from the state
// before and the time alone. Of the server's answers it takes in only those that match.

// picture is all that a topic has, with times in ms by the server's clock.
type picture struct {
	Waiting map[string]int64 // id -> due
	Refs    map[string]int   // id -> groups that have it, only where it came to several
	Groups  map[string]*inGroup
}

// inGroup is what a group has.
type inGroup struct {
	Ready  []readied
	InHand map[string]byLease
	Retry  map[string]int64 // id -> due
	Dead   map[string]int64 // id -> death
}

type readied struct {
	ID  string
	Due int64
}

type byLease struct {
	Until int64
	Token string // which ends with when it was due
}

func newInGroup() *inGroup {
	return &inGroup{InHand: map[string]byLease{}, Retry: map[string]int64{}, Dead: map[string]int64{}}
}

func newPicture() *picture {
	return &picture{map[string]int64{}, map[string]int{}, map[string]*inGroup{}}
}

func (p *picture) clone() *picture {
	c := &picture{maps.Clone(p.Waiting), maps.Clone(p.Refs), map[string]*inGroup{}}
	for name, g := range p.Groups {
		c.Groups[name] = &inGroup{slices.Clone(g.Ready), maps.Clone(g.InHand), maps.Clone(g.Retry), maps.Clone(g.Dead)}
	}
	return c
}

// equal compares all of two pictures.
func (p *picture) equal(other *picture) bool {
	for _, one := range []*picture{p, other} {
		for _, g := range one.Groups {
			if len(g.Ready) == 0 {
				g.Ready = nil // or else an empty list differs from none
			}
		}
	}
	return reflect.DeepEqual(p, other)
}

// ids are those of all messages in a group.
func (g *inGroup) ids() map[string]bool {
	all := map[string]bool{}
	for _, r := range g.Ready {
		all[r.ID] = true
	}
	for id := range g.InHand {
		all[id] = true
	}
	for _, state := range []map[string]int64{g.Retry, g.Dead} {
		for id := range state {
			all[id] = true
		}
	}
	return all
}

// ids are those of all messages.
func (p *picture) ids() map[string]bool {
	all := map[string]bool{}
	for id := range p.Waiting {
		all[id] = true
	}
	for _, g := range p.Groups {
		maps.Copy(all, g.ids())
	}
	return all
}

// enter notes that a message comes to all groups.
func (p *picture) enter(id string) {
	if len(p.Groups) > 1 {
		p.Refs[id] = len(p.Groups)
	}
}

// drop notes that a group has a message no longer.
func (p *picture) drop(id string) {
	if p.Refs[id] > 1 {
		p.Refs[id]--
	} else {
		delete(p.Refs, id)
	}
}

// due takes what is due by now out of a state, in order.
func due(state map[string]int64, now int64) (taken []readied) {
	for id, at := range state {
		if at <= now {
			taken = append(taken, readied{id, at})
		}
	}
	maps.DeleteFunc(state, func(_ string, at int64) bool { return at <= now })
	slices.SortFunc(taken, readied.compare)
	return taken
}

func (r readied) compare(other readied) int {
	return cmp.Or(cmp.Compare(r.Due, other.Due), cmp.Compare(r.ID, other.ID))
}

// overdue tells whether a state has what is due by now.
func overdue(state map[string]int64, now int64) bool {
	for _, at := range state {
		if at <= now {
			return true
		}
	}
	return false
}

// promote moves all that is due by now to the end of ready, in order.
func (p *picture) promote(now int64) {
	if len(p.Groups) == 0 {
		return
	}
	fresh := due(p.Waiting, now)
	for _, r := range fresh {
		p.enter(r.ID)
	}
	for _, g := range p.Groups {
		came := append(due(g.Retry, now), fresh...)
		slices.SortFunc(came, readied.compare)
		g.Ready = append(g.Ready, came...)
	}
}

// publish takes in messages. What is due goes to ready at once, if nothing waits that is due, too.
func (p *picture) publish(ids []string, waits []time.Duration, now, up int64) {
	direct := len(p.Groups) > 0 && !overdue(p.Waiting, now)
	for _, g := range p.Groups {
		direct = direct && !overdue(g.Retry, now)
	}
	for i, id := range ids {
		switch {
		case waits[i] > 0:
			p.Waiting[id] = up + waits[i].Milliseconds()
		case !direct:
			p.Waiting[id] = now
		default:
			p.enter(id)
			for _, g := range p.Groups {
				g.Ready = append(g.Ready, readied{id, now})
			}
		}
	}
}

// back puts what was leased in front of ready.
func (g *inGroup) back(taken []*queue.Leased) {
	var came []readied
	for _, l := range taken {
		came = append(came, ready(l.ID, l.Token))
		delete(g.InHand, l.ID)
	}
	g.Ready = append(came, g.Ready...)
}

// expire takes back the leases that are over by now, in the order of their deadlines: each to the
// front of ready, but behind what is there and was due earlier. Those that die of it do not come
// back. If they end together, all are over with the first.
func (g *inGroup) expire(now int64, order map[string]float64, together bool, dies func(id string) bool) {
	var over []string
	first := int64(math.MaxInt64)
	for _, h := range g.InHand {
		first = min(first, h.Until)
	}
	for id, h := range g.InHand {
		if h.Until <= now || together && first <= now {
			over = append(over, id)
		}
	}
	slices.SortFunc(over, func(a, b string) int { return cmp.Or(cmp.Compare(order[a], order[b]), cmp.Compare(a, b)) })
	var front []readied
	for _, id := range over {
		came := ready(id, g.InHand[id].Token)
		delete(g.InHand, id)
		if dies(id) {
			g.Dead[id] = now
			continue
		}
		for len(g.Ready) > 0 && g.Ready[0].compare(came) < 0 {
			front, g.Ready = append(front, g.Ready[0]), g.Ready[1:]
		}
		front = append(front, came)
	}
	g.Ready = append(front, g.Ready...)
}

// purge forgets dead letters that are past their retention, and then the oldest of too many. It
// returns how many were too many, by group.
func (p *picture) purge(now int64, groups map[string]queue.GroupOptions) map[string]int {
	excess := map[string]int{}
	for name, g := range p.Groups {
		if keep := groups[name].Retention; keep >= 0 {
			for _, r := range due(g.Dead, now-keep.Milliseconds()) {
				p.drop(r.ID)
			}
		}
		many := len(g.Dead) - groups[name].MaxDead
		if groups[name].MaxDead <= 0 || many <= 0 {
			continue
		}
		excess[name] = many
		for _, r := range due(maps.Clone(g.Dead), math.MaxInt64)[:many] {
			delete(g.Dead, r.ID)
			p.drop(r.ID)
		}
	}
	return excess
}

// remove forgets a group.
func (p *picture) remove(group string) {
	if g := p.Groups[group]; g != nil {
		delete(p.Groups, group)
		for id := range g.ids() {
			p.drop(id)
		}
	}
}

// shift moves all that is stored with a time to be compared with the clock.
func (p *picture) shift(ms int64) {
	move := func(state map[string]int64) {
		for id := range state {
			state[id] -= ms
		}
	}
	move(p.Waiting)
	for _, g := range p.Groups {
		move(g.Retry)
		move(g.Dead)
		for id, h := range g.InHand {
			h.Until -= ms
			g.InHand[id] = h
		}
	}
}

// ready is a message as it is in ready after a lease with this token.
func ready(id, token string) readied {
	at, _ := strconv.ParseInt(token[strings.LastIndexByte(token, ':')+1:], 10, 64)
	return readied{id, at}
}

// step does something, and compares each state with what the model makes of it. The script may have
// looked at the clock at any time since the step began, and times to come are rounded up: at one of
// those all has to match. If next returns false the time is not possible.
func (m *model) step(run func(), next func(p *picture, now, up int64) bool) {
	began := m.now()
	run()
	ended := m.now()
	seen := m.look()
	rounds := int64(1) // up
	if m.Mini != nil {
		rounds = 0 // its clock has whole ms
	}
	for now := began; now <= ended; now++ {
		for up := now; up <= now+rounds; up++ {
			p := m.picture.clone()
			if next(p, now, up) && p.equal(seen) {
				m.note(m.picture, p)
				m.picture, m.how = p, nil
				m.know()
				return
			}
		}
	}
	for now := range map[int64]bool{began: true, ended: true} {
		p := m.picture.clone()
		require.True(m.t, next(p, now, now), "not possible at %d", now)
		p.equal(seen) // for the sake of empty lists
		require.Equal(m.t, p, seen, "between %d and %d", began, ended)
	}
	require.Fail(m.t, "matches at no time", "between %d and %d", began, ended)
}

// still does something that moves no message.
func (m *model) still(run func()) {
	m.step(run, func(*picture, int64, int64) bool { return true })
}

// know notes which messages came to the groups, and which are gone.
func (m *model) know() {
	for name, g := range m.picture.Groups {
		ids := g.ids()
		for id := range ids {
			if m.has[name][id] == nil {
				m.has[name][id] = &known{}
			}
		}
		maps.DeleteFunc(m.has[name], func(id string, _ *known) bool { return !ids[id] })
	}
}

// look reads all that the topic has. Bodies and options are compared at once, and of the deadlines
// the order is noted.
func (m *model) look() *picture {
	k, pipe := m.keys, m.Client.Pipeline()
	pending, refs := pipe.ZRangeWithScores(ctx, k.Pending(), 0, -1), pipe.HGetAll(ctx, k.Refs())
	bodies, options := pipe.HGetAll(ctx, k.Messages()), pipe.HKeys(ctx, k.Options())
	type reads struct {
		ready              *redis.StringSliceCmd
		unack, retry, dead *redis.ZSliceCmd
		leases             *redis.MapStringStringCmd
	}
	groups := map[string]reads{}
	for g := range m.groups {
		groups[g] = reads{pipe.LRange(ctx, k.Ready(g), 0, -1), pipe.ZRangeWithScores(ctx, k.Unack(g), 0, -1),
			pipe.ZRangeWithScores(ctx, k.Retry(g), 0, -1), pipe.ZRangeWithScores(ctx, k.Dead(g), 0, -1), pipe.HGetAll(ctx, k.Leases(g))}
	}
	_, err := pipe.Exec(ctx)
	require.NoError(m.t, err)

	scores := func(state map[string]int64, found []redis.Z) {
		for _, z := range found {
			state[z.Member.(string)] = int64(z.Score)
		}
	}
	p := newPicture()
	scores(p.Waiting, pending.Val())
	for id, n := range refs.Val() {
		p.Refs[id], _ = strconv.Atoi(n)
	}
	m.order = map[string]map[string]float64{}
	for name, r := range groups {
		g := newInGroup()
		p.Groups[name], m.order[name] = g, map[string]float64{}
		for _, entry := range r.ready.Val() {
			g.Ready = append(g.Ready, ready(entry[:queue.IDLength], entry))
		}
		leases := r.leases.Val()
		for _, z := range r.unack.Val() {
			id := z.Member.(string)
			g.InHand[id] = byLease{int64(math.Floor(z.Score)), leases[id]}
			m.order[name][id] = z.Score
		}
		require.Len(m.t, leases, len(g.InHand), "leases of group %s", name)
		scores(g.Retry, r.retry.Val())
		scores(g.Dead, r.dead.Val())
	}
	stored, own := map[string]bool{}, map[string]bool{}
	for id, body := range bodies.Val() {
		stored[id] = true
		require.Equal(m.t, m.name[id], body)
	}
	for _, id := range options.Val() {
		own[id] = true
	}
	require.Equal(m.t, p.ids(), stored, "messages with a body")
	wanted := map[string]bool{}
	for id := range stored {
		if o := m.options[id]; o.MaxDeliveries != 0 || o.DelayID != "" {
			wanted[id] = true
		}
	}
	require.Equal(m.t, wanted, own, "messages with options")
	return p
}

// inOrder compares the order of deadlines with that in which messages were leased together.
func (m *model) inOrder(group string, leased []*queue.Leased) {
	order := m.order[group]
	require.True(m.t, slices.IsSortedFunc(leased, func(a, b *queue.Leased) int {
		return cmp.Or(cmp.Compare(order[a.ID], order[b.ID]), cmp.Compare(a.ID, b.ID))
	}), "%v", order)
}
