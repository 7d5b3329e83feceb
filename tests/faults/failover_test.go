package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
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
			untilPlanned(t, func() *failover {
				primary, others := redistest.StartReplicated(t, 2)
				sentinels := redistest.StartSentinels(t, primary, others...)
				w := faulttest.NewWorld(t, faulttest.Place{Addrs: sentinels, MasterName: redistest.PrimaryName})
				f := underLoad(t, w, replicas)

				before := historiesOf(t, primary)[primary]
				f.behind(w.Topics, primary, others...)
				f.fail(func() {
					primary.Kill()
					f.lost(w.Topics...)
					for _, replica := range others {
						replica.Resume()
					}
				})
				primary.Restart() // the Sentinels make it a replica
				f.planned = func() bool { return followed(t, before, others...) }
				return f
			})
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
			untilPlanned(t, func() *failover {
				cluster := redistest.StartCluster(t)
				w := onCluster(t, cluster)
				f := underLoad(t, w, replicas)

				owner, replica := cluster.Owner("{t}")
				before := historiesOf(t, cluster.Nodes()...)
				topics := on(cluster, owner, w.Topics)
				f.behind(topics, owner, replica)
				f.fail(func() {
					owner.Kill()
					f.lost(topics...)
					replica.Resume()
					replica.AwaitInfo("role:master")
					owner.Restart() // as a replica
				})
				before.takenOver(t, owner, replica)
				f.planned = func() bool { return maps.Equal(before, historiesOf(t, cluster.Nodes()...)) }
				return f
			})
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
			takeOver(t, replica)
			owner.AwaitInfo("role:slave")
			owner.AwaitInfo("master_link_status:up")
		})
	}
	f.judge()
}

// histories are the IDs of those of a Cluster's primaries. Each failover begins one.
type histories map[*redistest.Instance]string

func historiesOf(t *testing.T, nodes ...*redistest.Instance) histories {
	t.Helper()
	found := histories{}
	for _, in := range nodes {
		if info := replication(t, in); info["role"] == "master" {
			found[in] = info["master_replid"]
		}
	}
	return found
}

// followed tells whether the history of one that is a primary now began where this one ended. After
// a second failover it began at the end of another.
func followed(t *testing.T, history string, nodes ...*redistest.Instance) bool {
	t.Helper()
	return slices.ContainsFunc(nodes, func(in *redistest.Instance) bool {
		info := replication(t, in)
		return info["role"] == "master" && info["master_replid2"] == history
	})
}

// replication is what a server says of its replication: nothing if it is down.
func replication(t *testing.T, in *redistest.Instance) map[string]string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	return client.InfoMap(t.Context(), "replication").Val()["Replication"]
}

// takenOver notes a failover that is the test's.
func (h histories) takenOver(t *testing.T, owner, replica *redistest.Instance) {
	t.Helper()
	delete(h, owner)
	h[replica] = historiesOf(t, replica)[replica]
}

// on are those of the topics that a node owns.
func on(cluster *redistest.Cluster, node *redistest.Instance, topics []string) (its []string) {
	for _, topic := range topics {
		if owner, _ := cluster.Owner("{" + topic + "}"); owner == node {
			its = append(its, topic)
		}
	}
	return its
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
	waits bool            // Publish does, for replicas
	rules faulttest.Rules // besides those of failovers

	safe  int64            // when those who take over had all
	spans []faulttest.Span // what was done in one of them may be forgotten

	// planned tells whether there was no failover but that of the test: where the machine is so
	// busy that servers do not answer in time, there may be others, which lose what was done before
	// them.
	planned func() bool
}

// untilPlanned judges a run in which there was no failover but that of the test. Of another run all
// may be forgotten, so that it shows little.
func untilPlanned(t *testing.T, run func() *failover) {
	t.Helper()
	for range 3 {
		f := run()
		if f.judge() {
			return
		}
		faulttest.Report(t, "with other failovers, as the machine was too busy")
	}
	require.Fail(t, "there were other failovers in each run")
}

// underLoad has publishers, which wait for so many replicas, and consumers at work.
func underLoad(t *testing.T, w *faulttest.World, replicas int) *failover {
	t.Helper()
	for i, group := range append(w.Groups, w.Groups[0]) {
		w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: fmt.Sprintf("consumer-%d", i), Group: group, InFlight: 20, WorkMS: 2})
	}
	for i := range 2 {
		w.Start(faulttest.Worker{
			Role: faulttest.Publisher, Name: fmt.Sprintf("publisher-%d", i), Callers: 4, PauseMS: faulttest.Pick(100, 50), WaitReplicas: replicas,
			DelaysMS: []int{0, 0, 20, 700},
			Do:       []string{faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Nack(1, 50*time.Millisecond)},
		})
	}
	w.Handled(300)
	return &failover{t: t, w: w, waits: replicas > 0}
}

