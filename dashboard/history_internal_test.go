package dashboard

import (
	"math"
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

// A group that is five minutes late is not shown as two, and a pause does not make it punctual.
func TestLatenessDoesNotLie(t *testing.T) {
	t.Parallel()
	began := time.UnixMilli(1_700_000_000_000)
	var late admin.Lateness
	reading := func(seconds int, waits time.Duration) sample {
		now := began.Add(time.Duration(seconds) * time.Second)
		g := admin.GroupStats{Lateness: late, Counters: admin.GroupCounters{Delivered: late.Count()}}
		if waits > 0 {
			g.Ready, g.OldestDue = 1, now.Add(-waits)
		}
		return sampleOf(admin.Stats{Now: now, Groups: []admin.GroupStats{g}})
	}
	samples := []sample{reading(0, 0)}
	late.Add(8*time.Millisecond, 5)
	samples = append(samples, reading(10, 0))
	late.Add(5*time.Minute+time.Second, 5)
	samples = append(samples, reading(20, 5*time.Minute), reading(30, 4*time.Minute+40*time.Second)) // and then a pause
	s := seriesOf(samples)
	require.Equal(t, []float64{10, 15 * 60_000}, s.Most[:2])
	require.True(t, math.IsNaN(s.Most[2]), "nothing was delivered")
	require.Equal(t, []float64{10, 15 * 60_000, 280_000}, s.late())
	charts := historyCharts(s)
	require.Equal(t, "99 % last within 15 min, at most 15 min. The next ready message has waited for 4 min 40 s.", charts[1].Said)
	text, err := charts[1].JSON()
	require.NoError(t, err)
	require.Contains(t, text, `[10,900000,null]`)

	late.Add(48*time.Hour, 500)
	s = seriesOf(append(samples, reading(40, 0)))
	require.Contains(t, historyCharts(s)[1].Said, "99 % last within more than 1 d")
}
