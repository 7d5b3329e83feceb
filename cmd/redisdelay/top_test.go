package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// behindStats are two readings of a topic of which one group keeps up, and one falls behind.
func behindStats() (before, now admin.Stats) {
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	group := func(name string, ready, delivered int, oldest time.Time) admin.GroupStats {
		return admin.GroupStats{Group: name, Ready: ready, OldestDue: oldest, Counters: admin.GroupCounters{Delivered: delivered}, Subscribed: true, LastSeen: at}
	}
	before = admin.Stats{Topic: "orders", Now: at, Groups: []admin.GroupStats{group("billing", 0, 100, time.Time{}), group("mail", 500, 10, at.Add(-5*time.Minute))}}
	now = admin.Stats{Topic: "orders", Now: at.Add(10 * time.Second), Counters: admin.Counters{Published: 100},
		Groups: []admin.GroupStats{group("billing", 1, 200, at.Add(10*time.Second)), group("mail", 534, 76, at.Add(-5*time.Minute))}}
	now.Groups[0].Lateness.Add(5*time.Millisecond, 100)
	now.Groups[1].Lateness.Add(5*time.Minute+time.Second, 66)
	return before, now
}

func TestTopSaysWhichGroupIsBehind(t *testing.T) {
	t.Parallel()
	before, now := behindStats()
	r := topRow{Topic: "orders"}
	r.rates(now, before)
	app := &app{out: &output{out: &sink{}}}
	shown := &top{app: app}
	lines := shown.table([]topRow{r}, 0).lines()
	require.Regexp(t, `^TOPIC +PROBLEM .* OUT/S +LATE P50 +P99 +BEHIND +NEXT DUE$`, lines[0])
	require.Regexp(t, `^orders .* 16\.6 +5ms +15m0s +mail 5m10s, growing 3\.4/s +-$`, lines[1])
	shown.groups = true
	lines = shown.table([]topRow{r}, 0).lines()
	require.Regexp(t, `^orders +billing .* 10\.0 +5ms +5ms +-$`, lines[1])
	require.Regexp(t, `^orders +mail .* 6\.6 +15m0s +15m0s +5m10s, growing 3\.4/s$`, lines[2])
	text, err := encode(r)
	require.NoError(t, err)
	var read struct {
		Groups []map[string]any `json:"groups"`
	}
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, map[string]any{"group": "mail", "ready": 534., "in_hand": 0., "retrying": 0., "dead": 0., "out_per_second": 6.6,
		"late_p50": "15m0s", "late_p99": "15m0s", "behind": "5m10s", "growth_per_second": 3.4, "trend": "growing 3.4/s"}, read.Groups[1])
}

func TestANarrowTopKeepsTheCounts(t *testing.T) {
	t.Parallel()
	before, now := behindStats()
	r := topRow{Topic: strings.Repeat("long-name-", 4), Problem: "nobody reads billing", worst: broken, Waiting: 1234, Ready: 535, Dead: 7}
	r.rates(now, before)
	shown := &top{app: &app{out: &output{out: &sink{}}}}
	for _, width := range []int{60, 80, 100, 140} {
		lines := shown.table([]topRow{r}, width).lines()
		for _, line := range lines {
			require.LessOrEqual(t, columns(line), width, line)
		}
		require.Regexp(t, `^TOPIC .*WAITING +READY +IN HAND +RETRYING +DEAD`, lines[0])
		require.Regexp(t, ` 1,234 +535 +0 +0 +7`, lines[1])
	}
}

// A person at a terminal sorts, filters and scrolls.
func TestKeysOfTop(t *testing.T) {
	t.Parallel()
	shown := &top{sort: "problem"}
	rows := []topRow{{Topic: "a", Dead: 1}, {Topic: "mails", Behind: time.Minute}, {Topic: "orders", Behind: time.Hour}}
	press := func(keys string) []string {
		for _, key := range []byte(keys) {
			shown.press(key)
		}
		shown.arrange(rows)
		var names []string
		for _, r := range shown.matching(rows) {
			names = append(names, r.Topic)
		}
		return names
	}
	require.Equal(t, []string{"orders", "mails", "a"}, press("s"))
	require.Equal(t, []string{"mails"}, press("/MAIq\x7f\r"))
	require.Equal(t, []string{"orders", "mails", "a"}, press("/x\x1b"))
	press("jjjk")
	require.Equal(t, 2, shown.first)
	press("g")
	require.True(t, shown.groups)
}

// A topic without a group has no row with --groups. It is not absent.
func TestTopWithGroupsTellsNoGroupFromNoTopic(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	args := []string{"top", "--once", "--groups", "--interval", "100ms"}
	_, _, said := w.run("", args...)
	require.Contains(t, said, "There is no topic.")
	w.publish("orders", "x", "x", redisdelay.DelayKey, "1h")
	_, _, said = w.run("", args...)
	require.Contains(t, said, "There is no group.")
	_, out, _ := w.run("", "top", "--once", "--interval", "100ms")
	require.Contains(t, out, "orders")
}
