package queue_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// works are all that there are.
var works = []queue.Work{
	queue.Publishing, queue.Publishing.AndWaits(), queue.PublishingStreams, queue.Scheduling, queue.SchedulingStreams, queue.Consuming,
	queue.Counting, queue.Listing, queue.Finding, queue.Foreseeing, queue.Cancelling, queue.Rescheduling,
	queue.Requeueing, queue.RequeueingMany, queue.Discarding, queue.DiscardingMany, queue.Arriving,
	queue.Pausing, queue.Resuming, queue.Removing, queue.Erasing, queue.Checking, queue.Repairing,
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
			queue.PublishingStreams.Name: {"XADD", "XDEL", "XLEN", "XTRIM"},
			queue.SchedulingStreams.Name: {"XADD", "XLEN", "XTRIM"},
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
		w := newWorld(t, s, "topic", "a")
		w.publishNow("x")
		w.unchanged(func() {
			for _, work := range works {
				for range 2 {
					evicts, err := new(queue.Permits).Try(ctx, w.topic.Topic, work)
					require.NoError(t, err, work.Name)
					require.Empty(t, evicts)
				}
			}
		})
	})
}

func TestPermitsAreTriedOnce(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a")
		r := w.record()
		var permits queue.Permits
		try := func(topic string, work queue.Work) int {
			_, err := permits.Try(ctx, topicOf(w.Client, w.Prefix, topic).Topic, work)
			require.NoError(t, err)
			return len(r.take())
		}
		require.Equal(t, 1, try("topic", queue.Cancelling))
		require.Zero(t, try("topic", queue.Cancelling))
		require.Zero(t, try("another", queue.Cancelling))
		require.Equal(t, 1, try("topic", queue.Pausing), "another work")

		// Without a topic nothing can be tried, and the try makes none.
		require.Equal(t, 1, try("another", queue.Resuming))
		require.Equal(t, 1, try("another", queue.Resuming))
		require.Zero(t, w.Client.Exists(ctx, queue.NewKeys(w.Prefix, "another").Meta()).Val())
		require.Equal(t, 3, try("another", queue.Publishing), "tried, opened, tried")
		require.Zero(t, try("another", queue.Publishing))
	})
}

func TestPermitsNameEachCommandThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "topic", "a")
	w.publishNow("x")
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
				_, err := new(queue.Permits).Try(ctx, topic.Topic, work)
				switch takes := slices.Contains(work.Commands(), command); {
				case command == "EVALSHA":
					require.ErrorIs(t, err, queue.ErrForbidden)
					require.ErrorContains(t, err, "evalsha")
				case takes || command == "HLEN": // which it takes to try
					require.ErrorIs(t, err, queue.ErrForbidden, "%s without %s", work.Name, command)
					require.ErrorContains(t, err, "allowed +"+name)
				default:
					require.NoError(t, err, "%s without %s", work.Name, command)
				}
			}
		})
		if slices.Contains([]string{"hset", "hmget", "hkeys"}, name) { // which it takes to open a topic
			_, err := new(queue.Permits).Try(ctx, missing.Topic, queue.Publishing)
			require.ErrorIs(t, err, queue.ErrForbidden)
			require.ErrorContains(t, err, "+"+name)
			require.NoError(t, admin.SRem(ctx, queue.Registry("own"), "missing").Err())
		}
		if name == "hlen" {
			_, err := new(queue.Permits).Try(ctx, missing.Topic, queue.Cancelling)
			require.ErrorIs(t, err, queue.ErrForbidden)
			require.Zero(t, admin.Exists(ctx, queue.NewKeys("own", "missing").Meta()).Val())
		}
	}
}

// A key that is missing is not taken for a command.
func TestPermitsFindThatTheKeyOfTheRegistryIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:{*", "&*", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	_, err := new(queue.Permits).Try(ctx, topicOf(user, "own", "topic").Topic, queue.Publishing)
	require.ErrorIs(t, err, queue.ErrForbidden)
	require.ErrorContains(t, err, "it has to be allowed the keys ~<key prefix>:*")
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
	_, err := new(queue.Permits).Try(ctx, topicOf(user("other", "~other:*"), "own", "topic").Topic, queue.Publishing)
	require.ErrorIs(t, err, queue.ErrForbidden)
	require.ErrorContains(t, err, "it has to be allowed the keys ~own:*")
	topic := streamTopicOf(user("narrow", "~own:*"), "own", "stream", queue.StreamOptions{})
	err = topic.Publish(ctx, "publisher", 1, []queue.Message{{ID: queue.Token()}})
	require.ErrorIs(t, err, queue.ErrForbidden)
	require.ErrorContains(t, err, "it has to be allowed the keys ~own:* ~stream")
}

