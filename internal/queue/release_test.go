package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The lease that another subscription has by now is not the one that an operator ends.
func TestALeaseOfAnotherSubscriptionDoesNotEnd(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		first := w.sub("a")
		before := held(first.claim(2))
		require.Equal(t, 1, first.release(before[0]))
		require.Len(t, held(w.sub("a").claim(1)), 1)
		ended, err := w.topic.EndLeases(ctx, "a", "channel|1", before)
		require.NoError(t, err)
		require.Equal(t, 1, ended, "y alone")
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.zset(w.keys.Unack("a")))
	}, "a")
}
