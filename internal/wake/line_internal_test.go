package wake

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// lineTo returns a line for a topic, and its events.
func lineTo(t *testing.T, client redis.UniversalClient) (*line, <-chan any) {
	topic := queue.NewTopic(servers.MustClient(client), "own", "t")
	l := &line{
		client: servers.MustClient(client), key: topic.Key(), rule: queue.MailboxRule("own"),
		channel: queue.MailboxChannel("own", queue.Token()), sharded: queue.ShardedMailbox("own", queue.Token(), "t"),
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := l.listen(ctx)
	t.Cleanup(func() {
		cancel()
		for range events { // closed
		}
	})
	return l, events
}

// connectedTo waits until a line has a connection to a node, and a message that is published there
// comes.
func connectedTo(t *testing.T, events <-chan any, node *redistest.Instance) (channel string) {
	t.Helper()
	await(t, events, func(event any) bool {
		c, is := event.(connected)
		channel = c.channel
		return is && c.err == nil && c.server == node.Addr()
	})
	client := node.Client(t)
	publish := client.Publish
	if servers.Sharded(channel) {
		publish = client.SPublish
	}
	require.EqualValues(t, 1, publish(t.Context(), channel, "receiver").Val())
	await(t, events, func(event any) bool { return heard(event) == "receiver" })
	return channel
}

func TestALineFollowsItsKeyToTheReplicaThatTakesOver(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Instance){"it hangs": (*redistest.Instance).Pause, "it is gone": (*redistest.Instance).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t)
			_, events := lineTo(t, cluster.Client(t))
			owner, replica := cluster.Owner("{t}")
			channel := connectedTo(t, events, owner)
			fail(owner)
			replica.AwaitInfo("role:master")
			began := time.Now()
			require.Equal(t, channel, connectedTo(t, events, replica))
			require.Less(t, time.Since(began), 8*time.Second)
		})
	}
}

func TestALineFollowsItsKeyToAnotherMaster(t *testing.T) {
	t.Parallel()
	kinds := map[string][]string{"sharded": nil, "not sharded": {"--rename-command", "SSUBSCRIBE", ""}}
	if redistest.Start(t).Client(t).SPublish(t.Context(), "own", "").Err() != nil { // as Redis 6.2
		kinds = map[string][]string{"not sharded": nil}
	}
	for name, args := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, args...)
			client := cluster.Client(t)
			_, events := lineTo(t, client)
			owner, replica := cluster.Owner("{t}")
			require.Equal(t, name == "sharded", servers.Sharded(connectedTo(t, events, owner)))
			require.NoError(t, replica.Client(t).ClusterFailover(t.Context()).Err())
			learns(t, client, replica)
			connectedTo(t, events, replica)

			other := cluster.Primaries[0]
			if other == owner {
				other = cluster.Primaries[1]
			}
			slot := replica.Client(t).ClusterKeySlot(t.Context(), "{t}").Val()
			// With a higher epoch, what the replica still says of the slot does not count.
			require.NoError(t, other.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.ID(replica)).Err())
			for _, node := range append([]*redistest.Instance{other, replica}, cluster.Primaries...) {
				if node != owner {
					require.NoError(t, node.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", cluster.ID(other)).Err())
				}
			}
			learns(t, client, other)
			connectedTo(t, events, other)
		})
	}
}

// learns has a client learn by calls which node has the key of the line.
func learns(t *testing.T, client *redis.ClusterClient, node *redistest.Instance) {
	t.Helper()
	require.Eventually(t, func() bool {
		_ = client.Exists(t.Context(), "{t}").Err()
		master, err := client.MasterForKey(t.Context(), "{t}")
		return err == nil && master.Options().Addr == node.Addr()
	}, 10*time.Second, 100*time.Millisecond)
}

// endless is a context that counts what waits for its end.
type endless struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int64
}

func (e *endless) Done() <-chan struct{} { return e.done }

func (e *endless) AfterFunc(func()) func() bool {
	e.waiting.Add(1)
	return sync.OnceValue(func() bool { e.waiting.Add(-1); return true })
}

// A line makes a new connection each second while the server refuses the channel.
func TestALineKeepsNothingOfAConnectionThatHasEnded(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := servers.MustClient(cluster.Client(t))
	l := &line{client: client, key: "{t}", channel: "channel"}
	node, err := client.Node(t.Context(), l.key)
	require.NoError(t, err)
	ctx, events := &endless{Context: t.Context(), done: make(chan struct{})}, make(chan any, 1)
	ended := make(chan error)
	go func() {
		_, err := l.stay(ctx, node, events)
		ended <- err
	}()
	require.NoError(t, (<-events).(connected).err)
	require.Positive(t, ctx.waiting.Load())
	owner, _ := cluster.Owner(l.key)
	require.NoError(t, owner.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	require.Error(t, <-ended)
	require.Eventually(t, func() bool { return ctx.waiting.Load() == 0 }, 5*time.Second, time.Millisecond)
}

// reloads counts how often the slots of a Cluster are to be read again.
type reloads struct {
	*redis.ClusterClient
	n atomic.Int64
}

func (r *reloads) ReloadState(ctx context.Context) {
	r.n.Add(1)
	r.ClusterClient.ReloadState(ctx)
}

func TestALineThatEndsAsksForNoMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := &reloads{ClusterClient: cluster.Client(t)}
	l := &line{client: servers.MustClient(client), key: "{t}", channel: "channel"}
	ctx, cancel := context.WithCancel(t.Context())
	events := l.listen(ctx)
	require.NoError(t, (<-events).(connected).err)
	cancel()
	for range events { // closed
	}
	require.Zero(t, client.n.Load())
}
