package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// frozenAlone returns a client of a Cluster, and a topic of a master that is frozen and has no
// replica.
func frozenAlone(t *testing.T) (*redis.ClusterClient, *Topic) {
	cluster := redistest.StartCluster(t)
	owner, replica := cluster.Owner("{t}")
	replica.Kill()
	user := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { _ = user.Close() })
	topic := NewTopic(MustClient(user), "own", "t")
	require.NoError(t, topic.Register(t.Context(), "g", GroupOptions{}))
	topic.remember(nil)
	owner.Pause()
	return user, topic
}

func TestAnEndedContextIsTheErrorOfACallToALostNode(t *testing.T) {
	t.Parallel()
	_, topic := frozenAlone(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := topic.Existing(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAClosedClientEndsACallToALostNode(t *testing.T) {
	t.Parallel()
	user, topic := frozenAlone(t)
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
	c := MustClient(user)
	require.NoError(t, user.Ping(t.Context()).Err()) // so that it knows the slots
	lost.Pause()
	node := redis.NewClient(&redis.Options{Addr: lost.Addr()})
	t.Cleanup(func() { _ = node.Close() })
	for _, key := range []string{"", "a", "b", "c", "d"} {
		s, release := c.suspect(Node{node}, key)
		for range 10 {
			replica, found := s.askReplica(t.Context())
			require.False(t, found, "%q: %+v", key, replica)
		}
		release()
	}
}
