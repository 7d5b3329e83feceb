package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

const saysThatDataWasLost = "The consumer group is gone from Redis"

func TestAllDataLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(l *load, server *redistest.Instance){
		"by FLUSHALL":                   func(l *load, _ *redistest.Instance) { require.NoError(t, l.w.Client.FlushAll(t.Context()).Err()) },
		"by a restart without its data": func(_ *load, server *redistest.Instance) { server.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := faulttest.Pick(1, 10)
			faulttest.Case(t, "all goes on without a restart of anything, and the log says that data was lost; what was in Redis is lost")
			server := redistest.Start(t)
			l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) { w.PauseMS = 200 }) // data is known to be lost after some seconds
			rules := byPollRules
			rules.LosesData = true
			for range rounds {
				safe := l.settle(t) // all that came before is held to all rules
				l.progress(t, 40)
				said := l.w.Logs(saysThatDataWasLost)
				lost := time.Now().UnixNano()
				lose(l, server)
				gone := time.Now().UnixNano()
				l.awaitGroups(t)
				rules.LosesIn = append(rules.LosesIn, faulttest.Span{Safe: safe, Killed: time.Now().UnixNano()})
				faulttest.Eventually(t, func() bool { return l.w.Logs(saysThatDataWasLost) > said }, time.Minute, 20*time.Millisecond, "the log does not say that data was lost")
				l.progress(t, 40)
				require.Empty(t, l.revived(lost, gone))
			}
			l.w.Verify(rules)
			faulttest.Report(t, fmt.Sprintf("%d times", rounds))
		})
	}
}

// settle waits until all that was published is settled, by publishers that end. It returns when
// that was, and has others go on.
func (l *load) settle(t *testing.T) (at int64) {
	t.Helper()
	for _, publisher := range l.publishers {
		publisher.Stop()
	}
	l.w.Drain(time.Minute)
	l.noteDead(t)
	at = time.Now().UnixNano()
	for i, publisher := range l.publishers {
		successor := publisher.Worker
		successor.Name += "+"
		l.publishers[i] = l.w.Start(successor)[0]
	}
	return at
}

// noteDead writes down the dead letters, and removes them. Afterwards nobody could tell that they
// were there.
func (l *load) noteDead(t *testing.T) {
	t.Helper()
	k := queue.NewKeys(l.w.Prefix, "t")
	for _, group := range l.w.Groups {
		ids, err := l.w.Client.ZRange(t.Context(), k.Dead(group), 0, -1).Result()
		require.NoError(t, err)
		if len(ids) == 0 {
			continue
		}
		for _, id := range ids {
			body, err := l.w.Client.HGet(t.Context(), k.Messages(), id).Bytes()
			require.NoError(t, err)
			msg, err := redisdelay.BinaryMarshaler{}.Unmarshal("t", body)
			require.NoError(t, err)
			l.w.Note(faulttest.Event{Kind: faulttest.Dead, Topic: "t", Group: group, ID: id, UUID: msg.UUID, Sum: faulttest.SumOf(msg)})
		}
		_, err = operate.NewTopic(servers.MustClient(l.w.Client), l.w.Prefix, "t").Group(group).Discard(t.Context(), ids)
		require.NoError(t, err)
	}
}

// revived are claims, after all data was gone, of messages that were confirmed before.
func (l *load) revived(before, gone int64) (found []string) {
	confirmed, names := map[string]bool{}, map[string]string{}
	history := l.w.History()
	for _, e := range history {
		switch {
		case e.Kind == faulttest.Published && e.At < before:
			confirmed[e.UUID] = true
		case e.Kind == faulttest.Start:
			names[e.ID] = e.UUID
		}
	}
	for _, e := range history {
		if e.Kind == faulttest.Claimed && e.Sent > gone && confirmed[names[e.ID]] {
			found = append(found, e.String())
		}
	}
	return found
}

// awaitGroups waits until all groups are there again. What is published from then on is for each of
// them.
func (l *load) awaitGroups(t *testing.T) {
	t.Helper()
	for _, topic := range l.w.Topics {
		key := queue.NewKeys(l.w.Prefix, topic).Groups()
		all := func() bool { return l.w.Client.HLen(t.Context(), key).Val() == int64(len(l.w.Groups)) }
		faulttest.Eventually(t, all, time.Minute, time.Millisecond)
	}
}

func TestMemoryFull(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "maxmemory with noeviction: Publish fails whole with Redis's OOM error, and claims, acks and nacks go on and make room")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 5, WorkMS: 5, BackoffMS: 20, MaxDeliveries: loadDeliveries})
	publisher := w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Callers: 4, PauseMS: 10, Payload: 20_000, DelaysMS: []int{0, 200, 1000}, Do: mixed,
	})[0]
	w.Handled(20)
	w.StopLooking() // it takes transactions, which a full server refuses
	info, err := w.Client.Info(t.Context(), "memory").Result()
	require.NoError(t, err)
	_, used, _ := strings.Cut(info, "used_memory:")
	var bytes int
	_, err = fmt.Sscan(used, &bytes)
	require.NoError(t, err)
	require.NoError(t, w.Client.ConfigSet(t.Context(), "maxmemory", fmt.Sprint(bytes+1<<20)).Err())
	for range faulttest.Pick(2, 20) {
		w.AwaitEvents(faulttest.Failed, w.Count(faulttest.Failed)+10)
		w.Handled(w.Count(faulttest.Start) + 20)
	}
	publisher.Stop()
	w.Drain(time.Minute)
	figures := w.Verify(loadRules)
	require.Positive(t, figures.Refused)
	for _, e := range w.History() {
		if e.Kind == faulttest.Failed {
			require.Contains(t, e.Err, "OOM command not allowed when used memory > 'maxmemory'")
		}
	}
}

