package queue_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// lasting is a pause with an end.
func lasting(d time.Duration) func(*queue.Amendment) {
	return func(a *queue.Amendment) { a.For, a.By, a.Why = d, "ann@ops", "stock-taking, until noon" }
}

func TestAPauseOfAScheduleEndsByItself(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.follow(r, w.hour(1), w.hour(2))
		done := w.amend(queue.PauseSchedule, "s", lasting(150*time.Minute))
		require.Equal(t, 2, done.TakenBack)
		r = done.Record
		require.Equal(t, []string{"ann@ops", "stock-taking, until noon"}, []string{r.By, r.Why})
		require.WithinDuration(t, w.hour(2).Add(30*time.Minute), r.Until, time.Minute)
		require.Equal(t, r.Until, r.Cursor, "what passes in the pause is left out")
		require.False(t, r.IsStopped())
		require.Equal(t, r.Until, r.Passed(time.UnixMilli(w.now())))

		during := queue.Follows(1, time.Time{}, r.Cursor, w.hour(2), 0)
		w.publish(occurrence("s", w.hour(2), during)) // of a plan from before the pause
		require.Equal(t, queue.IsPaused, during.Verdict)
		w.follow(r, w.hour(3))
		require.Equal(t, []string{queue.OccurrenceID("s", w.hour(3))}, w.pending(), "what comes after the pause is there ahead of time")

		w.amend(queue.Put, "s", seen(1, "other"))
		require.Equal(t, r.Until, w.recurring("s").Cursor, "another definition does not end the pause")
		if w.Mini == nil {
			return // its clock cannot be set
		}
		w.pass(150 * time.Minute)
		r = w.recurring("s")
		require.True(t, r.Paused.IsZero())
		require.True(t, r.Until.IsZero())
		require.Empty(t, r.By+r.Why)
	}, "a")
}

func TestAResumeEndsAPauseBeforeItsEnd(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		r := w.amend(queue.PauseSchedule, "s", lasting(150*time.Minute)).Record
		w.follow(r, w.hour(3))
		r = w.amend(queue.ResumeSchedule, "s").Record
		require.True(t, r.Paused.IsZero())
		require.Empty(t, w.pending())
		w.follow(r, w.hour(1), w.hour(3))
		require.Len(t, w.pending(), 2, "what the pause would have left out comes too")

		w.amend(queue.PauseSchedule, "s", lasting(time.Hour))
		r = w.amend(queue.PauseSchedule, "s").Record
		require.True(t, r.IsStopped(), "the second one replaces the first")
		require.WithinDuration(t, time.UnixMilli(w.now()), r.Cursor, time.Minute)
	}, "a")
}

func TestARecordKeepsTheLastFailureOfItsPrograms(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		_, before, _, err := w.topic.Schedules(ctx, "", nil)
		require.NoError(t, err)
		fail := func(text string, version int64) queue.Amended {
			return w.amend(queue.FailSchedule, "s", seen(version, ""), func(a *queue.Amendment) { a.Error = text })
		}
		fail("first", 1)
		r := fail("make message: no file "+strings.Repeat("é", 600), 1).Record
		require.Equal(t, 2, r.Trouble.InRow)
		require.Equal(t, must(os.Hostname()), r.Trouble.Host)
		require.WithinDuration(t, time.UnixMilli(w.now()), r.Trouble.At, time.Minute)
		require.True(t, strings.HasPrefix(r.Trouble.Error, "make message: no file é"))
		require.LessOrEqual(t, len(r.Trouble.Error), 512)
		require.True(t, fail("of an earlier definition", 7).Changed)
		_, after, _, err := w.topic.Schedules(ctx, "", nil)
		require.NoError(t, err)
		require.Equal(t, before, after, "programs need not read the record again")

		w.follow(r, w.hour(1))
		r = w.recurring("s")
		require.Zero(t, r.Trouble.InRow)
		require.True(t, strings.HasPrefix(r.Trouble.Error, "make message"), "what was is kept")
		w.amend(queue.RemoveSchedule, "s")
		require.Zero(t, w.recurring("s").Trouble)
	}, "a")
}
