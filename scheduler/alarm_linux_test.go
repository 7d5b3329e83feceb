package scheduler

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What cannot have a timer of the kernel, or has it no more, waits by those of the runtime.
func TestAnAlarmWorksWithoutTheKernelsTimer(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe() // which is no timer
	require.NoError(t, err)
	defer func() { require.NoError(t, write.Close()) }()
	for _, a := range []*alarm{{broken: true}, {timer: read}} {
		start := time.Now()
		a.wait(time.Millisecond)
		require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
		require.True(t, a.broken)
		require.Nil(t, a.timer)
	}
	require.ErrorIs(t, read.Close(), os.ErrClosed, "else it would stay open")
}

func TestAnAlarmUsesTheKernelsTimer(t *testing.T) {
	t.Parallel()
	var a alarm
	a.wait(time.Microsecond)
	require.NotNil(t, a.timer)
	timer := a.timer
	a.wait(time.Microsecond)
	require.Same(t, timer, a.timer, "one for all waits")
	a.close()
	require.ErrorIs(t, timer.Close(), os.ErrClosed)
}
