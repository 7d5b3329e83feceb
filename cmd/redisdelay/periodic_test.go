package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// Processes with one file publish each occurrence once. An edited file replaces what waits.
func TestPeriodic(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	first := time.Now().Add(time.Minute).Truncate(time.Second) // so none is due in this test
	definition := func(step int, payload string) string {
		return file(t, fmt.Sprintf("schedules:\n- {name: tick, topic: ticks, spec: '@every %ds', start: %s, payload: %s}\n",
			step, first.UTC().Format(time.RFC3339), payload))
	}
	both := func(name, expected string, done func(admin.Schedule) bool) admin.Schedule {
		t.Helper()
		var s admin.Schedule
		var processes []*tool
		for range 2 {
			processes = append(processes, start(t, nil, "periodic", "--redis", server.Addr(), "--log-level", "debug", "--file", name))
		}
		for _, p := range processes {
			p.await(expected)
		}
		require.Eventually(t, func() bool {
			var err error
			s, err = oneSchedule(t.Context(), w.admin, "ticks", "tick")
			return err == nil && done(s)
		}, patience, time.Millisecond)
		for _, p := range processes {
			p.signal()
		}
		for _, p := range processes {
			require.Zero(t, p.wait()) // what is under way is done then
		}
		return s
	}
	published := func() int {
		stats, err := w.admin.Stats(t.Context(), "ticks")
		require.NoError(t, err)
		return stats.Counters.Published + stats.Counters.Replaced + stats.Counters.LeftOut
	}
	some := func(s admin.Schedule) bool { return s.Waiting > 10 }

	begun := definition(10, "old")
	s := both(begun, "msg=\"(Began a schedule|This program runs a schedule that was begun before)\"", some)
	n := int(s.Cursor.Sub(first)/(10*time.Second)) + 1
	require.Equal(t, n, s.Waiting)
	require.Equal(t, n, published())

	_, err := w.admin.RunSchedule(t.Context(), "ticks", "tick")
	require.NoError(t, err)
	s = both(begun, "This program runs a schedule that was begun before", func(s admin.Schedule) bool { return s.Requested.IsZero() })
	require.Equal(t, int(s.Cursor.Sub(first)/(10*time.Second))+2, published(), "one that was asked for")

	for i, step := range []int{10, 15} {
		payload := fmt.Sprint("new-", i)
		both(definition(step, payload), "Replaced the definition of a schedule|This program runs a schedule that was begun before", some)
		page, err := w.admin.List(t.Context(), "ticks", admin.Query{State: admin.Waiting, Limit: 100})
		require.NoError(t, err)
		at, scheduled := first, 0
		for _, m := range page.Messages {
			if m.DelayID == (periodic.Occurrence{Schedule: "tick", At: at}).ID() {
				require.Equal(t, payload, string(m.Payload))
				at = at.Add(time.Duration(step) * time.Second)
				scheduled++
			}
		}
		require.Greater(t, scheduled, 10)
		require.LessOrEqual(t, len(page.Messages), scheduled+1, "and the one that was asked for")
	}
}
