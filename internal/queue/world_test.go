package queue_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

var ctx = context.Background()

// patience is for what happens at once, on a machine that is busy.
const patience = 20 * time.Second

// tb is what the helpers need of a test: a testing.T or a rapid.T.
type tb interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	FailNow()
}

func TestMain(m *testing.M) {
	// The model's steps are round trips: fewer by default.
	for name, value := range map[string]string{"rapid.checks": "20", "rapid.shrinktime": "10s", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	redistest.Main(m)
}

// standard is what groups are registered with unless the test is about it.
var standard = queue.GroupOptions{MaxDeliveries: 5, Retention: time.Hour}

// world is a topic on one Redis. Messages are called by their bodies, which are unique in a test.
// On the embedded server time stands still, but for pass.
type world struct {
	redistest.Server
	t     tb
	topic *operate.Topic
	keys  queue.Keys
	ids   *queue.IDs
	calls uint64

	id   map[string]string // by name
	name map[string]string // by id
	subs int

	start int64 // by the server's clock
	waits int64 // receivers that wait
}

// both runs a test on both servers, and looks afterwards whether it left the topic whole.
func both(t *testing.T, test func(t *testing.T, w *world), groups ...string) {
	t.Helper()
	t.Parallel()
	redistest.Both(t, checked(test, groups...))
}

// onReal runs a test on the real server only, because the embedded one is slow at it.
func onReal(t *testing.T, test func(t *testing.T, w *world), groups ...string) {
	t.Helper()
	t.Parallel()
	redistest.Real(t, checked(test, groups...))
}

func checked(test func(t *testing.T, w *world), groups ...string) func(t *testing.T, s redistest.Server) {
	return func(t *testing.T, s redistest.Server) {
		s.OnCleanup(func() {
			if !t.Failed() {
				queuetest.Check(t, s.Client, s.Prefix)
			}
		})
		test(t, newWorld(t, s, "topic", groups...))
	}
}

// own runs a test on two servers that belong to it, which it may flush.
func own(t *testing.T, test func(t *testing.T, w *world), groups ...string) {
	t.Helper()
	run := func(t *testing.T, s redistest.Server) {
		s.Prefix = "own"
		test(t, newWorld(t, s, "topic", groups...))
		queuetest.Check(t, s.Client, s.Prefix)
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		mini, client := redistest.Embedded(t)
		run(t, redistest.Server{Client: client, Mini: mini})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		run(t, redistest.Server{Client: redistest.Start(t).Client(t)})
	})
}

func newWorld(t tb, s redistest.Server, topic string, groups ...string) *world {
	w := &world{Server: s, t: t, topic: topicOf(s.Client, s.Prefix, topic),
		keys: queue.NewKeys(s.Prefix, topic), ids: queue.NewIDs(), id: map[string]string{}, name: map[string]string{}}
	if s.Mini != nil {
		s.Mini.SetTime(time.Now().Truncate(time.Millisecond))
	}
	w.start = w.now()
	for _, g := range groups {
		w.register(g)
	}
	return w
}

func (w *world) register(group string) {
	w.t.Helper()
	require.NoError(w.t, w.topic.Register(ctx, group, standard))
}

// Time.

// now is the server's time in ms, rounded down.
func (w *world) now() int64 {
	w.t.Helper()
	now, err := w.Client.Time(ctx).Result()
	require.NoError(w.t, err)
	return now.UnixMilli()
}

// pass returns when the server's clock has moved on that far.
func (w *world) pass(d time.Duration) { w.passUntil(w.now() + d.Milliseconds()) }

func (w *world) passUntil(ms int64) {
	if w.Mini != nil {
		if ms > w.now() {
			w.Mini.SetTime(time.UnixMilli(ms))
		}
		return
	}
	for w.now() < ms {
		time.Sleep(time.Duration(ms-w.now()) * time.Millisecond) // only to spare the processor
	}
}

