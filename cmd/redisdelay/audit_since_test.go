package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// An operator finds in the log when a message was due that he moved, and moves it back.
func TestWhatWasMovedGoesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.publish("orders", "moved", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "order 1")
	run := func(args ...string) string {
		t.Helper()
		status, out, said := w.run("", args...)
		require.Zero(t, status, "%s: %s%s", args, out, said)
		return out
	}
	before := run("msg", "get", "orders", "order 1", "--json")
	run("msg", "reschedule", "orders", "order 1", "--in", "5h")
	require.NotEqual(t, before, run("msg", "get", "orders", "order 1", "--json"))
	audit := run("audit", "--since", "20h")
	was := regexp.MustCompile(`in 5h, due was (\S+)`).FindStringSubmatch(audit)
	require.NotNil(t, was, audit)
	run("msg", "reschedule", "orders", "order 1", "--at", was[1])
	require.Equal(t, before, run("msg", "get", "orders", "order 1", "--json"))
	run("msg", "cancel", "orders", "order 1", "--yes")
	require.Contains(t, run("audit", "--limit", "1"), "due was "+was[1])

	_, out, said := w.run("", "audit", "--until", "1h")
	require.Contains(t, out+said, "Nothing of that time is in the audit log.")
	require.Equal(t, 3, strings.Count(run("audit", "--since", "1h", "--json"), "\n"))
	status, _, said := w.run("", "audit", "--since", "soonish")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "--since")
}
