package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// A subscription that was just woken, and so waits nowhere, still reads its topic.
func TestASubscriptionReadsItsTopicAsLongAsItShowsItself(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		client, err := servers.NewClient(w.Client)
		require.NoError(t, err)
		for seen, gone := range map[int64]int64{1000: 0, 59_000: 0, 61_000: -1, 2000: 1} {
			note := fmt.Sprintf("0 %d %d - %d 1 - - - box|1", w.now()-seen, w.now()+90_000, max(gone, 0))
			require.NoError(t, w.Client.HSet(ctx, w.keys.Workers("a"), "NAME", note).Err())
			read, err := queue.Read(ctx, client, w.Prefix, "a", []string{w.topic.Name, "none"})
			require.NoError(t, err)
			require.Equal(t, []bool{gone == 0, false}, read, "seen %d ms ago, gone: %d", seen, gone)
		}
	})
}
