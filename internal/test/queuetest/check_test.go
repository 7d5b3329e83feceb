package queuetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { redistest.Main(m) }

// fixture is a topic with a message in every state.
type fixture struct {
	redistest.Server
	keys  queue.Keys
	topic *queue.Topic
	ids   *queue.IDs

	pending, ready, unack, retry, dead string // ids, all of group a; b has all but pending in ready
}

const topicName = "a{topic}%7B"

func newFixture(t *testing.T, s redistest.Server) *fixture {
	f := &fixture{Server: s, keys: queue.NewKeys(s.Prefix, topicName), ids: queue.NewIDs(),
		topic: queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topicName)}
	options := queue.GroupOptions{MaxDeliveries: 3, Retention: time.Hour}
	require.NoError(t, f.topic.Register(ctx, "a", options))
	require.NoError(t, f.topic.Register(ctx, "b:*", options))

	group := f.topic.Group("a")
	claim := func(number uint64) *queue.Leased {
		c := queue.Claim{Subscription: "SUBSCRIPTION", Number: number, Limit: 1, Lease: time.Minute, Slots: 1,
			Address: "channel|1", Patience: time.Minute, Bytes: 1 << 20}
		call := group.ClaimCall(c)
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
		claimed, err := c.ReadClaim(call.Cmd())
		require.NoError(t, err)
		require.Len(t, claimed.Messages, 1)
		return &claimed.Messages[0]
	}
	nack := func(failure queue.Failure) {
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls([]queue.Failure{failure})...))
	}
	f.dead = f.publish(t, 1, queue.In(0))
	nack(queue.Failure{Leased: claim(1), Dead: true, Reason: "an error\nof two lines"})
	f.retry = f.publish(t, 2, queue.In(0))
	nack(queue.Failure{Leased: claim(2), Limit: 3, Retry: queue.In(time.Minute), DelayedFor: "1m"})
	f.unack = f.publish(t, 3, queue.In(0))
	claim(3)
	f.ready = f.publish(t, 4, queue.In(0))
	f.pending = f.publish(t, 5, queue.In(time.Minute))

	groups, err := f.topic.Groups(ctx)
	require.NoError(t, err)
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), f.topic.PromoteCall(groups, "channel|2", time.Minute, true)))
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), f.topic.PromoteCall(groups, "channel|3", time.Minute, true)))
	return f
}

func (f *fixture) publish(t *testing.T, number uint64, due queue.Due) string {
	id, err := f.ids.Next(time.Now())
	require.NoError(t, err)
	m := queue.Message{ID: id, Due: due, Body: []byte("body"), Options: queue.Options{MaxDeliveries: 5}}
	require.NoError(t, f.topic.Publish(ctx, "PUBLISHER", number, []queue.Message{m}))
	return id
}

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestTopicWithAMessageInEveryStateHasNoViolations(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		f := newFixture(t, s)
		f.publish(t, 6, queue.In(0))
		Check(t, s.Client, s.Prefix)
		require.NoError(t, s.Client.Set(ctx, s.Prefix+"-other:{topic}:key", "x", time.Hour).Err())
		require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), "named and never used").Err())
		Check(t, s.Client, s.Prefix)
		Check(t, s.Client, s.Prefix+":nothing is here")
	})
}

func TestGroupBeingRemovedKeepsItsMessages(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		f := newFixture(t, s)
		require.NoError(t, s.Client.HDel(ctx, f.keys.Groups(), "a").Err())
		require.NoError(t, s.Client.ZAdd(ctx, f.keys.Idle(), redis.Z{Score: 0, Member: "a"}).Err())
		Check(t, s.Client, s.Prefix)
		require.NoError(t, s.Client.Del(ctx, f.keys.Ready("a")).Err())
		found, err := Violations(ctx, s.Client, s.Prefix)
		require.NoError(t, err)
		require.NotEmpty(t, found)
	})
}

func TestNothingIsScheduledWithoutAGroup(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		topic := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, "topic")
		id, err := queue.NewIDs().Next(time.Now())
		require.NoError(t, err)
		require.NoError(t, topic.Publish(ctx, "PUBLISHER", 1, []queue.Message{{ID: id}}))
		Check(t, s.Client, s.Prefix)
	})
}

