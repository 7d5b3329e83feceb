package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestPowerLossLosesUnconfirmedWrites(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"always": "new", "no": ""} {
		in := StartWithDisk(t, "--appendonly", "yes", "--appendfsync", policy)
		client := in.Client(t)
		require.NoError(t, client.Set(ctx, "key", "old", 0).Err())
		before := time.Now()
		require.NoError(t, client.Set(ctx, "key", "new", 0).Err())
		require.Contains(t, string(in.Files().Log()), "new", "the process may die")
		safe := in.PowerLoss()
		require.Equal(t, policy == "always", safe.After(before))
		in.Restart()
		got, err := client.Get(ctx, "key").Result()
		if want == "" {
			require.ErrorIs(t, err, redis.Nil)
		}
		require.Equal(t, want, got)
		in.PowerLoss() // once more
		in.Restart()
		require.Equal(t, want, client.Get(ctx, "key").Val())
	}
}

func TestPowerLossLeavesTheLastSnapshot(t *testing.T) {
	t.Parallel()
	in := StartWithDisk(t, "--save", "3600 1000000")
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "old", 0).Err())
	require.NoError(t, client.Save(ctx).Err())
	require.NoError(t, client.Set(ctx, "key", "new", 0).Err())
	in.PowerLoss()
	in.Restart()
	require.Equal(t, "old", client.Get(ctx, "key").Val())
}

func TestFilesOfAnotherServerCutShort(t *testing.T) {
	t.Parallel()
	aof := []string{"--appendonly", "yes", "--appendfsync", "always"}
	in, other := Start(t, aof...), Start(t, aof...)
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "old", 0).Err())
	files := in.Files()
	require.NoError(t, client.Set(ctx, "key", "new", 0).Err())
	for length, want := range map[int]string{len(files.Log()): "old", len(in.Files().Log()) - 1: "old", len(in.Files().Log()): "new"} {
		other.Kill()
		other.SetFiles(in.Files().Cut(length))
		other.Restart()
		require.Equal(t, want, other.Client(t).Get(ctx, "key").Val())
	}
}
