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

// line is worker, jobs done.
var line = regexp.MustCompile(`(?m)^(worker [12]): ended \d+ ms after its SIGTERM, (\d+) jobs done, \d+ of them since$`)

func TestNothingIsLostOrRepeatedWhenAWorkerEnds(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		done := map[string]int{}
		for _, l := range line.FindAllStringSubmatch(out, -1) {
			n, err := strconv.Atoi(l[2])
			require.NoError(t, err)
			done[l[1]] = n
		}
		require.Len(t, done, 2, out)
		require.GreaterOrEqual(t, done["worker 1"], handOver, "ended in the middle of its work")
		require.Positive(t, done["worker 2"], "took over")
		require.Equal(t, jobs, done["worker 1"]+done["worker 2"])
		require.Regexp(t, `(?m)^500 jobs, lost: 0, repeated: 0, left in Redis: 0; the longest pause: \d+ ms\.$`, out)
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`worker 1: started`), func(t *testing.T, out string) {
		require.Regexp(t, `(?m)^500 jobs, lost: \d+, repeated: 0, `, out)
	})
}