// behind freezes replicas and cuts them off from their primary, which has some topics, until
// publishers have begun to publish what the replicas do not get.
func (f *failover) behind(topics []string, primary *redistest.Instance, replicas ...*redistest.Instance) {
	f.t.Helper()
	f.safe = time.Now().UnixNano()
	reached := offset(f.t, primary, "master_repl_offset")
	for _, replica := range replicas {
		faulttest.Eventually(f.t, func() bool { return offset(f.t, replica, "slave_repl_offset") >= reached }, time.Minute, time.Millisecond)
		replica.Pause()
	}
	require.NoError(f.t, primary.Client(f.t).ClientKillByFilter(f.t.Context(), "TYPE", "replica").Err())
	calls := 5 // of each caller: some delayed ones are among them, which nobody has acked yet
	if f.waits {
		calls = 2 // which are not confirmed
	}
	frozen := time.Now().UnixNano()
	f.w.AwaitEvents(faulttest.Publish, f.w.Count(faulttest.Publish)+calls*8)
	if f.waits {
		f.w.AwaitEvents(faulttest.Unknown, f.w.Count(faulttest.Unknown)+1)
		f.unconfirmed(frozen, topics)
	}
}

// unconfirmed makes sure that what was published since the replicas were frozen is not confirmed,
// but that they have confirmed before.
func (f *failover) unconfirmed(since int64, topics []string) {
	f.t.Helper()
	began, before, refused := map[string]bool{}, 0, 0
	for _, e := range f.w.History() {
		switch {
		case !slices.Contains(topics, e.Topic):
		case e.Kind == faulttest.Publish && e.At > since:
			began[e.UUID] = true
		case e.Kind == faulttest.Published:
			require.False(f.t, began[e.UUID], "confirmed while no replica was there: %s", e)
			before++
		case e.Kind == faulttest.Unknown && e.At > since && strings.Contains(e.Err, redisdelay.ErrNotReplicated.Error()):
			refused++
		}
	}
	require.Positive(f.t, before, "no replica has confirmed before")
	require.Positive(f.t, refused, "nobody was told ErrNotReplicated")
}

// offset is how much of the stream of replication a server has.
func offset(t *testing.T, in *redistest.Instance, field string) (n int) {
	t.Helper()
	info, err := in.Client(t).Info(t.Context(), "replication").Result()
	require.NoError(t, err)
	_, after, _ := strings.Cut(info, field+":")
	_, err = fmt.Sscan(after, &n)
	require.NoError(t, err)
	return n
}

// lost notes that the server of some topics is dead, and with it what the replicas did not have.
func (f *failover) lost(topics ...string) {
	for _, topic := range topics {
		f.spans = append(f.spans, faulttest.Span{Safe: f.safe, Killed: time.Now().UnixNano(), Topic: topic})
	}
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

// judge verifies the history. What was done while the replicas were behind may be forgotten, but
// for what Publish has waited for; all else must hold as if there had been no failover.
func (f *failover) judge() (planned bool) {
	f.t.Helper()
	f.w.StopPublishers()
	f.w.Drain(faulttest.Pick(time.Minute, 10*time.Minute))
	rules := f.rules
	rules.LosesData, rules.LosesIn, rules.Replicated, rules.Return = len(f.spans) > 0, f.spans, f.waits, byPoll
	if planned = f.planned == nil || f.planned(); !planned {
		rules.LosesData, rules.LosesIn, rules.Replicated = true, nil, false
		f.w.Verify(rules)
		return false
	}
	figures := f.w.Verify(rules)
	if len(f.spans) > 0 && !f.waits {
		require.Positive(f.t, figures.Lost)
	} else {
		require.Zero(f.t, figures.Lost)
	}
	return true
}

// takeOver makes a replica in a Cluster take over from its primary. It repeats the command, because
// the nodes give up after five seconds without enough votes.
func takeOver(t *testing.T, replica *redistest.Instance) {
	t.Helper()
	client := replica.Client(t)
	var again time.Time
	faulttest.Eventually(t, func() bool {
		info := client.Info(context.Background(), "replication").Val()
		if strings.Contains(info, "role:slave\r\n") && time.Now().After(again) {
			again = time.Now().Add(6 * time.Second)
			_ = client.ClusterFailover(context.Background()).Err() // after an error it is repeated
		}
		return strings.Contains(info, "role:master\r\n")
	}, 30*time.Second, 5*time.Millisecond, "the replica is no primary")
}
