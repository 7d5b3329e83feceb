package redistest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPausedServerRunsNoMore(t *testing.T) {
	t.Parallel()
	in := Start(t)
	pid := in.proc.cmd.Process.Pid
	for range 20 {
		require.Eventually(t, func() bool { return !frozen(pid) }, time.Minute, time.Millisecond)
		in.Pause()
		require.True(t, frozen(pid))
		in.Resume()
	}
}
