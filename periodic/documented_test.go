package periodic

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// A pause lasts through an edit of the spec, in a program that starts with it.
func TestAPauseOutlivesAnEdit(t *testing.T) {
	w := newWorld(t)
	w.program(daily("a")).look()
	w.pause("a")
	edited := w.program(daily("a", spec("0 10 * * *")))
	edited.look()
	require.Contains(t, w.record("a").Definition, "0 10 * * *")
	require.Empty(t, w.waiting())
	require.Empty(t, w.advance(day))
	w.resume("a")
	edited.look()
	require.Equal(t, []string{"a 01-02 10:00:00"}, w.waiting())
}

// An old process that restarts in the middle of a deploy brings its definition back, also for old
// processes that had left the schedule. The new one counts again when all of them are gone.
func TestAnOldProgramThatRestartsBringsItsDefinitionBack(t *testing.T) {
	w := newWorld(t)
	old, deployed := w.program(daily("a")), w.program(daily("a", spec("0 10 * * *")))
	old.look()
	deployed.look()
	old.look()
	require.Equal(t, []string{"a 01-01 10:00:00"}, w.waiting())

	w.program(daily("a")).look() // begins, and ends
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())
	deployed.look() // asks
	old.look()      // answers, although it had left the schedule
	w.Advance(time.Minute)
	deployed.look()
	require.Equal(t, []string{"a 01-01 09:00:00"}, w.waiting())

	for _, s := range deployed.topics["t"].all() {
		s.asked = time.Time{} // a minute has passed
	}
	deployed.look() // asks, and nobody answers
	w.Advance(31 * time.Second)
	deployed.look()
	require.Equal(t, []string{"a 01-01 10:00:00"}, w.waiting())
}

// Of an outage that is no longer than the schedule's interval, nothing is missed, so that Misfire
// says nothing about it.
func TestWhatIsPublishedIsNeverMissed(t *testing.T) {
	w := newWorld(t)
	night := daily("a", spec("30 2 * * *"), func(s *Schedule) { s.Misfire = MisfireSkip })
	w.program(night).look()
	_, err := w.Admin().Pause(context.Background(), "t", admin.PauseOptions{}) // nobody gets messages
	require.NoError(t, err)
	w.Advance(3*time.Hour + 30*time.Minute)
	p := w.program(night)
	p.look()
	_, err = w.Admin().Resume(context.Background(), "t", admin.ResumeOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"a 01-01 02:30:00"}, w.advance(0))
	require.Zero(t, w.record("a").Missed)
	require.Equal(t, []string{"a 01-02 02:30:00"}, w.waiting())
}
