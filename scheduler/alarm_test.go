package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAlarmIsNeverEarly(t *testing.T) {
	t.Parallel()
	var a alarm
	defer a.close()
	for _, d := range []time.Duration{-time.Second, 0, 1, 50 * time.Microsecond, 5 * time.Millisecond, 10 * time.Microsecond} {
		start := time.Now()
		a.wait(d)
		require.GreaterOrEqual(t, time.Since(start), d)
	}
	a.close()
	a.close()
	start := time.Now()
	a.wait(time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), time.Millisecond)
}
