package operate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The client alone would try the frozen node for twelve seconds.
func TestCountsOfTopicsOnAllNodesWhileOneIsFrozen(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"first", "last"} {
		t.Run("its topic is "+place, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
			t.Cleanup(func() { _ = client.Close() })
			var topics []*operate.Topic
			for _, primary := range cluster.Primaries {
				name := ""
				for i := 0; name == ""; i++ {
					if owner, _ := cluster.Owner(fmt.Sprintf("{t%d}", i)); owner == primary {
						name = fmt.Sprintf("t%d", i)
					}
				}
				topic := operate.NewTopic(servers.MustClient(client), "own", name)
				require.NoError(t, topic.Register(t.Context(), "g", queue.GroupOptions{}))
				topics = append(topics, topic)
			}
			if place == "last" {
				slices.Reverse(topics)
			}
			cluster.Primaries[0].Pause()
			began := time.Now()
			counted, err := operate.StatsOf(t.Context(), topics)
			require.NoError(t, err)
			require.Less(t, time.Since(began), 8*time.Second)
			for _, one := range counted {
				require.NoError(t, one.Err)
			}
		})
	}
}
