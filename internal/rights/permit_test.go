package rights_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// works are all that there are.
var works = []rights.Work{
	rights.Publishing, rights.Publishing.AndWaits(), rights.PublishingStreams, rights.Scheduling, rights.SchedulingStreams, rights.Consuming, rights.Spreading,
	rights.Counting, rights.Listing, rights.Surveying, rights.Killing, rights.Releasing, rights.Watching, rights.Finding, rights.Foreseeing, rights.Tailing, rights.Cancelling, rights.Rescheduling,
	rights.Requeueing, rights.RequeueingMany, rights.Discarding, rights.DiscardingMany, rights.Arriving, rights.Leaving, rights.Adopting, rights.Restoring,
	rights.Pausing, rights.Resuming, rights.Assigning, rights.Recalling, rights.Consuming.AndRecords(), rights.Reviewing, rights.Amending, rights.Recurrence, rights.RecurrenceStreams, rights.Overlapping, rights.Removing, rights.Adding, rights.Erasing, rights.Checking, rights.Repairing,
}

// opening are the works that make a topic if there is none.
var opening = []rights.Work{
	rights.Publishing, rights.Publishing.AndWaits(), rights.PublishingStreams, rights.Consuming, rights.Spreading, rights.Arriving, rights.Adding, rights.Recurrence,
	rights.RecurrenceStreams,
}

func TestOnlyWorkOnStreamsNeedsTheCommandsOfStreams(t *testing.T) {
	t.Parallel()
	for _, work := range works {
		var ofStreams []string
		for _, command := range work.Commands() {
			if strings.HasPrefix(command, "X") {
				ofStreams = append(ofStreams, command)
			}
		}
		want := map[string][]string{
			rights.PublishingStreams.Name:      {"XADD", "XDEL", "XLEN", "XTRIM"},
			rights.RecurrenceStreams.Name:      {"XADD", "XDEL", "XLEN", "XTRIM"},
			rights.SchedulingStreams.Name:      {"XADD", "XLEN", "XTRIM"},
			rights.Consuming.AndRecords().Name: {"XADD", "XLEN", "XTRIM"},
		}[work.Name]
		require.Equal(t, want, ofStreams, work.Name)
	}
}

func TestNoTwoWorksHaveOneName(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, work := range works {
		require.False(t, names[work.Name], work.Name)
		names[work.Name] = true
	}
}

func TestPermitsFindNothingWhereAllIsAllowedAndChangeNothing(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "a")
		require.NoError(t, w.topic.Publish(ctx, "publisher", 1, []queue.Message{{ID: queue.Token()}}))
		w.unchanged(func() {
			for _, work := range works {
				for range 2 {
					evicts, err := new(rights.Permits).Try(ctx, w.topic, work)
					require.NoError(t, err, work.Name)
					require.Empty(t, evicts)
				}
			}
		})
	})
}

func TestPermitsAreTriedOnce(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "a")
		scripts := 0
		w.Client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
			if calls[0].Name() == "evalsha" {
				scripts += len(calls)
			}
			return next()
		}))
		var permits rights.Permits
		try := func(topic string, work rights.Work) int {
			_, err := permits.Try(ctx, topicOf(w.Client, w.Prefix, topic), work)
			require.NoError(t, err)
			defer func() { scripts = 0 }()
			return scripts
		}
		require.Equal(t, 1, try("topic", rights.Cancelling))
		require.Zero(t, try("topic", rights.Cancelling))
		require.Zero(t, try("another", rights.Cancelling))
		require.Equal(t, 1, try("topic", rights.Pausing), "another work")

		// Without a topic nothing can be tried, and the try makes none.
		require.Equal(t, 1, try("another", rights.Resuming))
		require.Equal(t, 1, try("another", rights.Resuming))
		require.Zero(t, w.Client.Exists(ctx, queue.NewKeys(w.Prefix, "another").Meta()).Val())
		require.Equal(t, 1, try("another", rights.Publishing), "tried, although there is no topic")
		require.Zero(t, try("another", rights.Publishing))
		require.Zero(t, w.Client.Exists(ctx, queue.NewKeys(w.Prefix, "another").Meta()).Val())
	})
}

func TestPermitsNameEachCommandThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "a")
	require.NoError(t, w.topic.Publish(ctx, "publisher", 1, []queue.Message{{ID: queue.Token()}}))
	all := map[string]bool{"EVALSHA": true}
	for _, work := range works {
		for _, command := range work.Commands() {
			all[command] = true
		}
	}
	require.Greater(t, len(all), 40)
	for command := range maps.Keys(all) {
		name := strings.ToLower(command)
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", name, "on", ">secret", "~own:*", "resetchannels", "&own:*", "+@all", "-"+name).Err())
		user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: name, Password: "secret"})
		defer user.Close()
		topic, missing := topicOf(user, "own", "topic"), topicOf(user, "own", "missing")
		w.unchanged(func() {
			for _, work := range works {
				_, err := new(rights.Permits).Try(ctx, topic, work)
				switch takes := slices.Contains(work.Commands(), command); {
				case command == "EVALSHA":
					require.ErrorIs(t, err, refusal.ErrForbidden)
					require.ErrorContains(t, err, "evalsha")
				case takes:
					require.ErrorIs(t, err, refusal.ErrForbidden, "%s without %s", work.Name, command)
					require.ErrorContains(t, err, "allowed +"+name)
				default:
					require.NoError(t, err, "%s without %s", work.Name, command)
				}
			}
		})
		w.unchanged(func() { // a topic that the work would open
			for _, work := range opening {
				_, err := new(rights.Permits).Try(ctx, missing, work)
				if slices.Contains(work.Commands(), command) {
					require.Regexp(t, `allowed (.* )?\+`+name+`( |:|$)`, fmt.Sprint(err), "%s without %s", work.Name, command)
				} else if command != "EVALSHA" {
					require.NoError(t, err, "%s without %s", work.Name, command)
				}
			}
			noKeys(t, admin, "own:{missing}:*")
		})
	}
}

// noKeys requires that there are no such keys. Without DEL a try leaves a key for a millisecond.
func noKeys(t *testing.T, client redis.UniversalClient, pattern string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(client.Keys(ctx, pattern).Val()) == 0 }, time.Minute, time.Millisecond)
}

// absent returns the commands that an error says the server does not have.
func absent(t *testing.T, err error) []string {
	t.Helper()
	require.ErrorIs(t, err, refusal.ErrForbidden)
	_, list, found := strings.Cut(err.Error(), "the server has no ")
	require.True(t, found, err)
	list, advice, _ := strings.Cut(list, ": ")
	require.Contains(t, advice, "remove rename-command from its configuration, and restrict users by an ACL instead")
	return strings.Split(list, ", ")
}

// Without the check a script fails in its middle, and what it wrote before stays.
func TestPermitsNameEachCommandThatTheServerDoesNotHave(t *testing.T) {
	t.Parallel()
	var renames []string
	for _, work := range works {
		for _, command := range work.Commands() {
			if command != "SET" && command != "DEL" && !slices.Contains(renames, command) { // with them others are tried
				renames = append(renames, "--rename-command", command, "taken-"+command)
			}
		}
	}
	client := redistest.Start(t, renames...).Client(t)
	require.NoError(t, client.Do(ctx, "taken-HSET", queue.NewKeys("own", "topic").Meta(), "layout", queue.Layout).Err())
	named := func(topic string, work rights.Work) {
		_, err := new(rights.Permits).Try(ctx, topicOf(client, "own", topic), work)
		commands := slices.DeleteFunc(work.Commands(), func(command string) bool { return command == "SET" || command == "DEL" })
		require.ElementsMatch(t, commands, absent(t, err), "%s: %v", work.Name, err)
		require.NotContains(t, err.Error(), "+")
		require.EqualValues(t, 1, client.DBSize(ctx).Val(), "%s has written", work.Name)
	}
	for _, work := range works {
		named("topic", work)
	}
	for _, work := range opening {
		named("missing", work)
	}
}

// Servers and versions word it differently. So run this on each: see REDIS_SERVER_BIN.
func TestPermitsNameTheOneCommandThatTheServerDoesNotHave(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ZPOPMIN", "RPUSH", "ZADD", "LTRIM", "ZREMRANGEBYRANK", "PUBLISH", "SADD", "SET", "DEL", "HLEN", "EVALSHA"} {
		for _, name := range []string{"", "another"} {
			client := redistest.Start(t, "--rename-command", command, name).Client(t)
			for _, work := range opening {
				_, err := new(rights.Permits).Try(ctx, topicOf(client, "own", "topic"), work)
				if command == "EVALSHA" || slices.Contains(work.Commands(), command) {
					require.Equal(t, []string{command}, absent(t, err), work.Name)
				} else {
					require.NoError(t, err, "%s without %s", work.Name, command)
				}
				noKeys(t, client, "*")
			}
		}
	}
}

