package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// reminders has two groups in which messages retry under the delay ID "order 123": "1" in both, and
// "2" in "a" only, because nobody has subscribed to "b" since.
func reminders(t *testing.T) *world {
	t.Helper()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "a")
	w.group("orders", "b")
	w.publish("orders", "1", "retry", redisdelay.DelayIDKey, "order 123")
	for _, g := range []string{"a", "b"} {
		stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: g})
		w.await("orders", g, func(s admin.GroupStats) bool { return s.Retrying == 1 })
		stop()
	}
	return w
}

// A time in the past is now, as an instant or as a duration.
func TestRescheduleIntoThePastIsNow(t *testing.T) {
	t.Parallel()
	for _, past := range [][]string{{"--in", "-1h"}, {"--in=-1h"}, {"--in", "0s"}, {"--at", "2020-01-02T03:04:05Z"}} {
		server := redisdelaytest.Start(t)
		w := newWorld(t, server.Client(), server.Addr())
		w.publish("orders", "1", "x", redisdelay.DelayKey, "5h", redisdelay.DelayIDKey, "order 123")
		status, out, said := w.run("", append([]string{"msg", "reschedule", "orders", "order 123"}, past...)...)
		require.Zero(t, status, said)
		require.Contains(t, out, "Done: reschedule message ")
		page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		stats, err := w.admin.Stats(t.Context(), "orders")
		require.NoError(t, err)
		require.False(t, page.Messages[0].Places[0].At.After(stats.Now), past)
	}
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.publish("orders", "1", "x", redisdelay.DelayKey, "5h", redisdelay.DelayIDKey, "order 123")
	for _, wrong := range []string{"soon", "1", ""} {
		status, _, said := w.run("", "msg", "reschedule", "orders", "order 123", "--in", wrong)
		require.Equal(t, exitRefused, status, said)
	}
}

func TestCommandsReachWhatRetriesByItsDelayID(t *testing.T) {
	t.Parallel()
	w := reminders(t)
	status, out, said := w.run("", "msg", "get", "orders", "order 123")
	require.Zero(t, status, said)
	require.Contains(t, out, `group "a": retrying, due `)
	require.Contains(t, out, `group "b": retrying, due `)

	status, out, said = w.run("", "msg", "reschedule", "orders", "order 123", "--in", "2h")
	require.Zero(t, status, said)
	require.Contains(t, out, "Done: reschedule message ")
	for _, g := range []string{"a", "b"} {
		page, err := w.admin.List(t.Context(), "orders", admin.Query{Group: g, State: admin.Retrying})
		require.NoError(t, err)
		require.Greater(t, time.Until(page.Messages[0].Places[0].At), time.Hour)
		require.Equal(t, 1, page.Messages[0].Places[0].Deliveries)
	}

	w.publish("orders", "2", "retry", redisdelay.DelayIDKey, "order 123")
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "a"})
	w.await("orders", "a", func(s admin.GroupStats) bool { return s.Retrying == 2 })
	stop()
	id := w.id("orders", "2")
	want := fmt.Sprintf(`delay ID "order 123" of topic "orders": too late: message %s is retrying in group "a", ready in group "b"`, id)
	for _, args := range [][]string{{"cancel", "--yes"}, {"reschedule", "--in", "1h"}, {"now"}} {
		status, _, said = w.run("", append([]string{"msg", args[0], "orders", "order 123"}, args[1:]...)...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, said, want, args)
	}
	status, _, said = w.run("", "msg", "kill", "orders", id, "--group", "b", "--yes")
	require.Zero(t, status, said)
	_, _, said = w.run("", "msg", "cancel", "orders", "order 123", "--yes")
	require.Contains(t, said, `is retrying in group "a", dead in group "b"`)

	status, _, said = w.run("", "msg", "cancel", "orders", id, "--yes") // by its ID
	require.Zero(t, status, said)
	status, _, said = w.run("", "msg", "cancel", "orders", "order 123", "--yes")
	require.Zero(t, status, said)
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, 1, stats.Messages, "the dead letter")

	_, out, _ = w.run("", "audit")
	require.Contains(t, out, "cancel")
}

func TestRescheduleBeyondTheExpiryIsRefused(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	w.publish("orders", "1", "x", redisdelay.DelayKey, "10m", redisdelay.DelayIDKey, "order 123",
		redisdelay.ExpiresAtKey, ends, redisdelay.OnExpiryKey, "drop")
	status, _, said := w.run("", "msg", "reschedule", "orders", "order 123", "--in", "2h")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "due at or after expires_at, which is "+ends)
	status, _, said = w.run("", "msg", "reschedule", "orders", "order 123", "--in", "20m")
	require.Zero(t, status, said)

	status, _, said = w.run("x", "publish", "orders", "--in", "2h", "--metadata", "expires_at="+ends, "--metadata", "on_expiry=dead")
	require.NotZero(t, status)
	require.Contains(t, said, "metadata expires_at is")
	require.Contains(t, said, "due at or after expires_at")
}
