package main

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// line is seconds, patient, what happened.
var line = regexp.MustCompile(`(?m)^(\d+\.\d{3})s  (Ann|Ben): (.*)$`)

func TestRemindersComeInTimeUnlessCancelled(t *testing.T) {
	exampletest.Succeeds(t, 8*time.Second, func(t *testing.T, out string) {
		happened := map[string][]string{}
		at := map[string]float64{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			patient, what := l[2], regexp.MustCompile(`, \d+ms ahead$`).ReplaceAllString(l[3], "")
			happened[patient] = append(happened[patient], what)
			seconds, err := strconv.ParseFloat(l[1], 64)
			require.NoError(t, err)
			at[patient+" "+what] = seconds
		}
		require.Len(t, happened["Ann"], 5, out)
		require.Equal(t, []string{"booked", "confirmed", "reminded"}, happened["Ann"][:3])
		require.ElementsMatch(t, []string{"asked for feedback", "billed"}, happened["Ann"][3:], "each group gets the event")
		require.Equal(t, []string{"booked", "confirmed", "cancelled", "no reminder, it is cancelled"}, happened["Ben"])

		booked := at["Ann booked"]
		for what, after := range map[string]float64{
			"Ann confirmed": 0, "Ben cancelled": 0.25, "Ann reminded": 0.5, "Ann asked for feedback": 1.25, "Ann billed": 1.25,
		} {
			const rounding = 0.002 // of the printed times
			require.GreaterOrEqual(t, at[what]-booked+rounding, after, "%s: early\n%s", what, out)
			require.Less(t, at[what]-booked, after+2, "%s: late\n%s", what, out)
		}
		require.Contains(t, out, "\nAll is done: of 2 appointments, 1 took place.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`Ben: cancelled`), func(t *testing.T, out string) {
		require.NotContains(t, out, "billed")
	})
}
