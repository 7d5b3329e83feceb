package queue_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// A test server moves the times of occurrences in hand along with its clock.
func TestTimesOfAnOccurrenceInHandMove(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"100 token 5000":           "100 token 6000",
		"100,200,3000 token 5000":  "100,200,4000 token 6000",
		"-,200,3000 - 0":           "-,200,4000 - 0",
		"100,200,9000 token 5000":  "100,200,9000 token 6000", // is after the limit
		"100 token 9000":           "",
		"":                         "",
		"100 token":                "",
		"100 token what":           "",
		"100,200,what token 50000": "",
	} {
		moved, is := queue.MoveHandling(text, time.Second, 8000)
		require.Equal(t, want != "", is, text)
		if is {
			require.Equal(t, want, moved, text)
		}
	}
	moved, is := queue.MoveHandling("100 token 5000", 24*time.Hour, math.Inf(1))
	require.True(t, is)
	require.Equal(t, "100 token 86405000", moved)
}