// travel has everything that was to come until then be due, without waiting: on the real server
// what is stored moves instead of the clock.
func (w *world) travel(d time.Duration) {
	w.t.Helper()
	if w.Mini != nil {
		w.pass(d)
		return
	}
	groups := w.registered()
	keys := []string{w.keys.Pending(), w.keys.Idle(), w.keys.Taken(), w.keys.Resumes(), w.keys.Programs(), w.keys.Restored()}
	for _, g := range groups {
		keys = append(keys, w.keys.Retry(g), w.keys.Unack(g), w.keys.Dead(g), w.keys.Waiters(g), w.keys.Resting(g), w.keys.Standby(g), w.keys.Limited(g), w.keys.RestoredRetries(g))
	}
	for _, key := range keys {
		members, err := w.Client.ZRangeWithScores(ctx, key, 0, -1).Result()
		require.NoError(w.t, err)
		for i := range members {
			members[i].Score -= float64(d.Milliseconds())
		}
		for part := range slices.Chunk(members, 1000) {
			require.NoError(w.t, w.Client.ZAdd(ctx, key, part...).Err())
		}
	}
	for group, text := range w.Client.HGetAll(ctx, w.keys.Active()).Val() {
		part := strings.Fields(text)
		if ends := must(strconv.ParseInt(part[2], 10, 64)); ends > 0 {
			part[2] = strconv.FormatInt(max(ends-d.Milliseconds(), 1), 10)
			w.Client.HSet(ctx, w.keys.Active(), group, strings.Join(part, " "))
		}
	}
	for group, text := range w.Client.HGetAll(ctx, w.keys.Limits()).Val() {
		part := strings.Fields(text)
		part[0] = strconv.FormatFloat(max(must(strconv.ParseFloat(part[0], 64))-float64(d.Microseconds()), 0), 'f', 2, 64)
		for _, i := range []int{1, 3} {
			if ms := must(strconv.ParseInt(part[i], 10, 64)); ms > 0 {
				part[i] = strconv.FormatInt(ms-d.Milliseconds(), 10)
			}
		}
		w.Client.HSet(ctx, w.keys.Limits(), group, strings.Join(part, " "))
	}
	fields := map[string][]string{w.keys.Scheduler(): {"next", "until", "look"}}
	for _, g := range groups {
		fields[w.keys.Stats(g)] = []string{"asked"}
		var at, times int64
		if n, _ := fmt.Sscan(w.Client.HGet(ctx, w.keys.Stats(g), "ending").Val(), &at, &times); n == 2 {
			w.Client.HSet(ctx, w.keys.Stats(g), "ending", fmt.Sprint(at-d.Milliseconds(), " ", times))
		}
	}
	for key, its := range fields {
		for _, field := range its {
			if w.Client.HExists(ctx, key, field).Val() {
				require.NoError(w.t, w.Client.HIncrBy(ctx, key, field, -d.Milliseconds()).Err())
			}
		}
	}
}

// many is more than 10,000 messages, or what the embedded server can do within its client's
// timeout.
func (w *world) many() int {
	if w.Mini != nil {
		return 2100
	}
	return 10_100
}

// Publishing.

type message struct {
	name    string
	due     queue.Due
	options queue.Options
}

func now(name string) message                  { return message{name: name} }
func in(name string, d time.Duration) message  { return message{name: name, due: queue.In(d)} }
func at(name string, ms int64) message         { return message{name: name, due: queue.At(time.UnixMilli(ms))} }
func (m message) with(o queue.Options) message { m.options = o; return m }
func names(format string, from, to int) (s []string) {
	for i := from; i < to; i++ {
		s = append(s, fmt.Sprintf(format, i))
	}
	return s
}

// make gives messages their IDs.
func (w *world) make(messages ...message) []queue.Message {
	w.t.Helper()
	made := make([]queue.Message, len(messages))
	for i, m := range messages {
		id, err := w.ids.Next(time.Now())
		require.NoError(w.t, err)
		w.id[m.name], w.name[id] = id, m.name
		made[i] = queue.Message{ID: id, Due: m.due, Options: m.options, Body: []byte(m.name)}
	}
	return made
}

