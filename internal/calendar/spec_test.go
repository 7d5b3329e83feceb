package calendar

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

// instants returns n instants after from, in the zone.
func instants(t *testing.T, spec string, z *time.Location, from string, n int) (found []string) {
	t.Helper()
	at, err := time.ParseInLocation("2006-01-02 15:04:05", from, z)
	require.NoError(t, err)
	s, err := Parse(spec, z, time.Time{})
	require.NoError(t, err)
	for range n {
		if at = s.Next(at); at.IsZero() {
			return append(found, "none")
		}
		found = append(found, at.In(z).Format("2006-01-02 15:04:05 -07:00"))
	}
	return found
}

func TestInstantsOfASpec(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		about, zone, spec, from string
		want                    []string
	}{
		// The clock goes forward: a time of the gap is at its end, once. Each hour that passes
		// counts.
		{"gap", "Europe/Berlin", "30 2 * * *", "2026-03-28 03:00:00", []string{"2026-03-29 03:00:00 +02:00", "2026-03-30 02:30:00 +02:00"}},
		{"gap, several times of it", "Europe/Berlin", "*/15 2 * * *", "2026-03-28 03:00:00", []string{"2026-03-29 03:00:00 +02:00", "2026-03-30 02:00:00 +02:00"}},
		{"gap, and its end", "Europe/Berlin", "0 2,3 * * *", "2026-03-28 04:00:00", []string{"2026-03-29 03:00:00 +02:00", "2026-03-30 02:00:00 +02:00"}},
		{"gap, hourly", "Europe/Berlin", "30 * * * *", "2026-03-29 00:45:00", []string{"2026-03-29 01:30:00 +01:00", "2026-03-29 03:30:00 +02:00"}},
		{"gap on a day that does not count", "Europe/Berlin", "30 2 * * 1", "2026-03-28 03:00:00", []string{"2026-03-30 02:30:00 +02:00"}},
		{"gap", "America/New_York", "30 2 * * *", "2026-03-07 03:00:00", []string{"2026-03-08 03:00:00 -04:00", "2026-03-09 02:30:00 -04:00"}},
		{"gap at midnight", "America/Sao_Paulo", "0 0 * * *", "2018-11-03 00:00:00", []string{"2018-11-04 01:00:00 -02:00", "2018-11-05 00:00:00 -02:00"}},
		{"gap of half an hour", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03 03:00:00", []string{"2026-10-04 02:30:00 +11:00", "2026-10-05 02:15:00 +11:00"}},

		// The clock goes back: a time that comes twice counts once. Each hour that passes counts.
		{"fold", "Europe/Berlin", "30 2 * * *", "2026-10-24 03:00:00", []string{"2026-10-25 02:30:00 +02:00", "2026-10-26 02:30:00 +01:00"}},
		{"fold, several times of it", "Europe/Berlin", "*/30 2 * * *", "2026-10-24 03:00:00", []string{"2026-10-25 02:00:00 +02:00", "2026-10-25 02:30:00 +02:00", "2026-10-26 02:00:00 +01:00"}},
		{"fold, and its end", "Europe/Berlin", "0 2,3 * * *", "2026-10-24 04:00:00", []string{"2026-10-25 02:00:00 +02:00", "2026-10-25 03:00:00 +01:00"}},
		{"fold, hourly", "Europe/Berlin", "30 * * * *", "2026-10-25 01:45:00", []string{"2026-10-25 02:30:00 +02:00", "2026-10-25 02:30:00 +01:00", "2026-10-25 03:30:00 +01:00"}},
		{"fold, from within its second pass", "Europe/Berlin", "45 2 * * *", "2026-10-25 02:59:00", []string{"2026-10-26 02:45:00 +01:00"}},
		{"fold", "America/New_York", "30 1 * * *", "2026-10-31 02:00:00", []string{"2026-11-01 01:30:00 -04:00", "2026-11-02 01:30:00 -05:00"}},
		{"fold at midnight", "America/Sao_Paulo", "30 23 * * *", "2018-02-16 23:45:00", []string{"2018-02-17 23:30:00 -02:00", "2018-02-18 23:30:00 -03:00"}},
		{"fold of half an hour", "Australia/Lord_Howe", "45 1 * * *", "2026-04-04 02:00:00", []string{"2026-04-05 01:45:00 +11:00", "2026-04-06 01:45:00 +10:30"}},

		// Zones whose rules change.
		{"a day that was left out", "Pacific/Apia", "0 9 * * *", "2011-12-28 12:00:00", []string{"2011-12-29 09:00:00 -10:00", "2011-12-31 00:00:00 +14:00", "2011-12-31 09:00:00 +14:00"}},
		{"the end of daylight saving time", "America/Sao_Paulo", "0 12 3 11 *", "2018-12-01 00:00:00", []string{"2019-11-03 12:00:00 -03:00", "2020-11-03 12:00:00 -03:00"}},
		{"standard time for ever", "Europe/Istanbul", "0 6 1 12 *", "2015-06-01 00:00:00", []string{"2015-12-01 06:00:00 +02:00", "2016-12-01 06:00:00 +03:00"}},

		{"leap day", "UTC", "0 0 29 2 *", "2026-01-01 00:00:00", []string{"2028-02-29 00:00:00 +00:00", "2032-02-29 00:00:00 +00:00"}},
		{"leap days eight years apart", "Europe/Berlin", "0 0 29 2 *", "2096-03-01 00:00:00", []string{"2104-02-29 00:00:00 +01:00"}},
		{"months without a 31st", "UTC", "0 0 31 * *", "2026-01-31 00:00:00", []string{"2026-03-31 00:00:00 +00:00", "2026-05-31 00:00:00 +00:00"}},
		{"month and weekday", "UTC", "0 0 13 * FRI", "2026-02-07 00:00:00", []string{"2026-02-13 00:00:00 +00:00", "2026-02-20 00:00:00 +00:00"}},
		{"weekday 7", "UTC", "0 0 * * 5-7", "2026-02-07 00:00:00", []string{"2026-02-08 00:00:00 +00:00", "2026-02-13 00:00:00 +00:00"}},
		{"weekday 7, stepped", "UTC", "0 0 * * 1-7/3", "2026-02-08 00:00:00", []string{"2026-02-09 00:00:00 +00:00", "2026-02-12 00:00:00 +00:00", "2026-02-15 00:00:00 +00:00"}},
		{"seconds", "UTC", "*/20 59 23 31 12 *", "2026-12-31 23:59:10", []string{"2026-12-31 23:59:20 +00:00", "2026-12-31 23:59:40 +00:00", "2027-12-31 23:59:00 +00:00"}},
		{"names", "UTC", "0 12 * jan-feb mon", "2026-02-17 00:00:00", []string{"2026-02-23 12:00:00 +00:00", "2027-01-04 12:00:00 +00:00"}},
		{"descriptor", "UTC", "@monthly", "2026-02-17 00:00:00", []string{"2026-03-01 00:00:00 +00:00"}},
		{"every", "UTC", "@every 7h", "1970-01-01 00:00:00", []string{"1970-01-01 07:00:00 +00:00", "1970-01-01 14:00:00 +00:00"}},
		{"every, before the epoch", "UTC", "@every 7h", "1969-12-31 23:00:00", []string{"1970-01-01 00:00:00 +00:00"}},
		{"every, with an anchor", "UTC", "@every 36h from 2026-01-01T06:00:00+01:00", "2026-01-02 17:00:00", []string{"2026-01-04 05:00:00 +00:00"}},
	} {
		require.Equal(t, test.want, instants(t, test.spec, zone(t, test.zone), test.from, len(test.want)), "%s: %s in %s", test.about, test.spec, test.zone)
	}
}

