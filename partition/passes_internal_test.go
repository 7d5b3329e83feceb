package partition

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAMemberIsPassedOverLongerEachTime(t *testing.T) {
	t.Parallel()
	p, now := passes{}, time.Now()
	var lasts []time.Duration
	for range 8 {
		lasts = append(lasts, p.failed("a", now, 10*time.Second)/time.Second)
	}
	require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 600, 600}, lasts)
	seats := func(at time.Time) []string {
		members := []string{"a", "b", ""}
		p.without(at, members)
		return members
	}
	require.Equal(t, []string{"", "b", ""}, seats(now.Add(10*time.Minute-1)))
	require.Equal(t, []string{"a", "b", ""}, seats(now.Add(10*time.Minute)))
	p.took("a")
	require.Equal(t, []string{"a", "b", ""}, seats(now))
	require.Equal(t, 10*time.Second, p.failed("a", now, 10*time.Second), "it was trusted again")
}
