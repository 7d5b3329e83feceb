package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEachHeartbeatComesOnceAndBackupsDoNotOverlap(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Contains(t, out, "\n4 heartbeats, 0 of them twice; ")
		require.Contains(t, out, "overlapping: false.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`heartbeat 1`), func(t *testing.T, out string) {
		require.Contains(t, out, " heartbeats, ")
	})
}
