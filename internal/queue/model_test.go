package queue_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// After any operations in any order, every message is where the model says, and no other data is
// left.
func TestAnyOrderOfTransitions(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		sequences(t, s, true)
	})
}

// The same, many more times, looking at where all is after each transition, and at the rest at the
// end of each sequence. MODEL_SEQUENCES says how many times on each server.
func TestManySequencesOfTransitions(t *testing.T) {
	parts := 1
	wanted, err := strconv.Atoi(os.Getenv("MODEL_SEQUENCES"))
	if err == nil {
		parts = 4 // at once
	}
	for part := range parts {
		t.Run(fmt.Sprint("part ", part+1), func(t *testing.T) {
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				total, prefix := 0, s.Prefix
				for round := 0; round == 0 || total < wanted/parts; round++ {
					s.Prefix = fmt.Sprint(prefix, ":", round)
					total += sequences(t, s, false)
				}
				t.Logf("%d sequences", total)
			})
		})
	}
}

// sequences runs as many random sequences as rapid is told to, and returns how many that were. If
// it is thorough, it compares all there is with the model after each transition, and repeats most
// of them.
func sequences(t *testing.T, s redistest.Server, thorough bool) (runs int) {
	prefix := s.Prefix
	rapid.Check(t, func(t *rapid.T) {
		runs++
		s.Prefix = fmt.Sprint(prefix, ":", runs)
		m := newModel(t, s)
		m.thorough = thorough
		each := m.check
		if !thorough {
			each = func(*rapid.T) {}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":         each,
			"register": m.register,
			"publish":  m.publish,
			"promote":  m.promote,
			"claim":    m.claim,
			"ack":      m.ack,
			"nack":     m.nack,
			"release":  m.release,
			"extend":   m.extend,
			"late":     m.late,
			"lose":     m.lose,
			"close":    m.close,
			"travel":   m.travel,
			"expire":   m.expire,
			"purge":    m.purge,
			"remove":   m.remove,

			// Publishing comes more often, because the other steps build on it.
			"publish again": m.publish,
			"claim again":   m.claim,
			"claim more":    m.claim,
			"nack again":    m.nack,
			"nack more":     m.nack,
			"purge again":   m.purge,
			"expire again":  m.expire,
			"crash":         m.crash,
			"crash again":   m.crash,
			"late again":    m.late,
			"bury":          m.bury,
			"bury again":    m.bury,

			"cancel":     m.cancel,
			"take back":  m.cancelNamed,
			"reschedule": m.reschedule,
			"outlive":    m.outlive,
			"requeue":    m.requeue,
			"discard":    m.discard,
			"kill":       m.kill,
			"move":       m.move,
			"pause":      m.pause,
			"audit":      m.audit,
		})
		m.check(t)
		m.vanish()
	})
	return runs
}

// known is what a group knows of a message that it has.
type known struct {
	count    int
	expiries int    // in a row
	alone    bool   // it was held alone, so that its next expiry counts
	lost     string // token of the lease that expired last, if that was not taken back
}

// suspect is the group's entry in suspects; "" is none.
func (k *known) suspect() string {
	if k.expiries == 0 {
		return ""
	}
	alone := "-"
	if k.alone {
		alone = "alone"
	}
	return fmt.Sprint(k.expiries, " ", alone, " ", cmp.Or(k.lost, "-"))
}

// company is how many messages a subscription may hold with this one, if it may hold most alone.
func (k *known) company(most int) int {
	room := most
	for range k.expiries - 1 {
		room /= 2
	}
	if k.expiries < 2 {
		return math.MaxInt
	}
	return max(room, 1)
}

// leased is a message in the hand of a subscription.
type leased struct {
	*queue.Leased
	sub *sub
}

type model struct {
	*world
	thorough bool

	groups  map[string]queue.GroupOptions
	options map[string]queue.Options     // id -> its own
	taken   map[string]*nameOf           // delay id -> who has or had it
	has     map[string]map[string]*known // group -> id -> what is known
	counted map[string]map[string]int    // group, "" for the topic -> counter -> number
	picture *picture
	order   map[string]map[string]float64 // group -> id -> its deadline, with the fraction that keeps the order
	subs    []*sub
	inHand  []leased
	lost    []leased               // that some subscription believes to hold, and does not
	active  *queue.Active          // of the group with SingleActive; nil: none ever claimed
	epoch   int64                  // the highest so far
	how     func(id string) string // how the messages end that a step ends; nil: it ends none
	ended   map[string][]string    // group, "" for the topic -> the lines that its history has had
}