// TestEachWallClockTimeCountsOnce compares a daily time with the calendar, over two years in
// zones of all kinds. An instant is when the clock first shows the time, or has passed it.
func TestEachWallClockTimeCountsOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Casablanca"} {
		z := zone(t, name)
		for _, clock := range []string{"30 2 * * *", "0 0 * * *"} {
			s, err := Parse(clock, z, time.Time{})
			require.NoError(t, err)
			at := s.Next(time.Date(2010, 1, 1, 0, 0, 0, 0, z).Add(-time.Second))
			for day := 0; day < 2*365; day++ {
				shows := shownOn(s.(wall), time.Date(2010, 1, 1+day, 0, 0, 0, 0, time.UTC))
				want := firstShown(z, shows)
				if want.Before(at) { // a gap of more than a day counts once
					continue
				}
				require.Equal(t, want.UTC(), at.UTC(), "%s in %s: %v", clock, name, shows)
				at = s.Next(at)
			}
		}
	}
}

// shownOn returns the time of a daily series on a day, as if it were in UTC.
func shownOn(w wall, day time.Time) time.Time { return w.nextShown(day.Add(-time.Second)) }

// firstShown returns when a clock in the zone first shows a time or a later one, by looking at each
// minute around it.
func firstShown(z *time.Location, shows time.Time) time.Time {
	at := shows.Add(-27 * time.Hour).Truncate(time.Minute)
	highest := time.Time{}
	for ; ; at = at.Add(15 * time.Minute) { // all offsets here are multiples of that
		_, offset := at.In(z).Zone()
		if now := shown(at, offset); now.After(highest) {
			highest = now
		}
		if !highest.Before(shows.Truncate(15 * time.Minute)) {
			break
		}
	}
	for at = at.Add(-15 * time.Minute); ; at = at.Add(time.Minute) {
		_, offset := at.In(z).Zone()
		if !shown(at, offset).Before(shows) {
			return at
		}
	}
}

