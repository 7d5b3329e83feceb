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

// line is seconds, order, what happened.
var line = regexp.MustCompile(`(?m)^(\d+\.\d{3})s  order (\d) (.*)$`)

func TestEveryCustomerIsAskedOnceAndNoneEarly(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		happened := map[string][]string{}
		placed := map[string]float64{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			id := l[2]
			at, err := strconv.ParseFloat(l[1], 64)
			require.NoError(t, err)
			if happened[id] == nil {
				placed[id] = at
			} else {
				const rounding = 0.002 // of the printed times
				require.GreaterOrEqual(t, at-placed[id]+rounding, feedbackAfter.Seconds(), "early")
			}
			happened[id] = append(happened[id], l[3])
		}
		require.Equal(t, map[string][]string{
			"1": {"placed by Ann", "to ann@example.com: Hello Ann! How did you like it? Let us know!"},
			"2": {"placed by Ben", "to ben@example.com: Hello Ben! How did you like it? Let us know!"},
			"3": {"placed by Eve", "to eve@example.com: Hello Eve! How did you like it? Let us know!"},
		}, happened)
		require.Contains(t, out, "\n3 customers asked, 0 not.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`placed by Eve`), func(t *testing.T, out string) {
		require.NotContains(t, out, "Hello")
	})
}
