package queue_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestSlotIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t).Client(t)
	for _, topic := range []string{"orders", "a{b}c", "{", "ä%", "orders-p7-1021"} {
		key := queue.NewKeys("redisdelay", topic).Pending()
		slot, err := client.ClusterKeySlot(context.Background(), key).Result()
		require.NoError(t, err)
		require.Equal(t, slot, int64(queue.Slot(topic)), topic)
	}
}
