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
var line = regexp.MustCompile(`(?m)^(\d+\.\d{3})s  (A-\d) (.*)$`)

func TestOnlyUnpaidOrdersAreCancelledAndNoneEarly(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		happened := map[string][]string{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			id, what := l[2], l[3]
			happened[id] = append(happened[id], what)
			if what == "not paid in time: cancelled" {
				at, err := strconv.ParseFloat(l[1], 64)
				require.NoError(t, err)
				require.GreaterOrEqual(t, at, timeToPay.Seconds(), "cancelled early")
			}
		}
		const placed = "placed, to be paid within 1s"
		require.Equal(t, map[string][]string{
			"A-1": {placed, "paid", "is paid: nothing to do"},
			"A-2": {placed, "not paid in time: cancelled"},
			"A-3": {placed, "paid", "is paid: nothing to do"},
			"A-4": {placed, "not paid in time: cancelled", "paid too late: money back"},
		}, happened)
		require.Contains(t, out, "\n4 orders: 2 paid, 2 cancelled; 1 paid too late and got their money back.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`A-1 paid`), func(t *testing.T, out string) {
		require.Contains(t, out, "\n4 orders: ")
	})
}
