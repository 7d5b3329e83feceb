package scheduler

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is of no use as a timer of the kernel is given up, the time is waited for all the same, and the next wait has
// another.
func TestAnAlarmWorksWithoutTheKernelsTimer(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer func() { require.NoError(t, write.Close()) }()
	a := alarm{timer: read}
	defer a.close()
	start := time.Now()
	a.wait(time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
	require.ErrorIs(t, read.Close(), os.ErrClosed, "else it would stay open")
	a.wait(time.Microsecond)
	require.NotNil(t, a.timer)
}

// The runtime may not look at the kernel's timer for long; here that never ends.
func TestAnAlarmEndsByATimerOfTheRuntimeToo(t *testing.T) {
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

func TestAnAlarmEndsByTheKernelsTimer(t *testing.T) {
	t.Parallel()
	var a alarm
	a.open()
	timer := a.timer
	require.NoError(t, a.arm(time.Millisecond))
	start := time.Now()
	require.NoError(t, a.await(time.Hour))
	require.Less(t, time.Since(start), time.Minute)
	a.wait(time.Microsecond)
	require.Same(t, timer, a.timer, "one for all waits")
	a.close()
	require.ErrorIs(t, timer.Close(), os.ErrClosed)
}
