package when_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/when"
)

func TestTimesThatPeopleWrite(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	now := time.Date(2026, 11, 26, 14, 30, 0, 0, berlin) // a Thursday
	for text, want := range map[string]string{
		"2026-11-27T09:00:00Z": "11-27 10:00", "2026-11-27T09:00:00+01:00": "11-27 09:00", "2026-11-27 09:00": "11-27 09:00", "2026-11-27T09:00": "11-27 09:00",
		"2026-11-27": "11-27 00:00", "tomorrow 9:00": "11-27 09:00", "Tomorrow  9:00": "11-27 09:00", "tomorrow": "11-27 00:00", "today 9am": "11-26 09:00",
		"yesterday 23:59": "11-25 23:59", "fri 9:00": "11-27 09:00", "thursday": "12-03 00:00", "9:00": "11-26 09:00", "27.11.2026 9:00": "11-27 09:00",
		"now": "11-26 14:30", "20h": "11-27 10:30", "2d": "11-28 14:30", "1d12h": "11-28 02:30", "in 2h": "11-26 16:30", "2h ago": "11-26 12:30",
	} {
		got, err := when.Parse(text, now, when.Future)
		require.NoError(t, err)
		require.Equal(t, want, got.In(berlin).Format("01-02 15:04"), text)
	}
	for text, want := range map[string]string{"20h": "11-25 18:30", "in 2h": "11-26 16:30", "thu 9:00": "11-19 09:00", "tomorrow": "11-27 00:00"} {
		got, err := when.Parse(text, now, when.Past)
		require.NoError(t, err)
		require.Equal(t, want, got.Format("01-02 15:04"), text)
	}
	for _, text := range []string{"", "soon", "25:00", "tomorrow noonish", "-2h", "in 2h ago", "2026-13-01", "9", "d", "1.5d", "in tomorrow"} {
		_, err := when.Parse(text, now, when.Future)
		require.ErrorContains(t, err, "is no time; write it like", text)
	}
}

// A day on which the clocks move begins and ends at midnight.
func TestTomorrowIsNotIn24Hours(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	got, err := when.Parse("tomorrow 9:00", time.Date(2026, 3, 28, 9, 0, 0, 0, berlin), when.Future)
	require.NoError(t, err)
	require.Equal(t, 23*time.Hour, got.Sub(time.Date(2026, 3, 28, 9, 0, 0, 0, berlin)))
}