func TestEachKindOfDamageIsFound(t *testing.T) {
	const stranger = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	damages := []struct {
		name   string
		damage func(f *fixture, c redis.UniversalClient) error
		found  string // the id of a message is X
	}{
		{"topic not in the registry", func(f *fixture, c redis.UniversalClient) error {
			return c.Del(ctx, queue.Registry(f.Prefix)).Err()
		}, `it is not in the registry`},
		{"registry that expires", func(f *fixture, c redis.UniversalClient) error {
			return c.Expire(ctx, queue.Registry(f.Prefix), time.Hour).Err()
		}, `:topics has a TTL`},
		{"registry of a wrong type", func(f *fixture, c redis.UniversalClient) error {
			c.Del(ctx, queue.Registry(f.Prefix))
			return c.Set(ctx, queue.Registry(f.Prefix), "x", 0).Err()
		}, `:topics is not a set`},
		{"unknown key of the prefix", func(f *fixture, c redis.UniversalClient) error {
			return c.Set(ctx, f.Prefix+":other", "x", 0).Err()
		}, `unknown key "PREFIX:other"`},
		{"unknown key of the topic", func(f *fixture, c redis.UniversalClient) error {
			return c.Set(ctx, strings.TrimSuffix(f.keys.Meta(), "meta")+"other", "x", 0).Err()
		}, `unknown key "PREFIX:{a%7Btopic%7D%257B}:other"`},
		{"record of a schedule that cannot be read", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Schedules(), "s", "1 2 x").Err()
		}, `the record of schedule "s" is "1 2 x"`},
		{"key of the topic with a name that it does not have", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Meta()+":", "x", 0).Err()
		}, `:meta:"`},
		{"key of a group without one", func(f *fixture, c redis.UniversalClient) error {
			return c.RPush(ctx, strings.TrimSuffix(f.keys.Meta(), "meta")+"ready", "x").Err()
		}, `:ready"`},
		{"key of a topic whose name is not encoded", func(f *fixture, c redis.UniversalClient) error {
			return c.Set(ctx, f.Prefix+":{100%}:meta", "x", 0).Err()
		}, `unknown key "PREFIX:{100%}:meta"`},
		{"index of a wrong type", func(f *fixture, c redis.UniversalClient) error {
			c.Del(ctx, f.keys.Retry("a"))
			return c.Set(ctx, f.keys.Retry("a"), "x", 0).Err()
		}, `:retry:a is a string, not a zset`},
		{"bodies of a wrong type", func(f *fixture, c redis.UniversalClient) error {
			c.Del(ctx, f.keys.Messages())
			return c.Set(ctx, f.keys.Messages(), "x", 0).Err()
		}, `:messages is a string, not a hash`},
		{"groups of a wrong type", func(f *fixture, c redis.UniversalClient) error {
			c.Del(ctx, f.keys.Groups())
			return c.Set(ctx, f.keys.Groups(), "x", 0).Err()
		}, `:groups is a string, not a hash`},
		{"index that expires", func(f *fixture, c redis.UniversalClient) error {
			return c.Expire(ctx, f.keys.Messages(), time.Hour).Err()
		}, `:messages has a TTL`},
		{"publisher that never expires", func(f *fixture, c redis.UniversalClient) error {
			return c.Persist(ctx, f.keys.Publisher("PUBLISHER")).Err()
		}, `:publisher:PUBLISHER has no TTL`},
		{"publisher without a number", func(f *fixture, c redis.UniversalClient) error {
			return c.Set(ctx, f.keys.Publisher("PUBLISHER"), "x", time.Hour).Err()
		}, `:publisher:PUBLISHER is "x", not the number of a call`},
		{"claim that never expires", func(f *fixture, c redis.UniversalClient) error {
			return c.Persist(ctx, f.keys.Claim("SUBSCRIPTION")).Err()
		}, `:claim:SUBSCRIPTION has no TTL`},
		{"claim of another form", func(f *fixture, c redis.UniversalClient) error {
			return c.Set(ctx, f.keys.Claim("SUBSCRIPTION"), "3 x", time.Hour).Err()
		}, `:claim:SUBSCRIPTION is "3 x", not a claim`},
		{"key of a group that is not registered", func(f *fixture, c redis.UniversalClient) error {
			return c.RPush(ctx, f.keys.Ready("c"), f.ready+":1").Err()
		}, `:ready:c is of a group that is not registered`},
		{"other layout", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Meta(), "layout", "0").Err()
		}, `meta: layout is "0", not "2"`},
		{"no version of the groups", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Meta(), "groups").Err()
		}, `meta: the set of groups has no version`},
		{"unknown field of meta", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Meta(), "other", "x").Err()
		}, `meta: unknown field "other": "x"`},
		{"options of a group", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Groups(), "a", "3").Err()
		}, `group "a": its options are "3"`},
		{"entry of ready without a due time", func(f *fixture, c redis.UniversalClient) error {
			return c.LSet(ctx, f.keys.Ready("a"), 0, f.ready).Err()
		}, `group "a": ready[0] is "X", not id:due`},
		{"id that is not one", func(f *fixture, c redis.UniversalClient) error {
			c.HSet(ctx, f.keys.Messages(), strings.Repeat("U", 26), "body")
			return c.RPush(ctx, f.keys.Ready("a"), strings.Repeat("U", 26)+":1").Err()
		}, `"UUUUUUUUUUUUUUUUUUUUUUUUUU" is not a message's id`},
		{"message twice in ready", func(f *fixture, c redis.UniversalClient) error {
			return c.RPush(ctx, f.keys.Ready("a"), f.ready+":1").Err()
		}, `group "a": message X is in several places: ready, ready`},
		{"message ready and leased", func(f *fixture, c redis.UniversalClient) error {
			return c.RPush(ctx, f.keys.Ready("a"), f.unack+":1").Err()
		}, `group "a": message X is in several places: ready, unack`},
		{"message in retry and dead", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Dead("a"), redis.Z{Score: 2e12, Member: f.retry}).Err()
		}, `group "a": message X is in several places: retry, dead`},
		{"message pending and ready", func(f *fixture, c redis.UniversalClient) error {
			return c.RPush(ctx, f.keys.Ready("a"), f.pending+":1").Err()
		}, `message X is in pending and in groups ["a"]`},
		{"unack without lease", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Leases("a"), f.unack).Err()
		}, `group "a": message X is in unack without a lease`},
		{"lease without unack", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Leases("a"), f.ready, "S:1:1").Err()
		}, `group "a": message X has a lease and is not in unack`},
		{"lease's token", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Leases("a"), f.unack, "S:1").Err()
		}, `group "a": message X: its lease is "S:1", not subscription:claim:since:due`},
		{"fraction in a due time", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Pending(), redis.Z{Score: 2e12 + 0.5, Member: f.pending}).Err()
		}, `message X: its due time in pending is 2.0000000000005e+12, not a time in ms`},
		{"no body of a pending message", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Messages(), f.pending).Err()
		}, `message X is in pending without a body`},
		{"no body of a ready message", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Messages(), f.ready).Err()
		}, `message X is in groups ["a" "b:*"] without a body`},
		{"body without a state", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Messages(), stranger, "body").Err()
		}, `message X has a body and no state`},
		{"options without a body", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Options(), stranger, "max_deliveries:5").Err()
		}, `message X has options ("max_deliveries:5") and no body`},
		{"options of another form", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Options(), f.ready, "max_deliveries:0").Err()
		}, `message X: its options are "max_deliveries:0"`},
		{"too few refs", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Refs(), f.ready, 1).Err()
		}, `message X: refs says "1" groups need it, and it is in 2: ["a" "b:*"]`},
		{"no refs", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Refs(), f.ready).Err()
		}, `message X is in 2 groups and not in refs`},
		{"refs of a pending message", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Refs(), f.pending, 2).Err()
		}, `message X: refs says "2" groups need it, and it is in 0`},
		{"refs of no message", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Refs(), stranger, 0).Err()
		}, `message X: refs says "0" groups need it, and it is in 0`},
		{"deliveries without a state", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Deliveries("a"), stranger, "1 - -").Err()
		}, `group "a": message X has a record of deliveries ("1 - -") and no state`},
		{"deliveries of another form", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Deliveries("a"), f.retry, "1 x -").Err()
		}, `group "a": message X: its record of deliveries is "1 x -"`},
		{"retry without deliveries", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Deliveries("a"), f.retry).Err()
		}, `group "a": message X is in retry without a record of deliveries`},
		{"deliveries of a suspect as they were in layout 1", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Deliveries("a"), f.ready, "1 s -").Err()
		}, `group "a": message X: its record of deliveries is "1 s -"`},
		{"suspect without a state", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), stranger, "1 - -").Err()
		}, `group "a": message X is in suspects ("1 - -") and has no state`},
		{"suspect that waits for a retry", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), f.retry, "1 - S:1:1").Err()
		}, `group "a": message X is in suspects ("1 - S:1:1") and retry`},
		{"suspect that is dead", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), f.dead, "2 alone S:1:1").Err()
		}, `group "a": message X is in suspects ("2 alone S:1:1") and dead`},
		{"suspect without deliveries", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), f.ready, "1 - -").Err()
		}, `group "a": message X is in suspects without a record of deliveries`},
		{"suspect without an expiry", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), f.ready, "0 - -").Err()
		}, `group "a": message X: its entry in suspects is "0 - -"`},
		{"suspect of another form", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Suspects("a"), f.ready, "2 alone S").Err()
		}, `group "a": message X: its entry in suspects is "2 alone S"`},
		{"active subscription that nobody waits for", func(f *fixture, c redis.UniversalClient) error {
			c.HSet(ctx, f.keys.Groups(), "a", "5 1000 -1 single")
			c.Del(ctx, f.keys.Waiters("a"))
			return c.HSet(ctx, f.keys.Active(), "a", "S 1 0 1000").Err()
		}, `group "a": its active subscription neither waits nor has to claim: "S 1 0 1000"`},
		{"waiter without a receiver", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Waiters("a"), redis.Z{Score: 1, Member: "channel"}).Err()
		}, `group "a": waiter "channel" is not an address`},
		{"no next event", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Scheduler(), "next").Err()
		}, `scheduler: it has no next event, and the`},
		{"pending before the next event", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Pending(), redis.Z{Score: 1000, Member: f.pending}).Err()
		}, `earlier, at 1000`},
		{"retry before the next event", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Retry("a"), redis.Z{Score: 1000, Member: f.retry}).Err()
		}, `the retry in group "a" of message X is`},
		{"lease before the next event", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Unack("a"), redis.Z{Score: 1000.25, Member: f.unack}).Err()
		}, `earlier, at 1000`},
		{"retention before the next event", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Dead("a"), redis.Z{Score: 1000, Member: f.dead}).Err()
		}, `earlier, at 3601000`},
		{"too many dead messages before the next event", func(f *fixture, c redis.UniversalClient) error {
			if err := c.ZAdd(ctx, f.keys.Dead("a"), redis.Z{Score: 2000, Member: f.retry}).Err(); err != nil {
				return err
			}
			return c.HSet(ctx, f.keys.Groups(), "a", "3 -1 1").Err()
		}, `one dead message too many in group "a"`},
		{"group that ends before the next event", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Idle(), redis.Z{Score: 1000, Member: "a"}).Err()
		}, `the end of group a is`},
		{"end of a group", func(f *fixture, c redis.UniversalClient) error {
			return c.ZAdd(ctx, f.keys.Idle(), redis.Z{Score: 3e12 + 0.5, Member: "a"}).Err()
		}, `group "a": its end in idle is 3.0000000000005e+12, not a time in ms`},
		{"unknown counter of the topic", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Counters(), "other", "1").Err()
		}, `stats: "other" is "1"`},
		{"unknown field of the scheduler", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Scheduler(), "other", "x").Err()
		}, `scheduler: unknown field "other": "x"`},
		{"time of the scheduler", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Scheduler(), "next", "1.5e3").Err()
		}, `scheduler: next is "1.5e3", not a time in ms`},
		{"holder without address", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Scheduler(), "holder", "me").Err()
		}, `scheduler: holder is "me", not an address`},
		{"standby for ever", func(f *fixture, c redis.UniversalClient) error {
			return c.HDel(ctx, f.keys.Scheduler(), "until").Err()
		}, `scheduler: standby is "channel|3", until is "": both or none`},
		{"its own standby", func(f *fixture, c redis.UniversalClient) error {
			return c.HSet(ctx, f.keys.Scheduler(), "standby", "channel|2").Err()
		}, `scheduler: "channel|2" is both holder and standby`},
	}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				f := newFixture(t, s)
				require.NoError(t, d.damage(f, s.Client))
				found, err := Violations(ctx, s.Client, s.Prefix)
				require.NoError(t, err)
				text := strings.ReplaceAll(strings.Join(found, "\n"), s.Prefix, "PREFIX")
				for _, id := range []string{f.pending, f.ready, f.unack, f.retry, f.dead, stranger} {
					text = strings.ReplaceAll(text, id, "X")
				}
				require.Contains(t, text, d.found)

				failing := &recorder{}
				Check(failing, s.Client, s.Prefix)
				require.Len(t, failing.failures, 1)
				require.Contains(t, failing.failures[0], found[0])
			})
		})
	}
}

