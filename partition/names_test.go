package partition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func topics(t testing.TB, topic string, partitions int) []string {
	t.Helper()
	names, err := partition.Topics(topic, partitions)
	require.NoError(t, err)
	return names
}

// The names are a wire format: messages are stored under them.
func TestNamesAreGolden(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"orders-p0-40", "orders-p1-1147", "orders-p2-401", "orders-p3-1413", "orders-p4-237", "orders-p5-35",
		"orders-p6-678", "orders-p7-796", "orders-p8-371", "orders-p9-1726", "orders-p10-316", "orders-p11-209",
	}, topics(t, "orders", 12))
	require.Equal(t, []string{"a{b}c-p0-1206", "a{b}c-p1-810", "a{b}c-p2-143"}, topics(t, "a{b}c", 3))
}

// A topic that grows keeps its plain topics.
func TestNamesDoNotDependOnTheNumberOfPartitions(t *testing.T) {
	t.Parallel()
	all := topics(t, "orders", partition.MaxPartitions)
	seen := map[string]bool{}
	for i, name := range all {
		require.False(t, seen[name], name)
		seen[name] = true
		require.Equal(t, all[:i+1], topics(t, "orders", i+1))
		if i > 40 {
			break
		}
	}
}

// most returns how many of the partitions the fullest node has. Nodes have equal, contiguous shares
// of the slots.
func most(slots []int, nodes int) int {
	count, fullest := make([]int, nodes), 0
	for _, slot := range slots {
		node := slot * nodes / queue.SlotCount
		count[node]++
		fullest = max(fullest, count[node])
	}
	return fullest
}

func TestPartitionsSpreadEvenlyOverNodes(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"orders", "x", "a{b}", strings.Repeat("long", 10)} {
		var slots []int
		for _, name := range topics(t, topic, partition.MaxPartitions) {
			slots = append(slots, queue.Slot(name))
		}
		for n := 1; n <= partition.MaxPartitions; n++ {
			for nodes := 2; nodes <= 20; nodes++ {
				even := (n + nodes - 1) / nodes
				got := most(slots[:n], nodes)
				switch {
				case n%nodes == 0 && 12%nodes == 0 && n%12 == 0:
					require.Equal(t, even, got, "%d partitions on %d nodes", n, nodes)
				default:
					require.LessOrEqual(t, got, even+2, "%d partitions on %d nodes", n, nodes)
				}
			}
		}
	}
}

func TestKeysSpreadEvenlyOverPartitions(t *testing.T) {
	t.Parallel()
	const keys, n = 12_000, 12
	count := make([]int, n)
	for i := range keys {
		count[partition.OfKey(fmt.Sprintf("customer-%d", i), n)]++
	}
	for i, c := range count {
		require.InDelta(t, keys/n, c, 150, "partition %d", i)
	}
}

// Growth moves keys to new partitions only, and no more than these need.
func TestKeysMoveOnlyToNewPartitions(t *testing.T) {
	t.Parallel()
	const keys = 6000
	for _, c := range []struct{ from, to int }{{12, 13}, {12, 24}, {1, 3}, {200, 384}} {
		moved := 0
		for i := range keys {
			key := fmt.Sprint(i)
			before, after := partition.OfKey(key, c.from), partition.OfKey(key, c.to)
			if before != after {
				require.GreaterOrEqual(t, after, c.from, "a key moves between old partitions")
				moved++
			}
		}
		want := float64(keys) * float64(c.to-c.from) / float64(c.to)
		require.InDelta(t, want, moved, 0.1*want+30, "%d to %d", c.from, c.to)
	}
}

// The place of a key is a wire format, too.
func TestPlacesOfKeysAreGolden(t *testing.T) {
	t.Parallel()
	var got []string
	for _, key := range []string{"", "1", "customer-1", "customer-2", "ä"} {
		name, err := partition.TopicOf("orders", 12, key)
		require.NoError(t, err)
		got = append(got, name)
	}
	require.Equal(t, []string{"orders-p10-316", "orders-p2-401", "orders-p0-40", "orders-p3-1413", "orders-p7-796"}, got)
}

func TestParseKnowsTheNamesOnly(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"orders", "orders-p1-2", "-", "a-p"} {
		for i, name := range topics(t, topic, 14) {
			got, at, ok := partition.Parse(name)
			require.True(t, ok, name)
			require.Equal(t, topic, got)
			require.Equal(t, i, at)
			_, _, ok = partition.Parse(name + "0")
			require.False(t, ok, name)
		}
	}
	for _, other := range []string{"", "orders", "orders-p1", "orders-p1-", "orders-p-1", "-p0-1", "orders-p999-1", "orders-p01-94"} {
		_, _, ok := partition.Parse(other)
		require.False(t, ok, other)
	}
}

func TestTopicsRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"", strings.Repeat("x", partition.MaxTopicLength+1)} {
		_, err := partition.Topics(topic, 3)
		require.ErrorIs(t, err, redisdelay.ErrInvalidTopic)
		_, err = partition.TopicOf(topic, 3, "key")
		require.ErrorIs(t, err, redisdelay.ErrInvalidTopic)
	}
	for _, n := range []int{0, -1, partition.MaxPartitions + 1} {
		_, err := partition.Topics("orders", n)
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
		_, err = partition.TopicOf("orders", n, "key")
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	}
	for _, name := range topics(t, strings.Repeat("x", partition.MaxTopicLength), partition.MaxPartitions) {
		require.LessOrEqual(t, len(name), redisdelay.MaxTopicLength)
	}
}

func TestDestinationTopicIsThePartitionedTopic(t *testing.T) {
	t.Parallel()
	for range 2 {
		for _, name := range topics(t, "a-p1-2", 3) {
			require.Equal(t, "a-p1-2", partition.DestinationTopic(name, nil))
		}
		require.Equal(t, "orders-p1-2", partition.DestinationTopic("orders-p1-2", nil))
	}
}