// A script whose commands were not tried names all of them.
func TestAScriptThatFindsNoCommandSaysSo(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, "--rename-command", "HMGET", "").Client(t)
	_, err := topicOf(client, "own", "topic").Groups(ctx)
	require.Equal(t, []string{"HKEYS or HMGET or HSET"}, absent(t, err))
}

// An error names at once what one user lacks, of every kind.
func TestPermitsNameCommandsKeysAndChannelsInOneError(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	admin := in.Client(t)
	for name, rules := range map[string]struct {
		has   []any
		wants string
	}{
		"channels": {[]any{"~own:*", "+@all"}, "allowed &own:mailbox:* &own:new-topics:*: NOPERM"},
		"several":  {[]any{"~own:*", "+@all", "-zadd", "-lpush"}, "allowed +lpush +zadd &own:mailbox:* &own:new-topics:*: NOPERM"},
		"writes":   {[]any{"~own:*", "+@all", "-set", "-lpush"}, "allowed +lpush +rpush +sadd +set &own:mailbox:* &own:new-topics:*: NOPERM"},
	} {
		require.NoError(t, admin.Do(ctx, append([]any{"ACL", "SETUSER", name, "on", ">secret", "resetchannels"}, rules.has...)...).Err())
		user := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: name, Password: "secret"})
		defer user.Close()
		_, err := new(rights.Permits).Try(ctx, topicOf(user, "own", "topic"), rights.Consuming)
		require.ErrorIs(t, err, refusal.ErrForbidden)
		require.ErrorContains(t, err, rules.wants)
		require.Zero(t, admin.DBSize(ctx).Val())
	}
}

// A key that is missing is not taken for a command.
func TestPermitsFindThatTheKeyOfTheRegistryIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:{*", "&*", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	_, err := new(rights.Permits).Try(ctx, topicOf(user, "own", "topic"), rights.Publishing)
	require.ErrorIs(t, err, refusal.ErrForbidden)
	require.ErrorContains(t, err, "the user has to be allowed ~own:*: NOPERM")
}

// The server does not say which keys.
func TestKeysThatAreNotAllowedAreNamed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	user := func(name, keys string) redis.UniversalClient {
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", name, "on", ">secret", keys, "&*", "+@all").Err())
		client := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: name, Password: "secret"})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	_, err := new(rights.Permits).Try(ctx, topicOf(user("other", "~other:*"), "own", "topic"), rights.Publishing)
	require.ErrorIs(t, err, refusal.ErrForbidden)
	require.ErrorContains(t, err, " ~own:*: NOPERM")
	topic := queue.NewStreamTopic(servers.MustClient(user("narrow", "~own:*")), "own", "stream", queue.StreamOptions{})
	err = topic.Publish(ctx, "publisher", 1, []queue.Message{{ID: queue.Token()}})
	require.ErrorIs(t, err, refusal.ErrForbidden)
	require.ErrorContains(t, err, "the user has to be allowed ~own:* ~stream: NOPERM")
}

// Redis 7 gives a new user no channels. Who publishes messages then takes those who wait for them,
// and wakes nobody.
func TestPermitsFindThatChannelsAreNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "a")
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	for _, work := range []rights.Work{rights.Publishing, rights.PublishingStreams, rights.Scheduling, rights.SchedulingStreams, rights.Consuming} {
		w.unchanged(func() {
			_, err := new(rights.Permits).Try(ctx, topicOf(user, "own", "topic"), work)
			require.ErrorIs(t, err, refusal.ErrForbidden)
			require.ErrorContains(t, err, "the user has to be allowed &own:mailbox:*")
			_, err = new(rights.Permits).Try(ctx, topicOf(user, "own", "new"), work)
			require.ErrorIs(t, err, refusal.ErrForbidden)
		})
	}
}

// A user that may not announce a topic has not opened it either.
func TestPermitsFindThatTheChannelOfNewTopicsIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "&own:mailbox:*", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	for _, work := range []rights.Work{rights.Publishing, rights.PublishingStreams, rights.Consuming} {
		_, err := new(rights.Permits).Try(ctx, topicOf(user, "own", "topic"), work)
		require.ErrorIs(t, err, refusal.ErrForbidden)
		require.ErrorContains(t, err, "&own:new-topics:*")
	}
	require.Zero(t, admin.DBSize(ctx).Val())
}

