package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { Main(m) }

func throughProxy(t *testing.T, change ...func(*redis.UniversalOptions)) (*Proxy, redis.UniversalClient) {
	t.Helper()
	p := NewProxy(t, redistest.Start(t).Addr())
	client := p.Place().Client(change...)
	t.Cleanup(func() { _ = client.Close() })
	return p, client
}

func incr(call []string) bool { return call[0] == "incr" }

func TestProxySwallowsOneReplyOfAnExecutedCall(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, client := throughProxy(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
	p.Swallow(1, incr)
	require.Error(t, client.Incr(ctx, "n").Err())
	require.Equal(t, 1, p.Swallowed())
	require.EqualValues(t, 2, client.Incr(ctx, "n").Val())
}

func TestProxySwallowsInTheMiddleOfAPipeline(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, client := throughProxy(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
	p.Swallow(1, incr)
	pipe := client.Pipeline()
	pipe.Set(ctx, "k", "v", 0) // its reply came, but go-redis sets the error of the connection on all
	n, get := pipe.Incr(ctx, "n"), pipe.Get(ctx, "k")
	_, err := pipe.Exec(ctx)
	require.Error(t, err)
	require.Error(t, n.Err())
	require.Error(t, get.Err())
	require.Equal(t, "1", client.Get(ctx, "n").Val())
	require.Equal(t, "v", client.Get(ctx, "k").Val())
}

func TestProxyPassesEveryKindOfReply(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, client := throughProxy(t)
	require.NoError(t, client.HSet(ctx, "h", "a", "1", "b", "").Err())
	require.Equal(t, map[string]string{"a": "1", "b": ""}, client.HGetAll(ctx, "h").Val())
	require.ErrorIs(t, client.Get(ctx, "none").Err(), redis.Nil)
	require.ErrorContains(t, client.Get(ctx, "h").Err(), "WRONGTYPE")
	require.NoError(t, client.ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "m"}).Err())
	require.Equal(t, []redis.Z{{Score: 1.5, Member: "m"}}, client.ZRangeWithScores(ctx, "z", 0, -1).Val())
}

func TestProxyPassesMessagesOfChannels(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, client := throughProxy(t)
	pubsub := client.Subscribe(ctx, "a channel")
	defer pubsub.Close()
	_, err := pubsub.Receive(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, client.Publish(ctx, "a channel", "hello").Val())
	msg, err := pubsub.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "hello", msg.Payload)
}

func TestProxyDelaysAndStalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, client := throughProxy(t)
	require.NoError(t, client.Ping(ctx).Err())
	p.Delay(50 * time.Millisecond)
	began := time.Now()
	require.NoError(t, client.Ping(ctx).Err())
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	p.Delay(0)

	p.Stall()
	answered := make(chan error, 1)
	go func() { answered <- client.Ping(ctx).Err() }()
	select {
	case err := <-answered:
		t.Fatalf("it answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	p.Resume()
	require.NoError(t, <-answered)
}

func TestProxyRefusesAndAcceptsAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p, client := throughProxy(t)
	require.NoError(t, client.Ping(ctx).Err())
	p.Refuse(true)
	require.Error(t, client.Ping(ctx).Err())
	p.Refuse(false)
	require.NoError(t, client.Ping(ctx).Err())
}

func TestProxyRecordsOutages(t *testing.T) {
	t.Parallel()
	p, client := throughProxy(t)
	p.Delay(slow - 1)
	p.Delay(0)
	require.Empty(t, p.outages(), "it was only slow")
	p.Stall()
	p.Refuse(true)
	p.Resume()
	require.Zero(t, p.outages()[0].At, "it still refuses")
	p.Refuse(false)
	require.NoError(t, client.Ping(t.Context()).Err())
	p.Delay(slow)
	noted := p.outages()
	require.Len(t, noted, 2)
	require.Greater(t, noted[0].At, noted[0].Sent)
	require.Zero(t, noted[1].At, "it lasts")
}
