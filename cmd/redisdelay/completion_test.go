package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheShellCompletesCommands(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := says(nil, "completion", "bash")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "__start_redisdelay")
}
