package redistest

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestHookFailsTheCallsThatItDoesNotSend(t *testing.T) {
	t.Parallel()
	_, client := Embedded(t)
	require.NoError(t, client.Ping(ctx).Err()) // so that it has a connection
	refusal := errors.New("refused")
	var done []string // outside of the hook that refuses
	client.AddHook(AfterEach(func(call redis.Cmder) { done = append(done, call.Name()) }))
	client.AddHook(BeforeEach(func(call redis.Cmder) error {
		if call.Name() == "set" {
			return refusal
		}
		return nil
	}))
	require.ErrorIs(t, client.Set(ctx, "key", "x", 0).Err(), refusal)
	calls, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "key")
		p.Set(ctx, "key", "x", 0)
		return nil
	})
	require.ErrorIs(t, err, refusal)
	for _, call := range calls {
		require.ErrorIs(t, call.Err(), refusal)
	}
	require.Empty(t, done)

	// Each call of a pipeline that was sent has an answer of its own.
	calls, err = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "key")
		p.Del(ctx, "key")
		return nil
	})
	require.ErrorIs(t, err, redis.Nil)
	require.NoError(t, calls[1].Err())
	require.Equal(t, []string{"del"}, done)
}
