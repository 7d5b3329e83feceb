package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// A UUID that several messages have names none of them.
func TestAUUIDOfSeveralMessagesIsRefusedAndTheyAreListed(t *testing.T) {
	t.Parallel()
	w, _ := shop(t, time.Now())
	for range 2 {
		w.publish("orders", "twin", "x", redisdelay.DelayKey, "1h")
	}
	page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Waiting})
	require.NoError(t, err)
	for _, args := range [][]string{{"msg", "get"}, {"msg", "cancel", "--yes"}} {
		status, _, said := w.run("", append(args, "orders", "twin")...)
		require.Equal(t, exitRefused, status, said)
		require.Contains(t, said, `2 messages have UUID "twin"; name one by its ID: `)
		for _, m := range page.Messages {
			require.Equal(t, m.UUID == "twin", strings.Contains(said, m.ID), said)
		}
	}
	for range sharing {
		w.publish("orders", "twin", "x", redisdelay.DelayKey, "1h")
	}
	status, _, said := w.run("", "msg", "get", "orders", "twin")
	require.Equal(t, exitRefused, status, said)
	require.Contains(t, said, "20 messages or more")
}

// A typo in the name of the other topic makes none.
func TestDeadMoveMakesATopicOnlyIfTold(t *testing.T) {
	t.Parallel()
	w, _ := shop(t, time.Now())
	move := []string{"dead", "move", "orders", "--group", "billing", "--to", "typo", "--yes"}
	for _, args := range [][]string{move, append(move, "--dry-run")} {
		status, _, said := w.run("", args...)
		require.Equal(t, exitFailed, status, said)
		require.Contains(t, said, "--create makes it")
	}
	_, err := w.admin.Stats(t.Context(), "typo")
	require.ErrorIs(t, err, admin.ErrNotFound)
	status, _, said := w.run("", append(move, "--create")...)
	require.Zero(t, status, said)
	stats, err := w.admin.Stats(t.Context(), "typo")
	require.NoError(t, err)
	require.Equal(t, 3, stats.Messages)
}
