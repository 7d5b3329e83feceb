package admin_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

func TestQuantilesOfLateness(t *testing.T) {
	t.Parallel()
	require.Len(t, admin.LatenessBounds(), len(admin.Lateness{})-1, "the last bucket has no bound")
	for name, c := range map[string]struct {
		lateness admin.Lateness
		p50, p99 time.Duration
	}{
		"none":                      {},
		"one":                       {admin.Lateness{2: 1}, 5 * time.Millisecond, 5 * time.Millisecond},
		"99 of 100":                 {admin.Lateness{0: 99, 3: 1}, time.Millisecond, time.Millisecond},
		"98 of 100":                 {admin.Lateness{0: 98, 3: 2}, time.Millisecond, 10 * time.Millisecond},
		"half, and more":            {admin.Lateness{1: 50, 9: 50}, 2 * time.Millisecond, time.Second},
		"later than any bound":      {admin.Lateness{15: 3}, math.MaxInt64, math.MaxInt64},
		"a few later than a minute": {admin.Lateness{14: 90, 15: 10}, time.Minute, math.MaxInt64},
	} {
		require.Equal(t, c.p50, c.lateness.Quantile(0.5), name)
		require.Equal(t, c.p99, c.lateness.Quantile(0.99), name)
	}
}

func TestCountersAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(admin.Lateness{2: 12, 15: 1})
	require.NoError(t, err)
	require.JSONEq(t, `[{"at_most":"5ms","count":12},{"at_most":"","count":1}]`, string(text))
	text, err = json.Marshal(admin.Lateness{})
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(text))
	text, err = json.Marshal(admin.GroupCounters{LeaseLost: 1, GivenUp: 3, Dead: admin.DeadCounters{Late: 2}})
	require.NoError(t, err)
	require.JSONEq(t, `{"delivered":0,"acked":0,"nacked":0,"retried":0,"dropped":0,"skipped":0,"expired":0,"suspects":0,"lease_lost":1,"given_up":3,
		"dead":{"deliveries":0,"lease":0,"asked":0,"late":2,"unmarshal":0,"killed":0},"dead_purged":0}`, string(text))
	require.Equal(t, 2, admin.DeadCounters{Late: 2}.Total())
}
