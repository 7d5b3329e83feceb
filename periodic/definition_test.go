package periodic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

func TestADefinitionCanBeReadAgain(t *testing.T) {
	t.Parallel()
	s := Schedule{Name: "a", Spec: "30 2 * * *", Location: zone(t, "Europe/Berlin"), Revision: "2", Misfire: MisfireAll, MisfireWithin: time.Hour,
		Jitter: time.Hour, Start: time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), End: time.Date(2026, 3, 30, 12, 0, 0, 0, time.UTC)}
	text, err := s.define()
	require.NoError(t, err)
	read, err := FromDefinition("a", text)
	require.NoError(t, err)
	require.Equal(t, s, read)
	first, due, err := read.Next(time.Time{})
	require.NoError(t, err)
	require.Equal(t, "2026-03-29 03:00:00 +0200 CEST", first.String())
	require.Equal(t, read.offset(), due.Sub(first))
	require.Positive(t, read.offset())
	second, _, err := read.Next(first)
	require.NoError(t, err)
	last, due, err := read.Next(second)
	require.NoError(t, err)
	require.True(t, last.IsZero() && due.IsZero(), "End has passed")

	dues, err := read.Upcoming(first.Add(read.offset()).Add(-time.Millisecond), 5)
	require.NoError(t, err)
	require.Equal(t, []time.Time{first.Add(read.offset()), second.Add(read.offset())}, dues)
	dues, err = read.Upcoming(first.Add(read.offset()), 1)
	require.NoError(t, err)
	require.Equal(t, []time.Time{second.Add(read.offset())}, dues, "after now")

	read.Spec = "61 * * * *"
	_, _, err = read.Next(time.Time{})
	var fault *redisdelay.FieldError
	require.ErrorAs(t, err, &fault)
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.Equal(t, "Spec", fault.Field)
	for text, want := range map[string]string{
		"": "cannot be read", `{"spec":"@daily","zone":"Mars","misfire":"last"}`: "unknown time zone Mars", `{"new":1}`: `unknown field "new"`,
		`{"spec":"@daily","zone":"Europe/Berlin","rules":"x","misfire":"last"}`:                 "other rules for the time zone Europe/Berlin",
		`{"spec":"@daily","zone":"UTC","misfire":"last","jitter":"x","within":"y","start":"z"}`: `"x"`,
	} {
		_, err := FromDefinition("a", text)
		require.ErrorContains(t, err, want, text)
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
		var fault *redisdelay.FieldError
		require.ErrorAs(t, err, &fault)
		require.Equal(t, "Definition", fault.Field)
	}
}

func TestAnotherRevisionReplacesWhatWaits(t *testing.T) {
	w := newWorld(t)
	w.program(daily("a")).look()
	require.Len(t, w.waiting(), 1)
	version := w.record("a").Version
	w.program(daily("a", func(s *Schedule) { s.Revision = "2" })).look()
	require.Equal(t, version+1, w.record("a").Version)
	require.Len(t, w.waiting(), 1)
}
