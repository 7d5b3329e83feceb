package main

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// One act releases what a process has in all groups and partitions, and is one entry of the log.
func TestReleaseIsOneAct(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	parts, err := partition.Topics("orders", 2)
	require.NoError(t, err)
	held := redisdelay.SubscriberConfig{MaxInFlight: 3, LeaseDuration: time.Hour}
	for _, group := range []string{"billing", "mails"} {
		held.ConsumerGroup = group
		for _, part := range parts {
			w.subscribe(part, held)
		}
	}
	for _, part := range parts {
		for i := range 3 {
			w.publish(part, fmt.Sprint(i), "hold")
		}
		for _, group := range []string{"billing", "mails"} {
			w.await(part, group, func(g admin.GroupStats) bool { return g.InHand == 3 })
		}
	}
	host, err := os.Hostname()
	require.NoError(t, err)
	name := fmt.Sprintf("%s:%d", host, os.Getpid())
	run := func(want int, args ...string) string {
		t.Helper()
		status, out, said := w.run("", append([]string{"workers", "release", "orders"}, args...)...)
		require.Equal(t, want, status, "%s: %s%s", args, out, said)
		return out + said
	}
	require.Contains(t, run(1, "web-1:4711", "--yes"), `worker "web-1:4711" of topic "orders": not found; its workers are `+name)
	require.Contains(t, run(2, name), "there is no terminal to ask on")
	require.Equal(t, fmt.Sprintf("This would end the leases of 12 messages of worker %q of topic \"orders\" (2 partitions).\n", name), run(0, host, "--dry-run"))
	var did act
	require.NoError(t, json.Unmarshal([]byte(run(0, name, "--group", "mails", "--yes", "--json")), &did))
	require.Equal(t, act{Action: "release-worker", Topic: "orders", Group: "mails", Worker: name, Count: 6, Unit: "message", Partitions: 2}, did)
	require.Contains(t, run(0, name, "--group", "mails", "--yes"), "Done: end the leases of 0 messages", "the holder does not know yet, so it claims nothing")
	require.Contains(t, run(0, name, "--yes"), "Done: end the leases of 6 messages")

	acts, _, err := w.admin.Acts(t.Context(), "", 10)
	require.NoError(t, err)
	require.Len(t, acts, 3)
	require.Equal(t, "release-worker", acts[2].Action)
	require.Equal(t, "mails", acts[2].Group)
	require.Equal(t, fmt.Sprintf("done: 6 messages of worker %q", name), acts[2].Detail)
	_, out, _ := w.run("", "__complete", "workers", "release", "orders", "")
	require.Equal(t, name+"\n:4\n", out)
}
