package periodic

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
)

// pattern is a spec as a value that the test itself can compare with a clock. -1 is any.
type pattern struct {
	minute, hour, day, weekday int
	zone                       string
}

func (p pattern) spec() string {
	field := func(n int) string {
		if n < 0 {
			return "*"
		}
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s %s %s * %s", field(p.minute), field(p.hour), field(p.day), field(p.weekday))
}

// shows tells whether the pattern has a wall-clock time, which is given as if it were in UTC.
func (p pattern) shows(t time.Time) bool {
	is := func(want, is int) bool { return want < 0 || want == is }
	return is(p.minute, t.Minute()) && is(p.hour, t.Hour()) && is(p.day, t.Day()) && is(p.weekday, int(t.Weekday()))
}

// calendar returns the instants of a pattern after from, up to until, by looking at a clock each
// minute. This is what docs/periodic.md says, and shares no code with the package.
func (p pattern) calendar(t testing.TB, from, until time.Time) (found []time.Time) {
	zone, err := time.LoadLocation(p.zone)
	require.NoError(t, err)
	var highest time.Time // that the clock has shown
	for at := from.Add(-48 * time.Hour).Truncate(time.Minute); !at.After(until); at = at.Add(time.Minute) {
		local := at.In(zone)
		now := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
		counts := p.hour < 0 && p.shows(now)
		if p.hour >= 0 && !highest.IsZero() {
			for passed := highest.Add(time.Minute); !passed.After(now); passed = passed.Add(time.Minute) {
				counts = counts || p.shows(passed)
			}
		}
		if now.After(highest) {
			highest = now
		}
		if counts && at.After(from) {
			found = append(found, at)
		}
	}
	return found
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Kolkata"}

// patterns returns n patterns of many kinds.
func patterns(n int) (all []pattern) {
	for i := range n {
		p := pattern{minute: i * 7 % 60, hour: i * 5 % 24, day: -1, weekday: -1, zone: zones[i%len(zones)]}
		switch i % 20 {
		case 0:
			p.hour = -1
		case 1, 2, 3, 4:
			p.hour = 1 + i%3 // where clocks change
		case 5, 6, 7:
			p.weekday = i % 7
		case 8, 9:
			p.day = 1 + i%31
		case 10:
			p.day = 31
		}
		all = append(all, p)
	}
	return all
}

func TestTheCalendarOfAYear(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 2, 1, 12, 34, 56, 0, time.UTC)
	until := from.AddDate(0, 10, 0)
	for _, p := range patterns(21) {
		s, err := calendar.Parse(p.spec(), zone(t, p.zone), time.Time{})
		require.NoError(t, err)
		at := from
		for _, want := range p.calendar(t, from, until) {
			at = s.Next(at)
			require.Equal(t, want, at.UTC(), "%s in %s", p.spec(), p.zone)
		}
		require.True(t, s.Next(at).After(until), "%s in %s", p.spec(), p.zone)
	}
}