// publish publishes in one call.
func (w *world) publish(messages ...message) {
	w.t.Helper()
	w.calls++
	require.NoError(w.t, w.topic.Publish(ctx, "PUBLISHER", w.calls, w.make(messages...)))
}

// publishNow publishes messages that are due, in one call.
func (w *world) publishNow(names ...string) {
	w.t.Helper()
	messages := make([]message, len(names))
	for i, name := range names {
		messages[i] = now(name)
	}
	w.publish(messages...)
}

// suspect makes messages suspects, with so many expired leases in a row.
func (w *world) suspect(group string, expiries int, names ...string) {
	w.t.Helper()
	for _, name := range names {
		record := cmp.Or(w.field(w.keys.Deliveries(group), name), "0 d -")
		require.NoError(w.t, w.Client.HSet(ctx, w.keys.Deliveries(group), w.id[name], record).Err())
		require.NoError(w.t, w.Client.HSet(ctx, w.keys.Suspects(group), w.id[name], fmt.Sprint(expiries, " - -")).Err())
	}
}

// Subscribing.

// sub is a subscription.
type sub struct {
	w      *world
	group  *operate.Group
	id     string
	number uint64
}

func (w *world) sub(group string) *sub {
	w.subs++
	return &sub{w: w, group: w.topic.Group(group), id: fmt.Sprintf("SUB%d", w.subs)}
}

// turns is sub for a group with SingleActive.
func (w *world) turns(group string) *sub {
	s := w.sub(group)
	s.group.SingleActive()
	return s
}

// query is the subscription's next claim. It is for an hour, of a consumer that has one message at
// once and does not want to be woken.
func (s *sub) query(limit int, edits ...func(*queue.Claim)) queue.Claim {
	s.number++
	c := queue.Claim{Subscription: s.id, Number: s.number, Limit: limit, Most: 1, Lease: time.Hour,
		Address: s.w.Prefix + ":nowhere|" + s.id, Patience: time.Hour, Bytes: 1 << 20}
	for _, edit := range edits {
		edit(&c)
	}
	return c
}

func (s *sub) ask(c queue.Claim) queue.Claimed {
	s.w.t.Helper()
	call := s.group.ClaimCall(c)
	s.w.do(call)
	claimed, err := c.ReadClaim(call.Cmd())
	require.NoError(s.w.t, err)
	require.False(s.w.t, claimed.Now.UnixMilli() < s.w.start || claimed.Now.UnixMilli() > s.w.now())
	claimed.Now = time.Time{} // what else a repeat returns is the same
	return claimed
}

func (s *sub) claim(limit int, edits ...func(*queue.Claim)) queue.Claimed {
	s.w.t.Helper()
	return s.ask(s.query(limit, edits...))
}

func lease(d time.Duration) func(*queue.Claim) { return func(c *queue.Claim) { c.Lease = d } }
func upTo(n int) func(*queue.Claim)            { return func(c *queue.Claim) { c.Bytes = n } }
func holding(n int) func(*queue.Claim)         { return func(c *queue.Claim) { c.Held = n } }
func most(n int) func(*queue.Claim)            { return func(c *queue.Claim) { c.Most = n } }
func busy(c *queue.Claim)                      { c.Held = 1 }

// idle has the claim wait at an address.
func idle(slots int, address string) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Slots, c.Address = slots, address }
}

// bodies are the names of claimed messages.
func bodies(c queue.Claimed) []string {
	bodies := []string{}
	for _, m := range c.Messages {
		bodies = append(bodies, string(m.Body))
	}
	return bodies
}

// held are claimed messages, as settling takes them.
func held(c queue.Claimed) []*queue.Leased {
	var held []*queue.Leased
	for i := range c.Messages {
		held = append(held, &c.Messages[i])
	}
	return held
}

// delivered is how many deliveries a group has counted.
func delivered(g operate.GroupCounts) (n int) {
	for _, in := range g.Lateness() {
		n += in
	}
	return n
}