// inTurns is the group with SingleActive.
const inTurns = "d"

// sub returns a subscription of a group.
func (m *model) sub(group string) *sub {
	s := m.world.sub(group)
	if group == inTurns {
		s = m.world.turns(group)
	}
	s.remember()
	return s
}

// checkActive compares which subscription is active with the model. Nobody else has leases.
func (m *model) checkActive() {
	m.t.Helper()
	if m.groups[inTurns] == (queue.GroupOptions{}) {
		require.Zero(m.t, m.Client.Exists(ctx, m.keys.Standby(inTurns)).Val())
		return
	}
	got := m.world.active(inTurns)
	if m.active == nil {
		require.Empty(m.t, got.Subscription)
		return
	}
	got.Ends = m.active.Ends // at most times, nobody can say to the millisecond
	require.Equal(m.t, *m.active, got)
	for _, l := range m.picture.Groups[inTurns].InHand {
		require.Equal(m.t, m.active.Subscription, queue.SubscriptionOf(l.Token))
	}
}

func newModel(t *rapid.T, s redistest.Server) *model {
	m := &model{world: newWorld(t, s, "topic"), groups: map[string]queue.GroupOptions{}, options: map[string]queue.Options{}, taken: map[string]*nameOf{},
		has: map[string]map[string]*known{}, counted: map[string]map[string]int{"": {}}, picture: newPicture(), ended: map[string][]string{}}
	for range rapid.IntRange(0, 2).Draw(t, "groups at first") {
		m.register(t)
	}
	return m
}

// unchanged runs what is to change nothing, if the model is thorough.
func (m *model) unchanged(f func()) {
	m.t.Helper()
	if m.thorough {
		m.world.unchanged(f)
	}
}

// vanish removes all keys: sequences are many.
func (m *model) vanish() {
	if m.Mini != nil {
		m.Mini.FlushAll()
		return
	}
	keys := []string{queue.Registry(m.Prefix)}
	for _, topic := range []string{m.topic.Name, otherTopic} {
		keys = append(keys, m.Client.Keys(ctx, strings.TrimSuffix(queue.NewKeys(m.Prefix, topic).Meta(), "meta")+"*").Val()...)
	}
	require.NoError(m.t, m.Client.Unlink(ctx, keys...).Err())
}

// counts adds to a counter of a group, "" for the topic.
func (m *model) counts(group, counter string, n int) {
	if n > 0 {
		m.counted[group][counter] += n
	}
}

// checkCounters compares what the topic and its groups have counted.
func (m *model) checkCounters() {
	m.t.Helper()
	for group, want := range m.counted {
		key := m.keys.Counters()
		if group != "" {
			key = m.keys.Stats(group)
		}
		got := map[string]int{}
		for field, value := range m.Client.HGetAll(ctx, key).Val() {
			if group == "" || slices.Contains(queue.GroupCounters, field) {
				n, err := strconv.Atoi(value)
				require.NoError(m.t, err)
				got[field] = n
			}
		}
		require.Equal(m.t, want, got, "counters of group %q", group)
	}
}

func (m *model) check(t *rapid.T) {
	m.t = t
	m.still(func() {})
	m.checkCounters()
	m.checkHistories()
	m.checkActive()
	leases := 0
	for g := range m.groups {
		leases += len(m.picture.Groups[g].InHand)
		suspects := map[string]string{}
		records := m.Client.HGetAll(ctx, m.keys.Deliveries(g)).Val()
		for id, k := range m.has[g] {
			count, flag, _, _ := queue.ParseRecord(records[id])
			require.Equal(t, k.count, count, "%s in group %s: %q", m.name[id], g, records[id])
			require.False(t, k.expiries > 0 && flag == "-", "%s in group %s: %q", m.name[id], g, records[id])
			if entry := k.suspect(); entry != "" {
				suspects[id] = entry
			}
		}
		require.Equal(t, suspects, m.Client.HGetAll(ctx, m.keys.Suspects(g)).Val(), "suspects of group %s", g)
	}
	for _, l := range m.inHand {
		require.Equal(t, l.Token, m.picture.Groups[l.sub.group.Name].InHand[l.ID].Token)
		leases--
	}
	require.Zero(t, leases, "more leases than are in hand")
	m.checkNames()
	found, err := queuetest.Violations(ctx, m.Client, m.Prefix)
	if err != nil {
		t.Fatalf("%v", err) // whose text outlasts a failure that does not come again
	}
	require.Empty(t, found)
}
