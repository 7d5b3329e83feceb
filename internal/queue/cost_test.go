package queue_test

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The commands of a call are most of what it costs, so each further one is a decision.
func TestCommandsOfAPublishCall(t *testing.T) {
	t.Parallel()
	s := redistest.On(t, redistest.Start(t).Client(t), "cost")
	w := newWorld(t, s, "topic", "group")
	number := uint64(0)
	publish := func(due queue.Due) {
		number++
		id, err := w.ids.Next(time.Now())
		require.NoError(t, err)
		require.NoError(t, w.topic.Publish(ctx, "publisher", number, []queue.Message{{ID: id, Due: due, Body: make([]byte, 100)}}))
	}
	publish(queue.In(time.Hour)) // loads the scripts, and enters the next event
	for due, want := range map[queue.Due]int{queue.In(0): 13, queue.In(2 * time.Hour): 11} {
		require.NoError(t, s.Client.ConfigResetStat(ctx).Err())
		publish(due)
		info, err := s.Client.Info(ctx, "commandstats").Result()
		require.NoError(t, err)
		ran := 0
		for _, m := range regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
			if m[1] == "config|resetstat" || m[1] == "info" {
				continue
			}
			n, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			ran += n
		}
		require.Equal(t, want, ran, "%+v: %s", due, info)
	}
}