func TestErrorsOfSpecsPointAtTheField(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"":                             "it has 0 fields",
		"* * *":                        "it has 3 fields; want 5",
		"1 2 3 4 5 6 7":                "it has 7 fields",
		"60 * * * *":                   `minute "60"`,
		"* 24 * * *":                   `hour "24"`,
		"* * 0 * *":                    `day of month "0"`,
		"* * * 13 *":                   `month "13"`,
		"* * * * 8":                    `day of week "8": "8" is not a number from 0 to 7 (0 and 7 are Sunday), or a name such as MON`,
		"* * * * 9-7":                  `day of week "9-7": "9" is not a number from 0 to 7`,
		"* * * * 1-7/x":                `day of week "1-7/x": the step "x" is not a number from 1 to 7`,
		"*/90 * * * *":                 `minute "*/90": the step 90 is above 59, so it runs at 0 only; want 0 for that, a step from 1 to 59, or "@every" with a duration`,
		"* 5-9/24 * * *":               `hour "5-9/24": the step 24 is above 23, so it runs at 5 only`,
		"* * * */13 *":                 `month "*/13": the step 13 is above 12, so it runs at 1 only`,
		"1,,2 * * * *":                 `minute "1,,2": an item of the list is empty; want values with one comma between them`,
		", * * * *":                    `minute ",": an item of the list is empty`,
		"* * * * 1,":                   `day of week "1,": an item of the list is empty`,
		"* 22-6 * * *":                 `hour "22-6": the range 22-6 runs nowhere, because 6 comes before 22; want 22-23,0-6`,
		"* * * * FRI-mon":              `day of week "FRI-mon": the range FRI-mon runs nowhere, because mon comes before FRI; want FRI-6,0-mon`,
		"* * * * 6-2/2":                `the range 6-2 runs nowhere`,
		"30-10 * 5-x 0 *":              "want 30-59,0-10\nday of month \"5-x\": \"x\" is not a number from 1 to 31\nmonth \"0\": \"0\" is not a number from 1 to 12, or a name such as JAN",
		"@every x from noon":           "\"x\" is no duration, such as \"90m\"\n\"noon\" is no instant",
		"* * * * mun":                  `day of week "mun"`,
		"61 * * * * *":                 `second "61"`,
		"a b * * *":                    "minute \"a\": \"a\" is not a number from 0 to 59\nhour \"b\"",
		"*/0 * * * *":                  `minute "*/0"`,
		"* * L * *":                    `day of month "L"`,
		"0 0 30 2 *":                   `there is never a day "30" of month "2"`,
		"@often":                       `"@often" is not known; want @annually, @daily`,
		"@reboot":                      `"@reboot" is not known`,
		"@every":                       `"@every" is not known`,
		"@every x":                     `"x" is no duration`,
		"@every 0s":                    "is not at least a second",
		"@every -1h":                   "is not at least a second",
		"@every 1s1us":                 "in whole milliseconds",
		"@every 1h from noon":          `"noon" is no instant in RFC 3339`,
		"TZ=Europe/Berlin * * * * *":   "set Location instead",
		"CRON_TZ=Asia/Tokyo 0 0 * * *": "set Location instead",
		"TZ=":                          "set Location instead",
	} {
		_, err := Parse(spec, time.UTC, time.Time{})
		require.ErrorContains(t, err, want, spec)
	}
}

func TestInstantsThatWerePassedOverBeforeTheirTime(t *testing.T) {
	t.Parallel()
	s, err := Parse("@every 1h", time.UTC, time.Time{})
	require.NoError(t, err)
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	hour := func(n int) time.Time { return day.Add(time.Duration(n) * time.Hour).UTC() }
	now := hour(4).Add(time.Minute)
	for _, test := range []struct {
		cursor  time.Time
		waiting []time.Time
		want    time.Time
	}{
		{cursor: hour(4)},
		{cursor: hour(6), waiting: []time.Time{hour(5), hour(6)}},
		{cursor: hour(6), waiting: []time.Time{hour(3), hour(5), hour(6)}},
		{cursor: now, waiting: []time.Time{hour(7)}}, // it was cancelled by hand, before a pause
		{cursor: hour(9), waiting: []time.Time{hour(9)}, want: hour(8)},
		{cursor: hour(9), want: hour(9)},
		{cursor: hour(5).Add(time.Minute), want: hour(5)},
	} {
		require.Equal(t, test.want, PassedOver(s, now, test.cursor, test.waiting).UTC(), "%v", test)
	}
}

func TestRulesOfAZoneTellOtherRules(t *testing.T) {
	t.Parallel()
	require.Equal(t, Rules(zone(t, "Europe/Berlin")), Rules(zone(t, "Europe/Berlin")))
	require.NotEqual(t, Rules(zone(t, "Europe/Berlin")), Rules(zone(t, "Europe/London")))
	require.NotEqual(t, Rules(zone(t, "Europe/Berlin")), Rules(time.FixedZone("Europe/Berlin", 3600)))
}

func FuzzParse(f *testing.F) {
	for _, spec := range []string{"* * * * *", "*/5 1-3 29 2 fri", "@every 1h from 2026-01-01T00:00:00Z", "TZ=", "@", "0 0 31 2 7", "1-7/0 7 7 7 7/7"} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := Parse(spec, time.UTC, time.Time{})
		if err != nil {
			return
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 3 {
			next := s.Next(at)
			if !next.After(at) {
				t.Fatalf("%q: %v comes after %v", spec, next, at)
			}
			at = next
		}
	})
}
