package partition

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Calls that overlap stay together up to a limit, others after a few messages. They go round.
func TestMessagesWithoutKeyMoveOn(t *testing.T) {
	t.Parallel()
	const n = 3
	s := new(sticky)
	enter := func(messages int) (partition int, leave func()) { return s.enter(messages, n) }

	for i := range 2 * n * few { // one call after the other
		partition, leave := enter(1)
		require.Equal(t, i/few%n, partition)
		leave()
	}

	first, leave := enter(1)
	for range many - 1 { // each call overlaps the first one
		partition, left := enter(1)
		require.Equal(t, first, partition)
		left()
	}
	next, leaveNext := enter(1)
	require.Equal(t, (first+1)%n, next, "there are too many")
	leave() // of the partition before, so a call is still under way
	for range few {
		partition, left := enter(1)
		require.Equal(t, next, partition)
		left()
	}
	leaveNext()
	last, _ := enter(1)
	require.Equal(t, (next+1)%n, last, "no call was under way")
}