// Redis 7 gives a new user no channels. Who publishes messages then takes those who wait for them,
// and wakes nobody.
func TestPermitsFindThatChannelsAreNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "topic", "a")
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	for _, work := range []queue.Work{queue.Publishing, queue.PublishingStreams, queue.Scheduling, queue.SchedulingStreams, queue.Consuming} {
		w.unchanged(func() {
			_, err := new(queue.Permits).Try(ctx, topicOf(user, "own", "topic").Topic, work)
			require.ErrorIs(t, err, queue.ErrForbidden)
			require.ErrorContains(t, err, "+publish, and to wake others, the channels &own:mailbox:*")
			_, err = new(queue.Permits).Try(ctx, topicOf(user, "own", "new").Topic, work)
			require.ErrorIs(t, err, queue.ErrForbidden)
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
	for _, work := range []queue.Work{queue.Publishing, queue.PublishingStreams, queue.Consuming} {
		_, err := new(queue.Permits).Try(ctx, topicOf(user, "own", "topic").Topic, work)
		require.ErrorIs(t, err, queue.ErrForbidden)
		require.ErrorContains(t, err, "&own:new-topics:0")
	}
	require.Zero(t, admin.DBSize(ctx).Val())
}

// onNodes is a Cluster with a topic, the node that has it, and the one that has the registry.
func onNodes(t *testing.T) (client redis.UniversalClient, topic *operate.Topic, its, registrys *redistest.Instance) {
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
		_, err := new(queue.Permits).Try(ctx, topic.Topic, queue.Publishing)
		return err
	}
	require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err())
	for range 20 {
		require.NoError(t, try())
	}
	require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "allchannels").Err())
	require.NoError(t, its.Client(t).Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err())
	require.ErrorIs(t, try(), queue.ErrForbidden)
}

func TestForbiddenCommandsOfTheRegistryAreNamedBeforeTheTopicIsWritten(t *testing.T) {
	t.Parallel()
	client, topic, _, registrys := onNodes(t)
	meta := queue.NewKeys("own", topic.Name).Meta()
	without := func(command string, do func() error) {
		t.Helper()
		require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "-"+command).Err())
		err := do()
		require.ErrorIs(t, err, queue.ErrForbidden)
		require.ErrorContains(t, err, "the registry: it has to be allowed +"+command)
		require.NoError(t, registrys.Client(t).Do(ctx, "ACL", "SETUSER", "default", "+"+command).Err())
	}
	open := func() error {
		_, err := new(queue.Permits).Try(ctx, topic.Topic, queue.Publishing)
		return err
	}
	without("sismember", open)
	without("sadd", open)
	require.Zero(t, client.Exists(ctx, meta).Val())
	require.NoError(t, open())
	without("srem", func() error { return topic.Erase(ctx) })
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
	var permits queue.Permits
	for owner, topic := range topics {
		try := func() error {
			_, err := permits.Try(ctx, topicOf(client, "own", topic).Topic, queue.Publishing)
			return err
		}
		may := func(rule string) {
			require.NoError(t, owner.Client(t).Do(ctx, "ACL", "SETUSER", "default", rule).Err())
		}
		may("-zadd")
		require.ErrorIs(t, try(), queue.ErrForbidden)
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
		w := newWorld(t, redistest.Server{Client: redistest.Start(t, "--maxmemory", c.limit, "--maxmemory-policy", c.policy).Client(t), Prefix: "own"}, "topic")
		var permits queue.Permits
		for _, want := range []string{c.want, ""} {
			evicts, err := permits.Try(ctx, w.topic.Topic, queue.Publishing)
			require.NoError(t, err)
			require.Equal(t, want, evicts)
		}
	}
}
