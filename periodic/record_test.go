package periodic

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestAPauseWithAnEndEndsByItself(t *testing.T) {
	w := newWorld(t)
	p := w.program(daily("a"))
	p.look()
	w.pauseFor("a", 2*day)
	p.look()
	require.Equal(t, []string{"a 01-03 09:00:00"}, w.waiting(), "what comes after the pause is there ahead of time")
	require.Empty(t, w.advance(2*day))
	p.look()
	require.Equal(t, []string{"a 01-03 09:00:00"}, w.advance(day))
	require.Zero(t, w.record("a").Missed, "what a pause leaves out was not missed")

	w.pauseFor("a", 30*day)
	p.look()
	w.resume("a")
	p.look()
	require.Equal(t, []string{"a 01-04 09:00:00"}, w.advance(day), "a resume ends it before")
}

// An operator who finds no occurrence in the morning sees in Redis what the programs said at night.
func TestAFailureIsInTheRecord(t *testing.T) {
	w := newWorld(t)
	broken := true
	p := w.program(daily("a", func(s *Schedule) {
		s.Message = func(o Occurrence) (*message.Message, error) {
			if broken {
				return nil, errors.New("no file /var/report")
			}
			return hello(o)
		}
	}))
	p.look()
	read := func() *admin.ScheduleError {
		all, err := w.Admin().Schedules(context.Background(), "t")
		require.NoError(t, err)
		return all[0].Schedules[0].LastError
	}
	testkit.Eventually(t, func() bool { return read() != nil }, "the failure in the record")
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, &admin.ScheduleError{At: w.Now().Local(), Host: host, InRow: 1,
		Error: "occurrence 2026-01-01T09:00:00Z: make message: no file /var/report"}, read())
	broken = false
	p.retry()
	p.look()
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.advance(day))
	require.Zero(t, read().InRow)
	require.WithinDuration(t, w.Now(), read().At, 25*time.Hour)
}
