package main

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// line is seconds, patient, what happened.
var line = regexp.MustCompile(`(?m)^(\d+\.\d{3})s  (Ann|Ben): (.*)$`)

func TestRemindersComeUnlessCancelled(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		happened := map[string][]string{}
		at := map[string]float64{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			patient, what := l[2], regexp.MustCompile(`, \d+ms ahead$`).ReplaceAllString(l[3], "")
			happened[patient] = append(happened[patient], what)
			seconds, err := strconv.ParseFloat(l[1], 64)
			require.NoError(t, err)
			at[patient+" "+what] = seconds
		}
		// Topics and groups have no order among each other. A machine that stands still between two
		// events may swap them.
		ann, ben := happened["Ann"], happened["Ben"]
		require.ElementsMatch(t, []string{"booked", "confirmed", "reminded", "asked for feedback", "billed"}, ann, "each group gets the event")
		reminder := "no reminder, it is cancelled"
		if at["Ben reminded"] > 0 {
			reminder = "reminded"
			require.Less(t, at["Ben reminded"], at["Ben cancelled"], out)
		}
		require.ElementsMatch(t, []string{"booked", "confirmed", "cancelled", reminder}, ben)
		require.Equal(t, "booked", ann[0])
		require.Equal(t, "booked", ben[0])

		booked := at["Ann booked"]
		for what, after := range map[string]float64{
			"Ann confirmed": 0, "Ben cancelled": 0.25, "Ann reminded": 0.5, "Ann asked for feedback": 1.25, "Ann billed": 1.25,
		} {
			const rounding = 0.002 // of the printed times
			require.GreaterOrEqual(t, at[what]-booked+rounding, after, "%s: early\n%s", what, out)
		}
		require.Contains(t, out, "\nAll is done: of 2 appointments, 1 took place.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`Ben: cancelled`), func(t *testing.T, out string) {
		require.NotContains(t, out, "billed")
	})
}
