package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// "What became of order 4711?" is one command, by each of its names.
func TestWhatBecameOfAMessageIsOneCommand(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	run := func(args ...string) string {
		t.Helper()
		status, out, said := w.run("", args...)
		require.Zero(t, status, "%s: %s", args, said)
		return out + said
	}
	require.Contains(t, run("history", "orders"), `No group of topic "orders" keeps a history; turn it on: redisdelay groups history orders GROUP --keep 24h`)
	require.Contains(t, run("groups", "history", "orders", "billing"), `Group "billing" of topic "orders" keeps no history.`)
	require.Contains(t, run("groups", "history", "orders", "billing", "--keep", "24h"), `keeps what became of 10,000 messages, for 24h0m, by an operator; subscribers ask for no history. Before, it was: no history.`)
	require.Contains(t, run("history", "orders"), `Nothing has ended in the history of topic "orders", which group "billing" keeps for 24h0m.`)

	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.publish("orders", "uuid-1", "x", redisdelay.DelayIDKey, "order 4711")
	require.Eventually(t, func() bool {
		page, err := w.admin.History(t.Context(), "orders", admin.HistoryFilter{})
		return err == nil && len(page.Ended) == 1
	}, 20*time.Second, time.Millisecond)
	w.publish("orders", "uuid-2", "y", redisdelay.DelayIDKey, "order 4712", redisdelay.DelayKey, "1h")
	run("msg", "cancel", "orders", "order 4712", "--yes")

	all := run("history", "orders")
	require.Regexp(t, `(?s)cancelled .*order 4712.*acked +billing .*order 4711`, all, "newest first")
	for _, args := range []string{"--delay-id|order 4711", "--group|billing", "--since|1h"} {
		require.Contains(t, run(append([]string{"history", "orders"}, strings.Split(args, "|")...)...), "order 4711", args)
	}
	for _, args := range []string{"--delay-id|none", "--until|1h"} {
		require.Contains(t, run(append([]string{"history", "orders"}, strings.Split(args, "|")...)...), "Nothing ", args)
	}
	var line admin.Ended
	require.NoError(t, json.Unmarshal([]byte(run("history", "orders", "--delay-id", "order 4711", "--json")), &line))
	require.Equal(t, "acked", line.How)
	require.Equal(t, 1, line.Deliveries)

	for _, name := range []string{"order 4711", line.ID, line.UUID} {
		require.Regexp(t, `ended +group "billing": acked \S+ \S+ by \S+ pid \d+ after 1 delivery, the last one took `, run("msg", "get", "orders", name), name)
	}
	require.Regexp(t, `ended +before any group had it: cancelled `, run("msg", "get", "orders", "order 4712"))
	var ended endedMessage
	require.NoError(t, json.Unmarshal([]byte(run("msg", "get", "orders", line.ID, "--json")), &ended))
	require.Equal(t, []admin.Ended{line}, ended.Ended)
	status, _, said := w.run("", "msg", "get", "orders", "order 4713")
	require.NotZero(t, status)
	require.Contains(t, said, "not found")

	history := queue.NewKeys(redisdelay.DefaultKeyPrefix, "orders").History("billing")
	require.NoError(t, w.client.Rename(t.Context(), history, history+":away").Err())
	require.NoError(t, w.client.Set(t.Context(), history, "x", 0).Err())
	status, _, said = w.run("", "msg", "get", "orders", line.ID)
	require.NotZero(t, status)
	require.Contains(t, said, "What became of the message is not known: ")
}

func TestWrongHistoriesAreRefusedByTheirFlags(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	for args, fault := range map[string]string{
		"groups history orders billing --keep soon":             "--keep is \"soon\"; it must be a duration such as 24h",
		"groups history orders billing --keep=-1h":              "--keep is \"-1h\"",
		"groups history orders billing --keep 1ms":              "Retention is 1ms, must be from 1s",
		"groups history orders billing --max 5":                 "--max is given, and --keep is not",
		"groups history orders billing --keep 1h --max 0":       "--max is 0; want a whole number from 1",
		"groups history orders billing --keep 1h --max 2000000": "Max is 2000000, must be from 1 to 1000000",
		"groups history orders billing --off --keep 1h":         "say different things",
		"groups history orders billing --why x":                 "nothing is to be changed",
		"history orders --limit=-1":                             "--limit is -1",
		"history orders --since soon":                           "--since: \"soon\" is no time",
	} {
		status, _, said := w.run("", strings.Fields(args)...)
		require.Equal(t, exitRefused, status, "%s: %s", args, said)
		require.Contains(t, said, fault, args)
	}
	status, _, said := w.run("", "history", "orders", "--group", "none")
	require.NotZero(t, status)
	require.Contains(t, said, "not found")
}
