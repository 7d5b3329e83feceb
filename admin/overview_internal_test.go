package admin

import (
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

func TestAnAdminRemembersAsManyTopicsAsItMay(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{}) // does not connect
	t.Cleanup(func() { _ = client.Close() })
	page := func(first, n int) (topics []*operate.Topic) {
		for i := range n {
			topics = append(topics, operate.NewTopic(servers.MustClient(client), "own", fmt.Sprintf("topic %d", first+i)))
		}
		return topics
	}
	var s seen
	before := make([][]*operate.Topic, maxSeen/1000)
	var counting sync.WaitGroup
	for i := range before {
		before[i] = page(i*1000, 1000)
		counting.Go(func() { s.known(before[i]) })
	}
	counting.Wait()
	for i, topics := range before {
		again := page(i*1000, 1000)
		s.known(again)
		for j, topic := range again {
			require.Same(t, topics[j], topic)
		}
	}
	require.Len(t, s.topics, maxSeen)
	for first := maxSeen; first < 3*maxSeen; first += 700 {
		s.known(page(first, 700))
		require.LessOrEqual(t, len(s.topics), maxSeen)
	}
}
