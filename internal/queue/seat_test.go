package queue_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

func TestSeatsTellWhoIsActiveAndWhoIsWokenNext(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		now := float64(w.now())
		require.NoError(t, w.Client.HSet(ctx, w.keys.Active(), "a", "OWNER 7 0 1000").Err())
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Standby("a"), redis.Z{Score: now - 1, Member: "box|1"},
			redis.Z{Score: now + 60_000, Member: "box|2"}, redis.Z{Score: now + 90_000, Member: "box|3"}).Err())
		for i, name := range []string{"GONE", "NEXT", "LAST"} {
			require.NoError(t, w.Client.HSet(ctx, w.keys.Workers("a"), name, fmt.Sprint("0 0 0 - 0 1 - - - box|", i+1)).Err())
		}
		client, err := servers.NewClient(w.Client)
		require.NoError(t, err)
		seats := func() []queue.Seat {
			seats, err := queue.Seats(ctx, client, w.Prefix, "a", []string{w.topic.Name, "none"})
			require.NoError(t, err)
			return seats
		}
		require.Equal(t, []queue.Seat{{Owner: "OWNER", Next: "NEXT"}, {}}, seats())

		require.NoError(t, w.Client.HSet(ctx, w.keys.Active(), "a", "- 7 0 1000").Err())
		require.NoError(t, w.Client.HDel(ctx, w.keys.Workers("a"), "NEXT").Err())
		require.Equal(t, []queue.Seat{{}, {}}, seats(), "nobody is active, and who is next does not show itself")
	})
}