func TestEvictionPolicyIsWarnedOf(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a maxmemory-policy by which Redis may evict messages: publishers and subscribers say so in their logs as they begin")
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	l := newLoad(t, server, faulttest.Place{})
	l.progress(t, 10)
	l.w.Verify(loadRules)
	warned := map[string]bool{}
	for _, e := range l.w.History() {
		if e.Kind == faulttest.Logged && strings.Contains(e.Err, "set maxmemory-policy to noeviction") && strings.Contains(e.Err, "allkeys-lru") {
			warned[e.By] = true
		}
	}
	require.Len(t, warned, 5, "the workers that warn are %v", warned)
}

func TestMissingPermission(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a Redis user without the permission for a command: Publish and Subscribe fail at once and name it, and nothing is half done")
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, newSubscriber(t, redisdelay.SubscriberConfig{Client: admin}).SubscribeInitialize("t"))
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: admin}, nil)
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("t", message.NewMessage("1", nil)))
	before := admin.DBSize(t.Context()).Val()
	commands := []string{
		"evalsha", "hset", "hget", "hdel", "zadd", "zrem", "zrange", "lpush", "rpush", "lpop", "ltrim", "set", "get", "del", "hincrby", "time",
		"sismember", "subscribe", "publish",
	}
	for i, command := range commands {
		user := fmt.Sprint("user-", i) // an error may name the user, which is not to pass for the command
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", "-eval", "-"+command).Err())
		place := faulttest.At(server.Addr())
		place.Username, place.Password = user, "secret"
		client := place.Client()
		named := `[+']` + command + `\b`
		for _, topic := range []string{"t", "new"} {
			messages, err := newSubscriber(t, redisdelay.SubscriberConfig{Client: client}).Subscribe(t.Context(), topic)
			require.ErrorIs(t, err, redisdelay.ErrForbidden, command)
			if topic == "t" || command != "hset" { // a script that opens a topic does not say which
				require.Regexp(t, named, err.Error())
			}
			require.Nil(t, messages)
			if command == "subscribe" || command == "publish" {
				require.Equal(t, before, admin.DBSize(t.Context()).Val(), command)
			}
		}
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		err = p.Publish("t", message.NewMessage("2", nil))
		if command == "publish" || command == "zadd" || err != nil { // it takes fewer
			require.ErrorIs(t, err, redisdelay.ErrForbidden, command)
			require.Regexp(t, named, err.Error())
		}
		require.NoError(t, p.Close())
		require.NoError(t, client.Close())
		found, err := queuetest.Violations(t.Context(), admin, redisdelay.DefaultKeyPrefix)
		require.NoError(t, err)
		require.Empty(t, found, command)
		before = admin.DBSize(t.Context()).Val()
	}
	faulttest.Report(t, fmt.Sprintf("%d commands", len(commands)))
}

func newSubscriber(t *testing.T, config redisdelay.SubscriberConfig) *redisdelay.Subscriber {
	t.Helper()
	s, err := redisdelay.NewSubscriber(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestNewerLayoutOnATopic(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a topic that a newer version takes over under load: workers of this one refuse it with ErrLayout, change nothing, and lose nothing if it is given back")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{})
	l.progress(t, 40)
	l.w.StopLooking()
	k := queue.NewKeys(l.w.Prefix, "t")
	const takeOver = `redis.call('HSET', KEYS[1], 'layout', ARGV[1], 'groups', ARGV[2]) return redis.call('RENAME', KEYS[2], KEYS[3])`
	newer := k.Groups() + ":3"
	require.NoError(t, l.w.Client.Eval(t.Context(), takeOver, []string{k.Meta(), k.Groups(), newer}, "3", "taken").Err())
	l.w.AwaitEvents(faulttest.Failed, 5)
	for _, e := range l.w.History() {
		if e.Kind == faulttest.Failed {
			require.Contains(t, e.Err, `topic has another layout version: it is "3", this program writes "2"`)
		}
	}
	subscriber := newSubscriber(t, redisdelay.SubscriberConfig{Client: l.w.Client, ConsumerGroup: "new"})
	_, err := subscriber.Subscribe(t.Context(), "t")
	require.ErrorIs(t, err, redisdelay.ErrLayout)
	require.Equal(t, map[string]string{"layout": "3", "groups": "taken"}, l.w.Client.HGetAll(t.Context(), k.Meta()).Val())
	require.Zero(t, l.w.Client.Exists(t.Context(), k.Groups()).Val())

	require.NoError(t, l.w.Client.Eval(t.Context(), takeOver, []string{k.Meta(), newer, k.Groups()}, queue.Layout, "given back").Err())
	l.progress(t, 40)
	l.w.Verify(loadRules)
}
