package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// A history reaches back to its beginning, has a limit, and loses nothing between its samples.
func TestHistoryReachesBackToItsBeginning(t *testing.T) {
	t.Parallel()
	began := time.UnixMilli(1_700_000_000_000)
	var h history
	for i := range 10_000 {
		stats := admin.Stats{Now: began.Add(time.Duration(i) * time.Second), Counters: admin.Counters{Published: 3 * i}}
		var late admin.Lateness
		late.Add(time.Millisecond, i)
		late.Add(10*time.Millisecond, i)
		stats.Groups = []admin.GroupStats{{Counters: admin.GroupCounters{Delivered: 2 * i}, Lateness: late}}
		h.add(sampleOf(stats))
		require.LessOrEqual(t, len(h.all()), most+1)
	}
	all := h.all()
	require.Greater(t, len(all), most/2)
	require.Less(t, all[0].at.Sub(began), 10*time.Minute)
	require.Equal(t, 2*9999, all[len(all)-1].delivered)
	s := seriesOf(all)
	for i := range s.At {
		require.InDelta(t, 2, s.Delivered[i], 0.001)
		require.InDelta(t, 3, s.Published[i], 0.001)
		require.Equal(t, inMillis(time.Millisecond), s.Half[i])
		require.Equal(t, inMillis(10*time.Millisecond), s.Most[i])
	}
	h.add(sampleOf(admin.Stats{Now: began.Add(20_000 * time.Second)})) // the topic was made anew
	require.Len(t, h.all(), 1)
}
