package scheduler

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A broken kernel timer is closed, the wait still takes its time, and the next wait opens a new
// one.
func TestAlarmWorksWithoutKernelTimer(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer func() { require.NoError(t, write.Close()) }()
	a := alarm{timer: read}
	defer a.close()
	start := time.Now()
	a.wait(time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
	require.ErrorIs(t, read.Close(), os.ErrClosed, "the alarm has closed it")
	a.wait(time.Microsecond)
	require.NotNil(t, a.timer)
}

// The kernel timer is not set here, so only the runtime timer can end the wait.
func TestRuntimeTimerEndsAlarm(t *testing.T) {
	t.Parallel()
	var a alarm
	defer a.close()
	a.open()
	for range 2 {
		start := time.Now()
		require.NoError(t, a.await(time.Millisecond))
		require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
	}
}

func TestKernelTimerEndsAlarm(t *testing.T) {
	t.Parallel()
	var a alarm
	a.open()
	timer := a.timer
	require.NoError(t, a.arm(time.Millisecond))
	start := time.Now()
	require.NoError(t, a.await(time.Hour))
	require.Less(t, time.Since(start), time.Minute)
	a.wait(time.Microsecond)
	require.Same(t, timer, a.timer, "all waits share one timer")
	a.close()
	require.ErrorIs(t, timer.Close(), os.ErrClosed)
}
