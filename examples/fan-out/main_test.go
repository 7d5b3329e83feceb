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

// line is seconds, service, order, what happened.
var line = regexp.MustCompile(`(?m)^(\d+\.\d{3})s  (billing|shipping)-\d +order (\d) (.*)$`)

func TestEachServiceGetsEachOrderOnce(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		happened := map[string][]string{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			happened[l[2]] = append(happened[l[2]], l[3]+" "+l[4])
			at, err := strconv.ParseFloat(l[1], 64)
			require.NoError(t, err)
			require.GreaterOrEqual(t, at, changeable.Seconds(), "early")
		}
		require.ElementsMatch(t, []string{
			"1 billed", "2 billed", "3 billed", "4 billed", "5 billed", "6 billed",
		}, happened["billing"], "one worker of the group gets an order")
		require.Equal(t, []string{
			"1 shipped", "2 shipped", "3 shipped", "4 not shipped: no van", "5 shipped", "6 shipped", "4 shipped",
		}, happened["shipping"], "a group with one worker gets them in order, and what failed again")
		require.Contains(t, out, "\nOf 6 orders, 6 billed and 6 shipped.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`6 orders placed`), func(t *testing.T, out string) {
		require.NotContains(t, out, "order 1 billed")
	})
}
