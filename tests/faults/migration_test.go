package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// While some keys of a topic are on one node and some on another, no script runs that needs both.
func TestSlotMigrationKeyByKey(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "while a topic's slot moves to another node key by key, messages wait; none is lost, torn, or taken for gone")
	cluster := redistest.StartCluster(t)
	w := onCluster(t, cluster)
	f := underLoad(t, w, 0)
	for round := range faulttest.Pick(2, 10) {
		from, _ := cluster.Owner("{t}")
		to := cluster.Primaries[0]
		if to == from {
			to = cluster.Primaries[1]
		}
		began, moved := time.Now(), 0
		w.During("the topic is in two places", func() {
			m := moveSlot(t, cluster, "{t}", to)
			f.elsewhere() // with all keys where they were
			// In another order each time: what the scripts look at first, last.
			for _, kind := range [][]string{{":groups", ":meta", ":messages", ":pending", ":ready"}, {":scheduler", ":publisher:", ":unack", ":leases"}}[round%2] {
				for m.step(kind) {
					moved++
					f.elsewhere()
				}
			}
			time.Sleep(time.Second) // longer than a lease, and than clients try again
			m.finish()
		})
		faulttest.Report(t, fmt.Sprintf("the topic was in two places for %v, after %d keys", time.Since(began).Round(100*time.Millisecond), moved))
		require.Positive(t, moved)
		now, _ := cluster.Owner("{t}")
		require.Equal(t, to, now)
		f.fail(func() {})
	}
	w.StopPublishers()
	require.Zero(t, w.Verify(faulttest.Rules{Return: byPoll}).Lost)
}

// elsewhere waits until other topics have gone on.
func (f *failover) elsewhere() {
	f.t.Helper()
	f.w.Handled(f.w.Count(faulttest.Start) + 5)
}
