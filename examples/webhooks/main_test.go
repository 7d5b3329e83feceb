package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEveryReminderComesSignedOrIsADeadLetter(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Contains(t, out, "\nThe customer took 7 of 8 reminders and refused 1, in 10 requests; forged and turned away: 1.\n")
		require.Contains(t, out, `{"reminder":0}  401, its signature is not ours`)
		require.Contains(t, out, `{"reminder":3}  503, try 1`)
		require.Contains(t, out, `{"reminder":3}  204, try 2`)
		require.Contains(t, out, `{"reminder":5}  429, try 1`)
		require.Regexp(t, `(?m)^Dead letter \{"reminder":7\}: refused by the destination: .*410 Gone$`, out)
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`"reminder":2`), func(t *testing.T, out string) {
		require.NotContains(t, out, "The customer took")
	})
}
