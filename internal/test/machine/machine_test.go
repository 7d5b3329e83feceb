package machine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script returns a measure that returns these values in turn, and the function that was measured,
// with the number of its calls.
func script(values ...time.Duration) (measure func() time.Duration, run func() error, calls *int) {
	calls = new(int)
	return func() time.Duration {
			next := values[0]
			values = slices.Delete(values, 0, 1)
			return next
		}, func() error {
			*calls++
			return nil
		}, calls
}

func TestAMeasurementOnASteadyMachineIsMadeOnce(t *testing.T) {
	t.Parallel()
	measure, run, calls := script(100, 110)
	state, err := Steadily(t.Context(), Tries, measure, run)
	require.NoError(t, err)
	require.Equal(t, State{Before: 100, After: 110, Tries: 1}, state)
	require.False(t, state.Moved(), "ten percent are allowed")
	require.Equal(t, 1, *calls)
}

func TestAMeasurementIsMadeAgainIfTheMachineMoved(t *testing.T) {
	t.Parallel()
	measure, run, calls := script(100, 111, 111, 100, 100, 104)
	state, err := Steadily(t.Context(), Tries, measure, run)
	require.NoError(t, err)
	require.Equal(t, State{Before: 100, After: 104, Tries: 3}, state)
	require.False(t, state.Moved())
	require.Equal(t, 3, *calls)
}

func TestAMeasurementIsMarkedAfterThreeTries(t *testing.T) {
	t.Parallel()
	measure, run, calls := script(100, 200, 200, 100, 100, 112)
	state, err := Steadily(t.Context(), Tries, measure, run)
	require.NoError(t, err)
	require.Equal(t, State{Before: 100, After: 112, Tries: 3}, state)
	require.True(t, state.Moved())
	require.Equal(t, 3, *calls)
}

func TestAnErrorEndsTheMeasurement(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	measure, _, _ := script(100)
	_, err := Steadily(t.Context(), Tries, measure, func() error { return broken })
	require.ErrorIs(t, err, broken)

	ctx, cancel := context.WithCancel(t.Context())
	measure, _, _ = script(100)
	_, err = Steadily(ctx, Tries, measure, func() error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestTheFixedWorkTakesTime(t *testing.T) {
	t.Parallel()
	require.Positive(t, Measure())
}

func TestTheLoadIsThatOfTheLastMinute(t *testing.T) {
	t.Parallel()
	load, ok := parseLoad("5.08 1.80 0.67 3/401 12345\n")
	require.True(t, ok)
	require.InDelta(t, 5.08, load, 1e-9)
	_, ok = parseLoad("")
	require.False(t, ok)
}