// died is how many dead messages a group has counted.
func died(g operate.GroupCounts) (n int) {
	for _, field := range queue.GroupCounters {
		if strings.HasPrefix(field, "dead_") && field != "dead_purged" {
			n += g.Counter(field)
		}
	}
	return n
}

// Calls.

func (w *world) do(calls ...*queue.Call) {
	w.t.Helper()
	require.NoError(w.t, do(ctx, w.Client, calls...))
}

// count runs calls and adds up how many messages each says it settled.
func (w *world) count(calls ...*queue.Call) (settled int) {
	w.t.Helper()
	w.do(calls...)
	for _, c := range calls {
		settled += int(c.Reply().(int64))
	}
	return settled
}

func (s *sub) ack(messages ...*queue.Leased) int {
	s.w.t.Helper()
	return s.w.count(s.group.AckCalls(messages)...)
}

func (s *sub) release(messages ...*queue.Leased) int {
	s.w.t.Helper()
	return s.w.count(s.group.ReleaseCalls(messages, false)...)
}

func (s *sub) nack(failures ...queue.Failure) int {
	s.w.t.Helper()
	return s.w.count(s.group.NackCalls(failures)...)
}

// failed is the end of a delivery, to be retried at once unless edited.
func failed(m *queue.Leased, edits ...func(*queue.Failure)) queue.Failure {
	f := queue.Failure{Leased: m, Limit: standard.MaxDeliveries}
	for _, edit := range edits {
		edit(&f)
	}
	return f
}

func after(d time.Duration) func(*queue.Failure) {
	return func(f *queue.Failure) { f.Retry = queue.In(d) }
}

// promote is one look of a scheduler at the topic.
func (w *world) promote(address string) queue.Turn {
	w.t.Helper()
	return w.promotes(address, true)
}

func (w *world) promotes(address string, full bool) queue.Turn {
	w.t.Helper()
	for {
		groups, err := w.topic.Groups(ctx)
		require.NoError(w.t, err)
		call := w.topic.PromoteCall(groups, address, time.Minute, full)
		w.do(call)
		turn, stale, err := w.topic.ReadTurn(call, groups)
		require.NoError(w.t, err)
		if !stale {
			return turn
		}
	}
}

// promoteAll looks until nothing is due.
func (w *world) promoteAll() {
	w.t.Helper()
	for {
		w.promote("scheduler|1")
		if !w.anyDue() {
			return
		}
	}
}

func (w *world) anyDue() bool {
	w.t.Helper()
	groups := w.registered()
	keys := []string{w.keys.Pending()}
	for _, g := range groups {
		keys = append(keys, w.keys.Retry(g))
	}
	for _, key := range keys {
		n, err := w.Client.ZCount(ctx, key, "-inf", fmt.Sprint(w.now())).Result()
		require.NoError(w.t, err)
		if n > 0 {
			return true
		}
	}
	return false
}

func (w *world) expire() (more bool) {
	w.t.Helper()
	more, err := w.topic.Expire(ctx)
	require.NoError(w.t, err)
	return more
}

func (w *world) purge() (more bool) {
	w.t.Helper()
	_, more, err := w.topic.Purge(ctx)
	require.NoError(w.t, err)
	return more
}

// topicOf is operate.NewTopic with any client.
func topicOf(client redis.UniversalClient, prefix, name string) *operate.Topic {
	return operate.NewTopic(servers.MustClient(client), prefix, name)
}

// streamTopicOf is queue.NewStreamTopic with any client.
func streamTopicOf(client redis.UniversalClient, prefix, name string, options queue.StreamOptions) *operate.Topic {
	return &operate.Topic{Topic: queue.NewStreamTopic(servers.MustClient(client), prefix, name, options)}
}

// do is queue.Do with any client.
func do(ctx context.Context, client redis.UniversalClient, calls ...*queue.Call) error {
	return queue.Do(ctx, servers.MustClient(client), calls...)
}
