package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

type (
	single  struct{ *redis.Client }
	cluster struct{ *redis.ClusterClient }
	deeper  struct{ cluster }
)

// A struct is no key of a map if one of its fields is none.
func TestAClientThatCannotBeComparedLoadsScripts(t *testing.T) {
	t.Parallel()
	client := struct {
		*redis.Client
		names []string
	}{redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()}), nil}
	defer client.Close()
	require.NoError(t, topicOf(client, "own", "t").Register(ctx, "g", queue.GroupOptions{}))
}

func TestAWrappedClientOfOneServerWorksAsTheClientDoes(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		options := redis.Options{Addr: s.Client.(*redis.Client).Options().Addr, ReadTimeout: 400 * time.Millisecond} // a WAIT takes half of it
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		seen := new(waits)
		client.AddHook(seen)
		s.Client = &single{client}
		delivers(t, s)
		topic := topicOf(s.Client, s.Prefix, "topic")
		require.ErrorIs(t, topic.AwaitReplicas(ctx, "p", 1, 1, time.Second), queue.ErrNotReplicated)
		require.EqualValues(t, 200, seen.longest)
		master, err := topic.Master(ctx)
		require.NoError(t, err)
		require.Equal(t, servers.OnlyServer, master)
	})
}

// waits is a hook that notes for how long a WAIT would wait at most, in milliseconds.
type waits struct {
	redis.Hook
	longest int64
}

func (*waits) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*waits) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (w *waits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "wait" {
				w.longest = max(w.longest, cmd.Args()[2].(int64))
			}
		}
		return next(ctx, cmds)
	}
}

func TestAWrappedClientOfAClusterWorksAsTheClientDoes(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t)
	client := nodes.Client(t)
	s := redistest.Server{Client: &deeper{cluster{client}}, Prefix: "own"}
	delivers(t, s)

	topic := topicOf(s.Client, s.Prefix, "topic")
	require.NoError(t, topic.AwaitReplicas(ctx, "p", 1, 1, patience))
	// A pipeline over several nodes, none of which knows the scripts any more.
	var calls []*queue.Call
	for _, name := range []string{"a", "b", "c", "d"} {
		topic := topicOf(s.Client, s.Prefix, name)
		require.NoError(t, topic.Register(ctx, "g", standard))
		owner, _ := nodes.Owner("{" + name + "}")
		master, err := topic.Master(ctx)
		require.NoError(t, err)
		require.Equal(t, owner.Addr(), master)
		calls = append(calls, topic.ResignCall("nobody"))
	}
	require.NoError(t, client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.ScriptFlush(ctx).Err() }))
	require.NoError(t, do(ctx, s.Client, calls...))
	for _, call := range calls {
		require.NoError(t, call.Err())
	}
}

// delivers publishes and claims a message.
func delivers(t *testing.T, s redistest.Server) {
	t.Helper()
	topic := topicOf(s.Client, s.Prefix, "topic")
	require.NoError(t, topic.Register(ctx, "g", standard))
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(t, err)
	require.NoError(t, topic.PublishWithin(ctx, "p", 1, []queue.Message{{ID: id, Due: queue.In(0), Body: []byte("x")}}, queue.Limit{}))
	call := topic.Group("g").ClaimCall(queue.Claim{Subscription: "s", Number: 1, Limit: 1, Lease: time.Minute, Bytes: 1})
	require.NoError(t, do(ctx, s.Client, call))
	server, err := topic.Client().Server(ctx, topic.Key())
	require.NoError(t, err)
	require.Less(t, server.Clock.Abs(), time.Minute)
}
