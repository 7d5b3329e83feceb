package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestATopicThatCannotBeReadStopsNeitherMemoryNorDiagnose(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction").Client(t), Prefix: "own"})
	for name, size := range map[string]int{topic: 10_000, "layout": 50_000, "type": 20_000, partitions.Name("parcels", 0): 10, partitions.Name("parcels", 1): 10} {
		for range 50 {
			require.NoError(t, s.publisher(t).Publish(name, delayed(strings.Repeat("x", size), time.Hour)))
		}
	}
	for _, name := range []string{"layout", partitions.Name("parcels", 1)} {
		require.NoError(t, s.Client.HSet(ctx, queue.NewKeys(s.Prefix, name).Meta(), "layout", "other").Err())
	}
	waits := queue.NewKeys(s.Prefix, "type").Pending()
	require.NoError(t, s.Client.Del(ctx, waits).Err())
	require.NoError(t, s.Client.Set(ctx, waits, "x", 0).Err())

	use, err := s.admin.Memory(ctx, admin.MemoryOptions{})
	require.NoError(t, err)
	require.Equal(t, topic, use.Topics[0].Topic)
	require.Empty(t, use.Topics[0].LeftOut)
	left := map[string]string{}
	for _, m := range use.Topics[1:] {
		left[m.Topic] = m.LeftOut
	}
	require.Len(t, left, 3)
	require.Regexp(t, `^all: .*layout`, left["layout"])
	require.Regexp(t, `^all: .*WRONGTYPE`, left["type"])
	require.Regexp(t, `^partition "parcels-p1-[0-9]+": .*layout`, left["parcels"])
	require.Contains(t, use.String(), `Left out of topic "layout": all: `)
	require.ErrorIs(t, only(s.admin.Memory(ctx, admin.MemoryOptions{Topics: []string{topic, "layout"}})), admin.ErrLayout)

	require.NoError(t, s.Client.ConfigSet(ctx, "maxmemory", "6mb").Err())
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(d.Problems), `Topic "orders" takes the most`)
}

func TestMemoryOfAPartitionAndOfTheWhole(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		whole, err := p.admin.Memory(ctx, admin.MemoryOptions{Topics: []string{topic}})
		require.NoError(t, err)
		use, err := p.admin.Memory(ctx, admin.MemoryOptions{Topics: []string{topic, p.plain[1]}})
		require.NoError(t, err)
		require.Equal(t, 2, use.Looked)
		require.Equal(t, whole.Topics[0], use.Topics[0])
		require.Equal(t, p.plain[1], use.Topics[1].Topic)
		require.Positive(t, use.Topics[1].Bytes)
	})
}
