package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestReplicasHaveTheDataOfThePrimary(t *testing.T) {
	t.Parallel()
	primary, replicas := StartReplicated(t, 2)
	client := primary.Client(t)
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	n, err := client.(*redis.Client).Wait(ctx, 2, startTimeout).Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	for _, replica := range replicas {
		require.Equal(t, "value", replica.Client(t).Get(ctx, "key").Val())
	}
}

func TestSentinelsReplaceAPrimaryThatWasKilled(t *testing.T) {
	t.Parallel()
	primary, replicas := StartReplicated(t, 1)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: PrimaryName,
		SentinelAddrs: StartSentinels(t, primary, replicas...)})
	defer client.Close()
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	require.Equal(t, primary.Port(), portOf(t, client))

	primary.Kill()
	replicas[0].AwaitInfo("role:master")
	require.Eventually(t, func() bool { return client.Set(ctx, "key", "another", 0).Err() == nil }, startTimeout, 5*time.Millisecond)
	require.Equal(t, replicas[0].Port(), portOf(t, client))
}

// portOf returns the port of the server that a client is connected to.
func portOf(t *testing.T, client redis.UniversalClient) string {
	t.Helper()
	info, err := client.Info(ctx, "server").Result()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(info, "tcp_port:")
	port, _, _ := strings.Cut(rest, "\r\n")
	return port
}

func TestClusterReplacesANodeThatWasKilled(t *testing.T) {
	t.Parallel()
	cluster := StartCluster(t)
	client := cluster.Client(t)
	for _, key := range []string{"a", "b", "c", "d"} {
		require.NoError(t, client.Set(ctx, key, "value", 0).Err())
		require.Equal(t, "value", client.Get(ctx, key).Val())
	}
	owner, replica := cluster.Owner("a")
	require.Contains(t, cluster.Primaries, owner)
	require.Contains(t, cluster.Replicas, replica)

	owner.Kill()
	replica.AwaitInfo("role:master")
	require.Eventually(t, func() bool {
		client := cluster.Client(t) // a new one, because a client that has read the slots reads them again after seconds
		defer client.Close()
		return client.Set(ctx, "a", "another", 0).Err() == nil
	}, startTimeout, 5*time.Millisecond)
	now, _ := cluster.Owner("a")
	require.Equal(t, replica, now)
	owner.Restart()
	owner.AwaitInfo("master_link_status:up")
}