// onNodes is a Cluster with a topic, the node that has it, and the one that has the registry.
func onNodes(t *testing.T) (client redis.UniversalClient, topic *queue.Topic, its, registrys *redistest.Instance) {
	t.Helper()
	cluster := redistest.StartCluster(t)
	registrys, _ = cluster.Owner(queue.Registry("own"))
	for i := 0; its == nil || its == registrys; i++ {
		topic = topicOf(cluster.Client(t), "own", fmt.Sprint("topic ", i))
		its, _ = cluster.Owner("{" + topic.Name + "}")
	}
	return cluster.Client(t), topic, its, registrys
}

func TestPermitsTryToWakeOthersOnTheTopicsNode(t *testing.T) {
	t.Parallel()
	_, topic, its, registrys := onNodes(t)
	_, err := topic.Groups(ctx)
	require.NoError(t, err)
	try := func() error {
		_, err := new(rights.Permits).Try(ctx, topic, rights.Publishing)
		return err
	}
	require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err())
	for range 20 {
		require.NoError(t, try())
	}
	require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "allchannels").Err())
	if its.Client(t).SPublish(ctx, "{"+topic.Name+"}", "").Err() == nil { // it has sharded channels
		require.NoError(t, its.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-spublish").Err())
		require.ErrorContains(t, try(), "+spublish")
		require.NoError(t, its.Client(t).Do(ctx, "ACL", "SETUSER", "default", "+spublish").Err())
	}
	require.NoError(t, its.Client(t).Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err())
	require.ErrorIs(t, try(), refusal.ErrForbidden)
}

func TestForbiddenCommandsOfTheRegistryAreNamedBeforeTheTopicIsWritten(t *testing.T) {
	t.Parallel()
	client, topic, _, registrys := onNodes(t)
	meta := queue.NewKeys("own", topic.Name).Meta()
	without := func(command string, do func() error) { // of the registry's node
		t.Helper()
		require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-"+command).Err())
		err := do()
		require.ErrorIs(t, err, refusal.ErrForbidden)
		require.ErrorContains(t, err, "the registry: "+refusal.ErrForbidden.Error()+": the user has to be allowed +"+command)
		require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "+"+command).Err())
	}
	open := func() error {
		_, err := topic.Groups(ctx)
		return err
	}
	without("sismember", open)
	without("sadd", open)
	require.Zero(t, client.Exists(ctx, meta).Val())
	require.NoError(t, open())
	without("srem", func() error { return (&operate.Topic{Topic: topic}).Erase(ctx) })
	require.EqualValues(t, 1, client.Exists(ctx, meta).Val())
}

// The nodes of a Cluster have users of their own.
func TestPermitsAreTriedOnEachNodeOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	topics := map[*redistest.Instance]string{} // one on each node
	for i := 0; len(topics) < 3; i++ {
		topic := fmt.Sprint("topic ", i)
		owner, _ := cluster.Owner("{" + topic + "}")
		topics[owner] = topic
	}
	var permits rights.Permits
	for owner, topic := range topics {
		try := func() error {
			_, err := permits.Try(ctx, topicOf(client, "own", topic), rights.Publishing)
			return err
		}
		may := func(rule string) {
			require.NoError(t, owner.Client(t).Do(ctx, "ACL", "SETUSER", "default", rule).Err())
		}
		may("-zadd")
		require.ErrorIs(t, try(), refusal.ErrForbidden)
		may("+zadd")
		require.NoError(t, try())
		may("-zadd")
		require.NoError(t, try(), "which was tried")
	}
}

func TestPermitsTellOnceThatKeysMayBeEvicted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, policy, want string }{
		{"0", "allkeys-lru", ""},
		{"100mb", "noeviction", ""},
		{"100mb", "allkeys-lru", "allkeys-lru"},
		{"100mb", "volatile-ttl", "volatile-ttl"},
	} {
		w := newWorld(t, redistest.Server{Client: redistest.Start(t, "--maxmemory", c.limit, "--maxmemory-policy", c.policy).Client(t), Prefix: "own"})
		var permits rights.Permits
		for _, want := range []string{c.want, ""} {
			evicts, err := permits.Try(ctx, w.topic, rights.Publishing)
			require.NoError(t, err)
			require.Equal(t, want, evicts)
		}
	}
}
