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
		for _, c := range []struct {
			seen, gone int64 // ms ago; and since when it is gone, 0: it is not
			reads      bool
		}{{1000, 0, true}, {59_000, 0, true}, {61_000, 0, false}, {2000, 1, false}} {
			note := fmt.Sprintf("0 %d %d - %d 1 - - - box|1", w.now()-c.seen, w.now()+90_000, c.gone)
			require.NoError(t, w.Client.HSet(ctx, w.keys.Workers("a"), "NAME", note).Err())
			read, err := queue.Read(ctx, client, w.Prefix, "a", []string{w.topic.Name, "none"})
			require.NoError(t, err)
			require.Equal(t, []bool{c.reads, false}, read, "%+v", c)
		}
	})
}