func TestDrainedTopicHasNoMessagesAndNoTraceOfThem(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		f := newFixture(t, s)
		failing := &recorder{}
		CheckDrained(failing, s.Client, s.Prefix, Live())
		require.Len(t, failing.failures, 1)
		for _, key := range []string{f.keys.Messages(), f.keys.Options(), f.keys.Refs(), f.keys.Pending(), f.keys.Ready("a"),
			f.keys.Unack("a"), f.keys.Leases("a"), f.keys.Retry("a"), f.keys.Deliveries("a"), f.keys.Dead("a")} {
			require.Contains(t, failing.failures[0], key+" is left: ")
			require.NoError(t, s.Client.Del(ctx, key, f.keys.Ready("b:*")).Err())
		}
		CheckDrained(t, s.Client, s.Prefix, Live())

		require.NoError(t, s.Client.ZAdd(ctx, f.keys.Waiters("a"), redis.Z{Score: 1, Member: "channel|1"}).Err())
		CheckDrained(t, s.Client, s.Prefix, Live())
		failing = &recorder{}
		CheckDrained(failing, s.Client, s.Prefix)
		require.Len(t, failing.failures, 1)
		require.Contains(t, failing.failures[0], f.keys.Waiters("a")+" is left: ")
		require.Contains(t, failing.failures[0], f.keys.Claim("SUBSCRIPTION")+" is left: ")
		require.NoError(t, s.Client.Del(ctx, f.keys.Waiters("a"), f.keys.Claim("SUBSCRIPTION")).Err())
		CheckDrained(t, s.Client, s.Prefix)
	})
}

