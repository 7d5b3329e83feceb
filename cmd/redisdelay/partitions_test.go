package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// partitionedShop has a topic of three partitions. Each has a message that waits and a dead letter.
func partitionedShop(t *testing.T) *world {
	t.Helper()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	names, err := partition.Topics("orders", 3)
	require.NoError(t, err)
	for i, name := range names {
		w.subscribe(name, redisdelay.SubscriberConfig{ConsumerGroup: "billing", LeaseDuration: time.Hour})
		w.publish(name, fmt.Sprint("dead-", i), "die: partner 17 is down")
		w.await(name, "billing", func(g admin.GroupStats) bool { return g.Dead == 1 })
		w.publish(name, fmt.Sprint("waits-", i), "not paid", redisdelay.DelayIDKey, fmt.Sprint("order ", i), redisdelay.DelayKey, fmt.Sprintf("%dm", i+1))
	}
	w.group("mails", redisdelay.DefaultConsumerGroup)
	return w
}

// partitionGoldens are commands on a partitioned topic. All are in one golden file.
var partitionGoldens = []string{
	"topics", "topics --json", "topics orders", "topics orders-p1-1147", "groups ls orders", "groups idle orders",
	"top --once --interval 100ms",
	"msg ls orders", "msg ls orders --json", "msg get orders waits-2", "msg get orders waits-2 --json",
	"msg reschedule orders waits-0 --in 2h", "msg cancel orders waits-2 --yes",
	"upcoming orders --width 3h --buckets 2",
	"dead ls orders", "dead reasons orders", "dead purge orders --limit 1 --dry-run", "dead purge orders --limit 1 --yes --json",
	"dead requeue orders --limit 1 --dry-run",
	"dead move orders --to mails --yes", "dead move mails --to orders --yes",
	"pause orders --as ann@ops --why deploy", "doctor orders", "doctor orders-p0-40", "resume orders", "resume orders --json",
	"publish orders", "check orders", "repair orders --yes",
	"partitions show orders", "partitions set orders 4", "partitions set orders 4 --json", "partitions set orders 3",
	"partitions set orders 2 --as ann@ops", "partitions show orders --json", "partitions set orders 5", "partitions set orders many", "partitions set mails 3",
	"publish orders --delay-id new --uuid new --in 1h", "msg get orders new", "audit --by ann@ops",
	"groups rm orders billing --dry-run", "topics rm orders --dry-run", "topics rm orders --yes --json", "topics orders",
}

func TestGoldenOfAPartitionedTopic(t *testing.T) {
	t.Parallel()
	w := partitionedShop(t)
	var text strings.Builder
	var s scrubbed
	for i, command := range partitionGoldens {
		if i == len(partitionGoldens)-1 { // the subscribers register again after the removal
			require.Eventually(t, func() bool {
				stats, err := w.admin.Stats(t.Context(), "orders")
				without := func(p admin.Stats) bool { return len(p.Groups) != 1 }
				return err == nil && len(stats.Partitions) == 3 && !slices.ContainsFunc(stats.Partitions, without) && stats.Groups[0].Subscribed
			}, patience, time.Millisecond)
		}
		status, out, said := w.run("", strings.Fields(command)...)
		fmt.Fprintf(&text, "$ redisdelay %s\n%s", command, s.scrub(out))
		for _, line := range strings.SplitAfter(said, "\n") {
			if line != "" {
				fmt.Fprintf(&text, "stderr: %s", s.scrub(line))
			}
		}
		fmt.Fprintf(&text, "exit code: %d\n\n", status)
	}
	requireGolden(t, "partitions-of-a-topic", steady(text.String()))
}

func TestAPartitionedTopicIsTailedAndCompleted(t *testing.T) {
	t.Parallel()
	w := partitionedShop(t)
	status, out, _ := w.tail(func() { w.publish("orders-p2-401", "tailed", "hold: news") }, "orders", "--limit", "1")
	require.Zero(t, status)
	require.Contains(t, out, "news")
	_, out, _ = w.run("", "__complete", "topics", "or")
	require.Contains(t, out, "orders\norders-p")
	require.Equal(t, 1, strings.Count(out, "orders\n"))
}
