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

// line is customer, delivery, wait in ms, how it ended.
var line = regexp.MustCompile(`(?m)^\d+\.\d{3}s  (\w+): delivery (\d)(?: after (\d+) ms)?: (\w+)$`)

func TestBackoffGrowsAndTheLastFailureIsADeadLetter(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		happened := map[string][]string{}
		waits := map[string][]int{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			happened[l[1]] = append(happened[l[1]], l[2]+" "+l[4])
			if l[3] != "" {
				wait, err := strconv.Atoi(l[3])
				require.NoError(t, err)
				waits[l[1]] = append(waits[l[1]], wait)
			}
		}
		require.Equal(t, map[string][]string{
			"Ann": {"1 charged"},
			"Ben": {"1 failed", "2 failed", "3 charged"},
			"Eve": {"1 failed", "2 failed", "3 failed", "4 failed", "5 failed"},
		}, happened)
		requireWaits(t, []int{100, 200}, waits["Ben"])
		requireWaits(t, []int{100, 200, 300, 300}, waits["Eve"])

		require.Contains(t, out, "\nCharged: [Ann Ben]. Given up: [Eve].\n", "a message that waits holds up no other")
		id := `[0-9A-Z]{26}`
		require.Regexp(t, `(?m)^> ZRANGE \S+:\{charges\}:dead:bank 0 -1 WITHSCORES\n`+id+`\n\d{13} `, out)
		require.Regexp(t, `(?m)^> HGET \S+:\{charges\}:deliveries:bank `+id+`\n5 - \S+ nacked on the last of 5 deliveries$`, out)
		require.Regexp(t, `(?m)^> HGET \S+:\{charges\}:messages `+id+`\n\{.*"payload":"Eve"\}$`, out)
	})
}

// requireWaits compares waits. They may be longer, because the machine may be busy.
func requireWaits(t *testing.T, want, got []int) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.GreaterOrEqual(t, got[i], want[i], "early: %v", got)
	}
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`Eve: delivery 2`), func(t *testing.T, out string) {
		require.NotContains(t, out, "dead letter")
	})
}
