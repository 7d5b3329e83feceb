package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestTheTakeoverWindowOfAnAddedGroup(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	for i, c := range []struct {
		args  []string
		wants time.Duration
	}{
		{nil, 10 * time.Second},
		{[]string{"--takeover-window", "1h"}, time.Hour},
		{[]string{"--takeover-window", "0"}, 0},
	} {
		topic := fmt.Sprint("topic-", i)
		before := time.Now()
		status, _, said := w.run("", append([]string{"groups", "add", topic, "first", "--create"}, c.args...)...)
		require.Zero(t, status, said)
		window, ends := "", int64(0)
		groups, err := w.client.HKeys(t.Context(), queue.NewKeys(redisdelay.DefaultKeyPrefix, topic).Groups()).Result()
		require.NoError(t, err)
		for _, name := range groups {
			if queue.IsWindow(name) {
				window = name
			}
		}
		require.Equal(t, c.wants > 0, window != "", groups)
		if c.wants > 0 {
			_, err = fmt.Sscanf(window, "window:%d", &ends)
			require.NoError(t, err)
			require.WithinRange(t, time.UnixMilli(ends), before.Add(c.wants-time.Millisecond), time.Now().Add(c.wants+time.Millisecond))
		}
	}

	for _, window := range []string{"", "-1s", "soon"} {
		status, _, said := w.run("", "groups", "add", "other", "first", "--create", "--takeover-window="+window)
		require.NotZero(t, status, window)
		require.Contains(t, said, "--takeover-window")
	}
	status, _, _ := w.run("", "topics", "ls", "other")
	require.NotZero(t, status, "nothing was made")

	// A later group takes over by its own setting.
	w.publish("topic-1", "m1", "")
	_, out, _ := w.run("", "groups", "add", "topic-1", "later")
	require.Contains(t, out, "It gets 1 message that came before it.")
	_, out, _ = w.run("", "groups", "add", "topic-1", "debugging", "--takeover-window=0")
	require.Contains(t, out, "Added")
	require.False(t, strings.Contains(out, "It gets"), out)
}
