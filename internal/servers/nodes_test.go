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

func TestMain(m *testing.M) { redistest.Main(m) }

var ctx = context.Background()

// The client alone would try the frozen node for twelve seconds, and return an error.
func TestACallToANodeThatFreezesIsMadeOnceByTheReplicaThatTakesOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	topic := queue.NewTopic(servers.MustClient(client), "own", "t")
	require.NoError(t, topic.Register(ctx, "g", queue.GroupOptions{}))
	publish := func(number uint64) error {
		id, err := queue.NewIDs().Next(time.Now())
		require.NoError(t, err)
		return topic.PublishWithin(ctx, "publisher", number, []queue.Message{{ID: id, Due: queue.In(time.Hour), Body: []byte("x")}}, queue.Limit{})
	}
	require.NoError(t, publish(1))
	owner, replica := cluster.Owner("{t}")
	require.NoError(t, topic.AwaitReplicas(ctx, "publisher", 1, 1, time.Minute))
	var underWay, most atomic.Int64
	client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
		if slices.Contains([]string{"evalsha", "eval"}, calls[0].Name()) {
			most.Store(max(most.Load(), underWay.Add(1)))
			defer underWay.Add(-1)
		}
		return next()
	}))

	owner.Pause()
	require.NoError(t, publish(2))
	require.Contains(t, replica.Client(t).Info(ctx, "replication").Val(), "role:master")
	require.LessOrEqual(t, most.Load(), int64(2), "the call that was abandoned, and its repeat")
	owner.Resume()
	owner.AwaitInfo("role:slave")
	require.EqualValues(t, 2, replica.Client(t).ZCard(ctx, queue.NewKeys("own", "t").Pending()).Val())
}

// A node that only takes long is asked, and its call goes on.
func TestACallThatTakesLongIsNotAbandoned(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t).Client(t)
	var calls atomic.Int64
	value, err := servers.AskMaster(ctx, servers.MustClient(client), "{t}", func(context.Context, redis.UniversalClient) (int, error) {
		calls.Add(1)
		time.Sleep(1600 * time.Millisecond) // two suspicions
		return 1, nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, value)
	require.EqualValues(t, 1, calls.Load())
}
