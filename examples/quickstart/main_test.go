package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEveryTimeoutComesAndNoneEarly(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Regexp(t, `Published 8 messages`, out)
		lines := deliveryLine.FindAllStringSubmatch(out, -1)
		require.Len(t, lines, 9, out)
		times := map[string]int{}
		for i, line := range lines {
			times[line[2]]++
			if i > 0 {
				require.LessOrEqual(t, lines[i-1][1], line[1], "in order of due time")
			}
		}
		require.Equal(t, map[string]int{"A-1": 1, "A-2": 1, "A-3": 1, "A-4": 2, "A-5": 1, "A-6": 1, "A-7": 1, "A-8": 1}, times)
		require.Regexp(t, `(?m)^9 deliveries, 1 of them retries; early: 0; the latest came \d+\.\d ms after it was due\.$`, out)
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, deliveryLine, func(t *testing.T, out string) {
		require.Regexp(t, `(?m)^\d deliveries, .*early: 0`, out)
	})
}

func TestServerThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	p := exampletest.Start(t, exampletest.Build(t), "127.0.0.1:1")
	out, status := p.End(t)
	require.Equal(t, 1, status, out)
	require.Contains(t, p.Stderr(), "reach Redis at 127.0.0.1:1")
}

// deliveryLine is due time, lateness, order, timeout, delivery.
var deliveryLine = regexp.MustCompile(`(?m)^(\d\d:\d\d:\d\d\.\d{3}) +\d+\.\d ms late  (A-\d)    [\d.ms]+ +\d$`)
