package admin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoWaitsForTheLargestTopicHeedsItsContext(t *testing.T) {
	t.Parallel()
	a := &Admin{largest: largest{turn: make(chan struct{}, 1)}}
	a.largest.turn <- struct{}{} // another call asks Redis
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.largestOn(ctx, "")
	require.ErrorIs(t, err, context.Canceled)
}
