package redistest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

func TestBothGivesEachSubtestKeysOfItsOwn(t *testing.T) {
	Both(t, func(t *testing.T, s Server) {
		require.Regexp(t, `^test-[0-9a-f]{8}:TestBothGivesEachSubtestKeysOfItsOwn-(embedded|real)$`, s.Prefix)
		require.NoError(t, s.Client.Set(ctx, s.Prefix+":{topic}", "x", 0).Err())
		require.Equal(t, s.Mini != nil, strings.HasSuffix(s.Prefix, "-embedded"))
	})
}

func TestHooksRunAfterTheTestsCleanupsAndBeforeKeysAreDeleted(t *testing.T) {
	var prefix string
	var order []string
	t.Run("real", func(t *testing.T) {
		client := Client(t)
		s := newServer(t, client, nil)
		prefix = s.Prefix
		for i := range 2500 { // more than one chunk
			require.NoError(t, client.Set(ctx, s.Prefix+strconv.Itoa(i), "x", 0).Err())
		}
		s.OnCleanup(func() {
			order = append(order, "hook")
			keys, _, err := Client(t).Scan(ctx, 0, prefix+"*", 100).Result()
			require.NoError(t, err)
			require.NotEmpty(t, keys)
		})
		t.Cleanup(func() { order = append(order, "test's own") })
		require.NoError(t, client.Close())
	})
	client := Client(t) // skips or fails in the same cases as "real"
	require.Equal(t, []string{"test's own", "hook"}, order)
	require.Empty(t, keysBeginning(t, client, prefix))
}

func keysBeginning(t *testing.T, client redis.UniversalClient, prefix string) (keys []string) {
	t.Helper()
	for it := client.Scan(ctx, 0, prefix+"*", 1000).Iterator(); it.Next(ctx); {
		keys = append(keys, it.Val())
	}
	return keys
}