func TestLongListsAreCut(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		for i := range 60 {
			require.NoError(t, s.Client.Set(ctx, fmt.Sprintf("%s:%d", s.Prefix, i), "x", 0).Err())
		}
		failing := &recorder{}
		Check(failing, s.Client, s.Prefix)
		require.Len(t, failing.failures, 1)
		require.Contains(t, failing.failures[0], "... and 10 more")
	})
}

func TestUnreadableStateFailsTheTest(t *testing.T) {
	_, client := redistest.Embedded(t)
	require.NoError(t, client.Close())
	failing := &recorder{}
	Check(failing, client, "prefix")
	require.Len(t, failing.failures, 1)
	require.Contains(t, failing.failures[0], "cannot read the state")
}

func TestTopicInUseHasNoViolations(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		f := newFixture(t, s)
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(done)
			group := f.topic.Group("b:*")
			for n := uint64(100); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id, err := f.ids.Next(time.Now())
				if err == nil {
					err = f.topic.Publish(ctx, "PUBLISHER", n, []queue.Message{{ID: id, Body: []byte("body")}})
				}
				c := queue.Claim{Subscription: "OTHER", Number: n, Limit: 2, Lease: time.Minute, Bytes: 1}
				call := group.ClaimCall(c)
				if err == nil {
					err = queue.Do(ctx, servers.MustClient(s.Client), call)
				}
				var claimed queue.Claimed
				if err == nil {
					claimed, err = c.ReadClaim(call.Cmd())
				}
				for i := range claimed.Messages {
					if err == nil {
						err = queue.Do(ctx, servers.MustClient(s.Client), group.AckCalls([]*queue.Leased{&claimed.Messages[i]})...)
					}
				}
				if err == nil && n%10 == 0 && n < 150 {
					err = f.topic.Register(ctx, fmt.Sprint(n), queue.GroupOptions{})
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
		for range 50 {
			Check(t, s.Client, s.Prefix)
		}
		close(stop)
		require.NoError(t, <-done)
	})
}

func TestFullServerCanBeChecked(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, "--maxmemory-policy", "noeviction").Client(t)
	f := newFixture(t, redistest.Server{Client: client, Prefix: "own"})
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	Check(t, client, "own")
	require.NoError(t, client.HDel(ctx, f.keys.Leases("a"), f.unack).Err())
	found, err := Violations(ctx, client, "own")
	require.NoError(t, err)
	require.Len(t, found, 1)
}

func TestHoldingsHaveTheStateOfEachMessage(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		f := newFixture(t, s)
		held, found, err := Holdings(ctx, s.Client, s.Prefix)
		require.NoError(t, err)
		require.Empty(t, found)
		at := func(group, id string) Holding { return held[Place{topicName, group, id}] }
		for id, state := range map[string]string{f.pending: "waiting", f.ready: "ready", f.unack: "in_hand", f.retry: "retrying", f.dead: "dead"} {
			require.Equal(t, state, at("a", id).State)
			require.Contains(t, []string{"waiting", "ready"}, at("b:*", id).State)
		}
		require.Regexp(t, `^SUBSCRIPTION:3:\d+:\d+$`, at("a", f.unack).Token)
		require.Len(t, held, 10)
	})
}
