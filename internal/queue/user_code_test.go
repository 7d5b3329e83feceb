package queue_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// nilError is an error whose methods panic if it is nil.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// A hook may panic before the server has the call, or after that.
func TestAHookThatFailsIsAnErrorOfEachCall(t *testing.T) {
	t.Parallel()
	const odd = "a call to Redis panicked: odd"
	for name, c := range map[string]struct {
		hook redistest.Hook
		want string
	}{
		"panics before": {redistest.BeforeEach(func(redis.Cmder) error { panic("odd") }), odd},
		"panics after":  {redistest.AfterEach(func(redis.Cmder) { panic("odd") }), odd},
		"typed nil":     {redistest.BeforeEach(func(redis.Cmder) error { return (*nilError)(nil) }), "runtime error: invalid memory address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini, plain := redistest.Embedded(t)
			topic := topicOf(plain, "own", "t")
			require.NoError(t, topic.Register(ctx, "a", standard))
			groups, err := topic.Groups(ctx)
			require.NoError(t, err)
			client := redis.NewClient(&redis.Options{Addr: mini.Addr(), MaxRetries: -1})
			t.Cleanup(func() { _ = client.Close() })
			client.AddHook(c.hook)
			topic = topicOf(client, "own", "t")
			group := topic.Group("a")
			for _, n := range []int{1, 3} {
				var calls []*queue.Call
				for range n {
					calls = append(calls, group.ExtendCalls([]*queue.Leased{{ID: "1", Token: "s:1:1"}}, 1000)...)
				}
				err := do(ctx, client, calls...)
				require.ErrorContains(t, err, c.want)
				require.True(t, servers.Unreachable(err), "it says nothing about the call")
				for _, call := range calls {
					require.ErrorContains(t, call.Err(), c.want)
				}
			}
			for name, call := range map[string]func() error{
				"Listed":   func() error { _, err := topic.Listed(ctx); return err },
				"Enroll":   func() error { return topic.Enroll(ctx) },
				"Unlist":   func() error { return topic.Unlist(ctx, "t") },
				"Topics":   func() error { return queue.Topics(ctx, servers.MustClient(client), "own", func(string) {}) },
				"Removing": func() error { _, err := topic.Removing(ctx); return err },
				"Server":   func() error { _, err := topic.Client().Server(ctx, topic.Key()); return err },
				"replicas": func() error { return topic.AwaitReplicas(ctx, "publisher", 1, 1, 1) },
				"permits":  func() error { _, err := new(rights.Permits).Try(ctx, topic.Topic, rights.Scheduling); return err },
				"nodes": func() error {
					_, err := servers.AskMaster(ctx, servers.MustClient(client), "own", func(ctx context.Context, c redis.UniversalClient) (string, error) {
						return c.Ping(ctx).Result()
					})
					return err
				},
				"turn": func() error {
					call := topic.PromoteCall(groups, "nobody|1", 1000, true)
					return errors.Join(do(ctx, client, call), call.Err())
				},
			} {
				require.ErrorContains(t, call(), c.want, name)
			}
		})
	}
}
