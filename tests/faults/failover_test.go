package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// A failover loses what the replicas did not have: nothing that Publish waited for.
func TestSentinelFailover(t *testing.T) {
	for replicas, shows := range map[int]string{
		0: "a failover under load, without waiting for replicas, loses what they did not have, and no more; the rest goes on by itself",
		1: "a failover under load loses nothing that waited for a replica; the rest goes on by itself",
	} {
		t.Run(fmt.Sprintf("waiting for %d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, shows)
			primary, others := redistest.StartReplicated(t, 2)
			sentinels := redistest.StartSentinels(t, primary, others...)
			w := faulttest.NewWorld(t, faulttest.Place{Addrs: sentinels, MasterName: redistest.PrimaryName})
			f := underLoad(t, w, replicas)

			f.behind(primary, others...)
			f.fail(func() {
				primary.Kill()
				for _, replica := range others {
					replica.Resume()
				}
			})
			primary.Restart() // the Sentinels make it a replica
			f.judge(replicas == 0)
		})
	}
}

func TestClusterFailover(t *testing.T) {
	for replicas, shows := range map[int]string{
		0: "the loss of a cluster's node under load, without waiting for replicas, loses what its replica did not have, and no more; the rest goes on by itself",
		1: "the loss of a cluster's node under load loses nothing that waited for its replica; the rest goes on by itself",
	} {
		t.Run(fmt.Sprintf("waiting for %d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, shows)
			cluster := redistest.StartCluster(t)
			w := onCluster(t, cluster)
			f := underLoad(t, w, replicas)

			owner, replica := cluster.Owner("{t}")
			f.behind(owner, replica)
			f.fail(func() {
				owner.Kill()
				replica.Resume()
				replica.AwaitInfo("role:master")
				owner.Restart() // as a replica
			})
			f.judge(replicas == 0)
		})
	}
}

func TestClusterFailoverByHand(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "CLUSTER FAILOVER under load loses nothing, also without waiting for replicas")
	cluster := redistest.StartCluster(t)
	w := onCluster(t, cluster)
	f := underLoad(t, w, 0)
	for round := range faulttest.Pick(2, 10) {
		if round > 0 {
			time.Sleep(3 * time.Second) // the nodes vote about a primary once in twice their timeout
		}
		owner, replica := cluster.Owner("{t}")
		f.fail(func() {
			require.NoError(t, replica.Client(t).ClusterFailover(t.Context()).Err())
			replica.AwaitInfo("role:master")
			owner.AwaitInfo("role:slave")
			owner.AwaitInfo("master_link_status:up")
		})
	}
	f.judge(false)
}

// onCluster is a world whose topics are on different nodes.
func onCluster(t *testing.T, cluster *redistest.Cluster) *faulttest.World {
	t.Helper()
	w := faulttest.NewWorld(t, faulttest.Place{Addrs: cluster.Addrs(), Cluster: true}, func(w *faulttest.World) {
		w.Topics, w.Groups = []string{"t", "u", "v"}, []string{"g", "h"}
	})
	owners := map[*redistest.Instance]bool{}
	for _, topic := range w.Topics {
		owner, _ := cluster.Owner("{" + topic + "}")
		owners[owner] = true
	}
	require.Greater(t, len(owners), 1)
	return w
}

// failover is a world under load.
type failover struct {
	t     *testing.T
	w     *faulttest.World
	waits bool // Publish does, for replicas
}

// underLoad has publishers, which wait for so many replicas, and consumers at work.
func underLoad(t *testing.T, w *faulttest.World, replicas int) *failover {
	t.Helper()
	for i, group := range append(w.Groups, w.Groups[0]) {
		w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: fmt.Sprintf("consumer-%d", i), Group: group, InFlight: 20, WorkMS: 2})
	}
	for i := range 2 {
		w.Start(faulttest.Worker{
			Role: faulttest.Publisher, Name: fmt.Sprintf("publisher-%d", i), Callers: 4, PauseMS: 50, WaitReplicas: replicas,
			DelaysMS: []int{0, 0, 20, 700},
			Do:       []string{faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Nack(1, 50*time.Millisecond)},
		})
	}
	w.Handled(300)
	return &failover{t, w, replicas > 0}
}

// behind freezes replicas and cuts them off from their primary, until publishers have begun to publish what the
// replicas do not get.
func (f *failover) behind(primary *redistest.Instance, replicas ...*redistest.Instance) {
	f.t.Helper()
	for _, replica := range replicas {
		replica.Pause()
	}
	require.NoError(f.t, primary.Client(f.t).ClientKillByFilter(f.t.Context(), "TYPE", "replica").Err())
	calls := 5 // of each caller: some delayed ones are among them, which nobody has acked yet
	if f.waits {
		calls = 2 // which are not confirmed
	}
	f.w.AwaitEvents(faulttest.Publish, f.w.Count(faulttest.Publish)+calls*8)
}

// fail does what is done to servers, and waits until new messages are published and handled.
func (f *failover) fail(do func()) {
	f.t.Helper()
	began := time.Now()
	do()
	published := f.w.Count(faulttest.Published)
	f.w.AwaitEvents(faulttest.Published, published+100)
	f.w.Handled(f.w.Count(faulttest.Start) + 100)
	faulttest.Report(f.t, fmt.Sprintf("back at work after %v", time.Since(began).Round(100*time.Millisecond)))
}

// judge verifies the history, with loss or without.
func (f *failover) judge(loses bool) {
	f.t.Helper()
	f.w.StopPublishers()
	figures := f.w.Verify(faulttest.Rules{LosesData: true}) // a failover may lose acks, and leases
	if loses {
		require.Positive(f.t, figures.Lost)
	} else {
		require.Zero(f.t, figures.Lost)
	}
}
