package publish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestATopicThatTheRegistryOfAClusterHasLostIsEnteredAgain(t *testing.T) {
	t.Parallel()
	const prefix = "redisdelay"
	client := redistest.StartCluster(t).Client(t)
	e := NewEngine(Config{
		Topic:        func(name string) *queue.Topic { return queue.NewTopic(servers.MustClient(client), prefix, name) },
		Work:         rights.Publishing,
		CloseTimeout: time.Minute,
		Relists:      true,
		RelistFailed: func(topic string, err error) { t.Error(topic, err) },
	})
	publish := func() {
		b := e.NewBatch(1)
		defer e.Free(b)
		require.NoError(t, e.Publish(t.Context(), "t", b))
	}
	listed := func() bool { return client.SIsMember(t.Context(), queue.Registry(prefix), "t").Val() }
	publish()
	require.True(t, listed())
	require.NoError(t, client.Del(t.Context(), queue.Registry(prefix)).Err())
	publish()
	e.looking.Wait()
	require.False(t, listed(), "it is not asked for each time")
	e.topics["t"].listed = time.Now().Add(-relistAfter)
	publish()
	e.looking.Wait()
	require.True(t, listed())
	require.NoError(t, e.Close())
}

func TestAClosedEngineRefusesCalls(t *testing.T) {
	closed := errors.New("closed")
	e := NewEngine(Config{Closed: closed, CloseTimeout: time.Second})
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.Equal(t, closed, e.Publish(t.Context(), "t", e.NewBatch(1)))
}

// A caller's own context says that nothing was published. The context of a call to Redis does not
// say that.
func TestAnEndedCallIsNoEndOfTheCallersContext(t *testing.T) {
	t.Parallel()
	network := errors.New("network")
	err := error(endedCall{errors.Join(network, context.DeadlineExceeded, &queue.Refusal{})})
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, network)
	var refusal *queue.Refusal
	require.ErrorAs(t, err, &refusal)
}

// The client may still read the messages of a call that was abandoned.
func TestABatchWhoseCallWasAbandonedIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	user := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), DialerRetries: 1, ReadTimeout: time.Minute})
	defer user.Close()
	client := servers.MustClient(user)
	e := NewEngine(Config{
		Topic:        func(name string) *queue.Topic { return queue.NewTopic(client, "own", name) },
		Work:         rights.Publishing,
		Abandoned:    client.Abandoned,
		CloseTimeout: time.Minute,
	})
	publish := func() *Batch {
		b := e.NewBatch(1)
		require.NoError(t, e.Publish(t.Context(), "t", b))
		return b
	}
	e.Free(publish())
	owner, _ := cluster.Owner("{t}")
	owner.Pause()
	b := publish() // a call that is abandoned and under way until the node answers, and its repeat
	require.True(t, client.Abandoned())
	e.Free(b)
	for range 10 {
		require.NotSame(t, b, e.NewBatch(1))
	}
	owner.Resume()
	require.Eventually(t, func() bool { return !client.Abandoned() }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, e.Close())
}
