package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// The tool speaks of all partitions of a topic, and names the one that matters.
func TestAPartitionedTopicIsOneToTheTool(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	parts, err := partition.Topics("orders", 2)
	require.NoError(t, err)
	run := func(want int, args ...string) string {
		t.Helper()
		status, out, said := w.run("", args...)
		require.Equal(t, want, status, "%s: %s%s", args, out, said)
		return out + said
	}
	for _, part := range parts {
		w.group(part, "mails")
	}
	run(0, "groups", "history", "orders", "mails", "--keep", "24h")
	for _, part := range parts {
		w.subscribe(part, redisdelay.SubscriberConfig{ConsumerGroup: "mails", MaxInFlight: 3, LeaseDuration: time.Hour})
		w.publish(part, "dead in "+part, "die: answered 500 by server 17")
		w.publish(part, "acked in "+part, "x", redisdelay.DelayIDKey, "order of "+part)
		w.await(part, "mails", func(g admin.GroupStats) bool { return g.Dead == 1 && g.Counters.Acked == 1 && g.Ready == 0 })
	}

	reasons := run(0, "dead", "reasons", "orders")
	require.Regexp(t, `(?m)^ *2 .*answered 500 by server #$`, reasons)

	history := run(0, "history", "orders", "--json")
	lines := strings.Split(strings.TrimSpace(history), "\n")
	require.Len(t, lines, 2)
	of := map[string]bool{}
	for _, line := range lines {
		var e admin.Ended
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		require.Equal(t, "acked", e.How)
		of[e.Topic] = true
	}
	require.Equal(t, map[string]bool{parts[0]: true, parts[1]: true}, of)
	require.Contains(t, run(0, "history", "orders", "--delay-id", "order of "+parts[1]), "order of "+parts[1])

	memory := run(0, "memory", "orders", "--json")
	var use admin.TopicMemory
	require.NoError(t, json.Unmarshal([]byte(strings.Split(memory, "\n")[0]), &use), memory)
	require.Equal(t, "orders", use.Topic)
	require.Equal(t, 2, use.Partitions)
	require.Positive(t, use.Dead)
}

// Of a partitioned topic, the tool names the partition that hangs, and its worker.
func TestAHungPartitionIsNamed(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	parts, err := partition.Topics("orders", 2)
	require.NoError(t, err)
	w.group(parts[0], "mails")
	w.subscribe(parts[1], redisdelay.SubscriberConfig{ConsumerGroup: "mails", MaxInFlight: 3, LeaseDuration: time.Hour})
	for range 6 {
		w.publish(parts[1], "held", "hold")
	}
	w.await(parts[1], "mails", func(g admin.GroupStats) bool { return g.InHand == 3 && g.Ready == 3 })
	server.Advance(3 * time.Minute)
	_, doctor, _ := w.run("", "doctor", "--topic", "orders")
	require.Contains(t, doctor, `Group "mails" of topic "`+parts[1]+`" is hung: it has 3 messages in hand`)
	require.NotContains(t, doctor, `"`+parts[0]+`" is hung`)
	_, held, _ := w.run("", "msg", "ls", "orders", "--state", "in-hand")
	require.Regexp(t, `process \d+`, held)
}
