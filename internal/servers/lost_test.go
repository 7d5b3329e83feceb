package servers_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// frozenAlone returns a client of a Cluster, a topic of a master that is frozen and has no replica,
// and that master.
func frozenAlone(t *testing.T, options redis.ClusterOptions) (*redis.ClusterClient, *queue.Topic, *redistest.Instance) {
	cluster := redistest.StartCluster(t)
	owner, replica := cluster.Owner("{t}")
	replica.Kill()
	options.Addrs = cluster.Addrs()
	user := redis.NewClusterClient(&options)
	t.Cleanup(func() { _ = user.Close() })
	topic := queue.NewTopic(servers.MustClient(user), "own", "t")
	require.NoError(t, topic.Register(t.Context(), "g", queue.GroupOptions{}))
	owner.Pause()
	return user, queue.NewTopic(topic.Client(), "own", "t"), owner
}

func TestAnEndedContextIsTheErrorOfACallToALostNode(t *testing.T) {
	t.Parallel()
	_, topic, _ := frozenAlone(t, redis.ClusterOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := topic.Existing(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAClosedClientEndsACallToALostNode(t *testing.T) {
	t.Parallel()
	user, topic, _ := frozenAlone(t, redis.ClusterOptions{})
	closing := time.AfterFunc(2*time.Second, func() { _ = user.Close() }) // when the node is lost
	defer closing.Stop()
	_, err := topic.Existing(t.Context())
	require.ErrorIs(t, err, redis.ErrClosed)
}

// A call to each node knows no key of the node that hangs. Its master, or that of a key that has
// moved, would be another one.
func TestAnotherMasterIsNoHeirOfALostNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, replica := range cluster.Replicas {
		replica.Kill()
	}
	lost, other := cluster.Primaries[0], cluster.Primaries[1]
	alone := func() bool {
		for _, of := range other.Client(t).ClusterSlots(t.Context()).Val() {
			if len(of.Nodes) > 1 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, alone, 20*time.Second, 100*time.Millisecond)
	user := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{other.Addr()}})
	t.Cleanup(func() { _ = user.Close() })
	c := servers.MustClient(user)
	require.NoError(t, user.Ping(t.Context()).Err()) // so that it knows the slots
	lost.Pause()
	node := redis.NewClient(&redis.Options{Addr: lost.Addr()})
	t.Cleanup(func() { _ = node.Close() })
	for _, key := range []string{"", "a", "b", "c", "d"} {
		asks, release := c.Suspect(node, key)
		for range 10 {
			replica, found := asks(t.Context())
			require.False(t, found, "%q: %+v", key, replica)
		}
		release()
	}
}

// Without a ReadTimeout, a pipeline to a node that is frozen does not end.
func TestALaneHasOneAbandonedCallWithoutAReadTimeout(t *testing.T) {
	t.Parallel()
	user, topic, owner := frozenAlone(t, redis.ClusterOptions{ReadTimeout: -1, MaxRedirects: -1})
	var calls atomic.Int64
	user.AddHook(redistest.Hook(func(_ context.Context, of []redis.Cmder, next func() error) error {
		if slices.Contains([]string{"evalsha", "eval"}, of[0].Name()) {
			calls.Add(1)
		}
		return next()
	}))
	for range 2 {
		require.ErrorIs(t, queue.Do(t.Context(), topic.Client(), topic.LookCall(), topic.LookCall()), servers.ErrLost)
		require.True(t, topic.Client().Abandoned())
		require.EqualValues(t, 1, calls.Load())
	}
	owner.Resume()
	require.Eventually(t, func() bool { return !topic.Client().Abandoned() }, 20*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := topic.Existing(t.Context())
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
}

// A replica counts as an heir for seconds, in which slots may move on.
func TestACallThatAnHeirRefusesGoesToTheMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	user := cluster.Client(t)
	topic := queue.NewTopic(servers.MustClient(user), "own", "t")
	require.NoError(t, topic.Register(t.Context(), "g", queue.GroupOptions{}))
	owner, _ := cluster.Owner("{t}")
	other := cluster.Primaries[0]
	if other == owner {
		other = cluster.Primaries[1]
	}
	node := other.Client(t).(*redis.Client)
	for name, call := range map[string]func() error{
		"a script": func() error {
			_, err := queue.NewTopic(topic.Client(), "own", "t").Existing(t.Context()) // which knows no groups
			return err
		},
		"a pipeline": func() error {
			return queue.Do(t.Context(), topic.Client(), topic.LookCall(), queue.NewTopic(topic.Client(), "own", "t").LookCall())
		},
		"a command": func() error { return topic.Group("g").SignOff(t.Context(), "nobody") },
		"a command to the node": func() error {
			_, err := servers.AskMaster(t.Context(), topic.Client(), topic.Key(), func(ctx context.Context, c redis.UniversalClient) (int64, error) {
				return c.Exists(ctx, topic.Key()).Result()
			})
			return err
		},
	} {
		topic.Client().Inherit(owner.Addr(), node)
		require.NoError(t, call(), name)
		require.False(t, topic.Client().HasHeir(owner.Addr()), name)
	}
}

// The client of one node does not follow slots.
func TestACallToTheMasterFollowsAKeyThatMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	c := servers.MustClient(cluster.Client(t))
	exists := func() error {
		_, err := servers.AskMaster(t.Context(), c, "{t}", func(ctx context.Context, node redis.UniversalClient) (int64, error) {
			return node.Exists(ctx, "{t}").Result()
		})
		return err
	}
	require.NoError(t, exists())
	owner, _ := cluster.Owner("{t}")
	to := cluster.Primaries[0]
	if to == owner {
		to = cluster.Primaries[1]
	}
	slot := owner.Client(t).ClusterKeySlot(t.Context(), "{t}").Val()
	// With a higher epoch, what the owner still says of the slot does not count.
	require.NoError(t, to.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.ID(owner)).Err())
	for _, node := range append([]*redistest.Instance{to}, cluster.Primaries...) {
		require.NoError(t, node.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", cluster.ID(to)).Err())
	}
	require.NoError(t, exists())
}
