package operate_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A count reads the groups of those topics only whose groups it does not know, or no more.
func TestCountsSendNoMoreThanTheyHaveTo(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		fresh := func(name string) *operate.Topic {
			return operate.NewTopic(servers.MustClient(s.Client), s.Prefix, name)
		}
		var topics []*operate.Topic
		for i := range 3 {
			name := fmt.Sprintf("t%d", i)
			require.NoError(t, fresh(name).Register(t.Context(), "a", queue.GroupOptions{}))
			topics = append(topics, fresh(name))
		}
		var sent []int // calls of each round trip
		s.Client.(*redis.Client).AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
			sent = append(sent, len(calls))
			return next()
		}))
		count := func() []int {
			sent = nil
			counted, err := operate.StatsOf(t.Context(), topics)
			require.NoError(t, err)
			for _, one := range counted {
				require.NoError(t, one.Err)
			}
			return sent
		}
		require.Equal(t, []int{3, 3}, count())
		require.Equal(t, []int{3}, count())
		require.NoError(t, fresh("t1").Register(t.Context(), "b", queue.GroupOptions{}))
		require.Equal(t, []int{3, 1, 1}, count(), "only t1 is read and counted again")
		require.Equal(t, []int{3}, count())
	})
}

// The second step finds that a group is lost.
func TestACountInStepsBeginsAgainWithoutWhatItHas(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		topic := operate.NewTopic(servers.MustClient(s.Client), s.Prefix, "t")
		for i := range 101 {
			require.NoError(t, topic.Register(t.Context(), fmt.Sprintf("g%03d", i), queue.GroupOptions{}))
		}
		require.NoError(t, s.Client.HDel(t.Context(), topic.Keys().Groups(), "g100").Err())
		counted, err := operate.StatsOf(t.Context(), []*operate.Topic{topic})
		require.NoError(t, err)
		require.NoError(t, counted[0].Err)
		require.Len(t, counted[0].Groups, 100)
	})
}
