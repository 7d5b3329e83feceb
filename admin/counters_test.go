package admin_test

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// latenessOf counts deliveries by how late they were.
func latenessOf(counts map[time.Duration]int) (l admin.Lateness) {
	for late, n := range counts {
		l.Add(late, n)
	}
	return l
}

func TestQuantilesOfLateness(t *testing.T) {
	t.Parallel()
	const ms, more = time.Millisecond, 24*time.Hour + 1
	for name, c := range map[string]struct {
		lateness map[time.Duration]int
		p50, p99 time.Duration
	}{
		"none":                   {},
		"one":                    {map[time.Duration]int{3 * ms: 1}, 5 * ms, 5 * ms},
		"one at the bound":       {map[time.Duration]int{5 * ms: 1}, 5 * ms, 5 * ms},
		"one that is early":      {map[time.Duration]int{-ms: 1}, ms, ms},
		"99 of 100":              {map[time.Duration]int{ms: 99, 10 * ms: 1}, ms, ms},
		"98 of 100":              {map[time.Duration]int{ms: 98, 10 * ms: 2}, ms, 10 * ms},
		"half, and more":         {map[time.Duration]int{2 * ms: 50, time.Second: 50}, 2 * ms, time.Second},
		"later than any bound":   {map[time.Duration]int{more: 1, math.MaxInt64: 2}, math.MaxInt64, math.MaxInt64},
		"a few later than a day": {map[time.Duration]int{24 * time.Hour: 90, more: 10}, 24 * time.Hour, math.MaxInt64},
	} {
		lateness := latenessOf(c.lateness)
		require.Equal(t, c.p50, lateness.Quantile(0.5), name)
		require.Equal(t, c.p99, lateness.Quantile(0.99), name)
	}
}

func TestLatenessOfTwoGroupsAndTimes(t *testing.T) {
	t.Parallel()
	before := latenessOf(map[time.Duration]int{time.Second: 5, time.Minute: 1})
	after := latenessOf(map[time.Duration]int{time.Second: 7, 48 * time.Hour: 2})
	require.Equal(t, latenessOf(map[time.Duration]int{time.Second: 2, 48 * time.Hour: 2}), after.Since(before))
	require.Equal(t, latenessOf(map[time.Duration]int{time.Second: 12, time.Minute: 1, 48 * time.Hour: 2}), before.Plus(after))
	require.Equal(t, 15, before.Plus(after).Count())
	require.True(t, after == before.Since(before).Plus(after))
	buckets := after.Buckets()
	require.Equal(t, admin.LatenessBucket{AtMost: time.Millisecond}, buckets[0])
	require.Equal(t, admin.LatenessBucket{AtMost: math.MaxInt64, Count: 2}, buckets[len(buckets)-1])
	require.True(t, slices.IsSortedFunc(buckets, func(a, b admin.LatenessBucket) int { return cmp.Compare(a.AtMost, b.AtMost) }))
}

func TestCountersAsJSON(t *testing.T) {
	t.Parallel()
	lateness := latenessOf(map[time.Duration]int{5 * time.Millisecond: 12, 48 * time.Hour: 1})
	text, err := json.Marshal(lateness)
	require.NoError(t, err)
	require.Equal(t, `[{"at_most":"5ms","count":12},{"at_most":"","count":1}]`, string(text))
	read := latenessOf(map[time.Duration]int{0: 1}) // which goes
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, lateness, read)
	require.NoError(t, json.Unmarshal([]byte(`null`), &read))
	require.Equal(t, lateness, read)
	// Another version may have other bounds.
	require.NoError(t, json.Unmarshal([]byte(`[{"at_most":"3ms","count":1,"new":2},{"at_most":"49h0m0s","count":3}]`), &read))
	require.Equal(t, latenessOf(map[time.Duration]int{5 * time.Millisecond: 1, 48 * time.Hour: 3}), read)
	require.ErrorContains(t, json.Unmarshal([]byte(`[{"at_most":"soon","count":1}]`), &read), "at_most")
	text, err = json.Marshal(admin.Lateness{})
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(text))
	text, err = json.Marshal(admin.GroupCounters{LeaseLost: 1, GivenUp: 3, Dead: admin.DeadCounters{Late: 2}})
	require.NoError(t, err)
	require.JSONEq(t, `{"delivered":0,"acked":0,"nacked":0,"retried":0,"dropped":0,"skipped":0,"expired":0,"disowned":0,"suspects":0,"lease_lost":1,"given_up":3,"limited":0,"limited_for":"0s","history_failed":0,
		"dead":{"deliveries":0,"lease":0,"asked":0,"late":2,"unmarshal":0,"killed":0},"dead_purged":0}`, string(text))
	require.Equal(t, 2, admin.DeadCounters{Late: 2}.Total())
}
