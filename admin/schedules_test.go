package admin_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func TestSchedules(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		none, err := a.Schedules(ctx, "t", "none")
		require.NoError(t, err)
		for i, topic := range []string{"t", "none"} {
			require.Equal(t, topic, none[i].Topic)
			require.ErrorIs(t, none[i].Err, admin.ErrNotFound)
		}
		none, err = a.Schedules(ctx)
		require.NoError(t, err)
		require.Empty(t, none)
		read := func() []admin.Schedule {
			found, err := a.Schedules(ctx, "t")
			require.NoError(t, err)
			return found[0].Schedules
		}
		p, err := periodic.New(periodic.Config{Publisher: testkit.NewPublisher(t, s), Poll: 100 * time.Millisecond}, nil)
		require.NoError(t, err)
		schedule := func(name string) periodic.Schedule {
			return periodic.Schedule{Name: name, Topic: "t", Spec: "@yearly", Message: func(periodic.Occurrence) (*message.Message, error) {
				return message.NewMessage(name, nil), nil
			}}
		}
		require.NoError(t, p.Add(schedule("b"), schedule("a: %")))
		running, cancel := context.WithCancel(ctx)
		ended := testkit.Begin(func() error { return p.Run(running) })
		var all []admin.Schedule
		testkit.Eventually(t, func() bool {
			all = read()
			return len(all) == 2 && !all[0].Next.IsZero() && !all[1].Next.IsZero()
		}, "the schedules")
		first := all[0]
		require.Equal(t, "a: %", first.Name)
		require.Equal(t, admin.Schedule{Name: "a: %", Topic: "t", Spec: "@yearly", Zone: "UTC", Version: 1, Waiting: 1,
			Definition: `{"spec":"@yearly","zone":"UTC","misfire":"last"}`, Cursor: first.Cursor, Next: first.Cursor, Expected: first.Cursor.AddDate(1, 0, 0)}, first)
		require.True(t, func() bool { stats, err := a.Stats(ctx, "t"); return err == nil && stats.Recurs }())
		of, err := a.Schedules(ctx, "none", "t", "")
		require.NoError(t, err)
		require.Equal(t, admin.TopicSchedules{Topic: "t", Now: of[1].Now, Schedules: all}, of[1])
		require.WithinDuration(t, time.Now(), of[1].Now, time.Minute)
		require.Empty(t, of[0].Schedules)
		require.ErrorIs(t, of[0].Err, admin.ErrNotFound)
		require.ErrorIs(t, of[2].Err, admin.ErrInvalidTopic)
		text, err := json.Marshal(first)
		require.NoError(t, err)
		require.Contains(t, string(text), `"cursor":`)
		require.NotContains(t, string(text), `"pause":`)

		pause, n, err := a.PauseSchedule(ctx, "t", "b", admin.PauseOptions{By: "ann", Why: "stock-taking", For: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, time.Hour, pause.Until.Sub(pause.Since))
		require.Equal(t, &pause, read()[1].Pause)
		_, _, err = a.PauseSchedule(ctx, "t", "b", admin.PauseOptions{Scope: admin.InGroup("g")})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		at, err := a.RunSchedule(ctx, "t", "b")
		require.NoError(t, err)
		require.False(t, at.IsZero())
		require.NoError(t, a.ResumeSchedule(ctx, "t", "b"))
		testkit.Eventually(t, func() bool {
			all = read()
			return all[1].Waiting == 1 && all[1].Requested.IsZero()
		}, "b to go on")
		require.Equal(t, at, all[1].Last)
		for _, name := range []string{"a: %", "b"} {
			for _, dry := range []bool{true, false} {
				n, err = a.RemoveSchedule(ctx, "t", name, admin.DeleteOptions{DryRun: dry})
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			_, err = a.RemoveSchedule(ctx, "t", name, admin.DeleteOptions{DryRun: true})
			require.ErrorIs(t, err, admin.ErrNotFound)
		}
		of, err = a.Schedules(ctx, "t")
		require.NoError(t, err)
		require.Empty(t, of[0].Schedules)
		require.NoError(t, of[0].Err, "the topic exists")
		_, _, err = a.PauseSchedule(ctx, "t", "b", admin.PauseOptions{})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `pause schedule: schedule "b" of topic "t"`)
		cancel()
		require.NoError(t, testkit.Wait(t, ended, "the end"))
	})
}
