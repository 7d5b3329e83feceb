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

var (
	seen = regexp.MustCompile(`(?m)^The partner saw 120 calls: at most (\d+) in a second, and (\d+) at a time\.$`)
	made = regexp.MustCompile(`(?m)^worker-\d made (\d+) of them\.$`)
)

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func TestThePartnerGetsNoMoreThanItTakes(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		what := seen.FindStringSubmatch(out)
		require.NotNil(t, what, out)
		require.GreaterOrEqual(t, number(t, what[1]), 20, "it is used")
		require.LessOrEqual(t, number(t, what[2]), atOnce)
		sum := 0
		for _, line := range made.FindAllStringSubmatch(out, -1) {
			sum += number(t, line[1])
		}
		require.Equal(t, invoices, sum)
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`20 invoices sent`), func(t *testing.T, out string) {
		require.NotContains(t, out, "The partner saw")
	})
}
