package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEveryReminderComesOnceAndNoneEarly(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Len(t, reminder.FindAllString(out, -1), 5, out)
		require.Contains(t, out, "\n5 reminders came; early: 0, more than once: 0.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, reminder, func(t *testing.T, out string) {
		require.Regexp(t, `(?m)^\d reminders came; early: 0, more than once: 0\.$`, out)
	})
}

var reminder = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3} +\d+\.\d ms late  remind me in [\d.ms]+$`)
