package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/clusterload"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// onNodes is a Cluster of six real nodes under a steady load, by a client with the defaults of
// go-redis.
type onNodes struct {
	t       *testing.T
	cluster *redistest.Cluster
	client  *redis.ClusterClient
	load    *clusterload.Load
	lines   *countingLogger
	stalls  time.Duration // of this machine, in the last during
}

func nodesUnderLoad(t *testing.T) *onNodes {
	t.Helper()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no") // else no node serves until the replica takes over
	n := &onNodes{t: t, cluster: cluster, lines: &countingLogger{}}
	n.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: n.cluster.Addrs()})
	t.Cleanup(func() { _ = n.client.Close() })
	var err error
	n.load, err = clusterload.Start(clusterload.Config{
		Client: n.client, Logger: n.lines, PerNode: 2, Every: 20 * time.Millisecond, Delay: 50 * time.Millisecond, WaitReplicas: 1,
	})
	require.NoError(t, err)
	time.Sleep(time.Second)
	return n
}

// countingLogger counts the lines that are not for debugging.
type countingLogger struct{ n atomic.Int64 }

func (l *countingLogger) Error(string, error, watermill.LogFields)         { l.n.Add(1) }
func (l *countingLogger) Info(string, watermill.LogFields)                 { l.n.Add(1) }
func (l *countingLogger) Debug(string, watermill.LogFields)                {}
func (l *countingLogger) Trace(string, watermill.LogFields)                {}
func (l *countingLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// owner returns the address of the master that has a topic now.
func (n *onNodes) owner(topic string) string {
	primary, _ := n.cluster.Owner("{" + topic + "}")
	return primary.Addr()
}

// during returns how late messages come on each master in a time from now on.
func (n *onNodes) during(d time.Duration) map[string][]time.Duration {
	stalls := faulttest.Stalls(n.t, n.client)
	from := time.Now()
	time.Sleep(d)
	n.stalls = stalls()
	return n.load.Lateness(from, from.Add(d), n.owner)
}

// even judges that no master is much slower than the best. Milliseconds of a busy machine decide
// only in the long form.
func (n *onNodes) even(when string, late map[string][]time.Duration) {
	n.t.Helper()
	best := time.Hour
	for _, its := range late {
		best = min(best, clusterload.Quantile(its, 0.99))
	}
	n.report(when, late)
	for node, its := range late {
		p99 := clusterload.Quantile(its, 0.99)
		require.LessOrEqual(n.t, p99, faulttest.Pick(5*best+50*time.Millisecond+n.stalls, best*3/2+2*time.Millisecond), "%s: the p99 of %s, where that of the best is %v", when, node, best)
	}
}

func (n *onNodes) report(when string, late map[string][]time.Duration) {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(late)) {
		its := late[node]
		parts = append(parts, fmt.Sprintf("%.1f/%.1f", ms(clusterload.Quantile(its, 0.5)), ms(clusterload.Quantile(its, 0.99))))
	}
	faulttest.Report(n.t, fmt.Sprintf("%s: p50/p99 of each node %s ms", when, strings.Join(parts, ", ")))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// nothingWrong ends the load, and judges what became of its messages.
func (n *onNodes) nothingWrong() {
	n.t.Helper()
	verdict, err := n.load.Stop(30 * time.Second)
	require.NoError(n.t, err)
	require.Positive(n.t, verdict.Promised)
	require.Zero(n.t, verdict.Lost, "%+v", verdict)
	require.Zero(n.t, verdict.Early, "%+v", verdict)
	faulttest.Report(n.t, fmt.Sprintf("%d messages, %d unsure, %d delivered again", verdict.Promised, verdict.Failed, verdict.Doubled))
}

// goesOn waits until the topics of a master go on elsewhere, and returns how long that takes from
// the time at which its replica has taken over. A call that went to the old node just before may
// wait three seconds for its answer.
func (n *onNodes) goesOn(was string, replica *redistest.Instance) time.Duration {
	n.t.Helper()
	replica.AwaitInfo("role:master")
	took := time.Now()
	faulttest.Eventually(n.t, func() bool { return n.load.Last(was).After(took) }, 30*time.Second, 5*time.Millisecond)
	return time.Since(took)
}

// These tests are not parallel to others, because they judge milliseconds.
func TestEachNodeOfAClusterIsAsQuickAsTheBest(t *testing.T) {
	faulttest.Case(t, "the p99 lateness of each node is that of the best, at most 1.5 times, calm, after a failover, and after a slot migration")
	n := nodesUnderLoad(t)
	span := faulttest.Pick(2*time.Second, 20*time.Second)
	settled := faulttest.Pick(2*time.Second, 6*time.Second) // when each receiver has looked
	n.even("calm", n.during(span))

	topic := n.load.Topics()[0]
	_, replica := n.cluster.Owner("{" + topic + "}")
	takeOver(t, replica)
	time.Sleep(settled)
	n.even("after a failover", n.during(span))

	all := n.load.Topics()
	to := n.at(n.owner(all[len(all)-1])) // the topics of a master are together
	moveSlot(t, n.cluster, "{"+topic+"}", to).finish()
	require.Equal(t, to.Addr(), n.owner(topic))
	time.Sleep(settled)
	n.even("after a slot migration", n.during(span))
	n.nothingWrong()
}

func TestAFrozenNodeOfAClusterStallsItsOwnTopicsOnly(t *testing.T) {
	faulttest.Case(t, "a master that is frozen stalls its own topics only, which go on within 2 s after its replica has taken over")
	n := nodesUnderLoad(t)
	calm := n.during(faulttest.Pick(time.Second, 10*time.Second))
	n.report("calm", calm)
	usual := 10 * time.Millisecond // or what this machine takes at all now
	for _, its := range calm {
		usual = max(usual, clusterload.Quantile(its, 0.99)*3/2)
	}
	for i, was := range slices.Sorted(maps.Keys(calm)) {
		if i > 0 && !faulttest.Long() {
			break
		}
		frozen := n.at(was)
		topic := n.topicOn(was)
		_, replica := n.cluster.Owner("{" + topic + "}")
		its := n.load.Master(topic) // its topics are together
		other := replica.Client(t)
		stalls := faulttest.Stalls(t, other)
		began := time.Now()
		frozen.Pause()
		back := n.goesOn(its, replica)
		time.Sleep(time.Until(began.Add(faulttest.Pick(4*time.Second, 12*time.Second))))
		n.stalls = stalls()
		late := n.load.Lateness(began, time.Now().Add(-time.Second), nil)
		own := late[its]
		delete(late, its)
		n.report("the others while it is frozen", late)
		faulttest.Report(t, fmt.Sprintf("its own topics go on after %v, at most %v late", back.Round(10*time.Millisecond), own[len(own)-1].Round(10*time.Millisecond)))
		for node, others := range late {
			require.LessOrEqual(t, clusterload.Quantile(others, 0.99), faulttest.Pick(5*usual+100*time.Millisecond+n.stalls, usual), node)
		}
		require.LessOrEqual(t, back, faulttest.Pick(6*time.Second+n.stalls, 2*time.Second))
		frozen.Resume()
		frozen.AwaitInfo("role:slave")
		frozen.AwaitInfo("master_link_status:up")
		time.Sleep(time.Second)
	}
	n.nothingWrong()
}

func TestADeadNodeOfAClusterLosesNothing(t *testing.T) {
	faulttest.Case(t, "kill -9 of a master loses nothing that waited for its replica; nothing is early or stuck, and the log has ten lines at most")
	n := nodesUnderLoad(t)
	was := n.load.Master(n.load.Topics()[0])
	dead := n.at(was)
	_, replica := n.cluster.Owner("{" + n.load.Topics()[0] + "}")
	lines := n.lines.n.Load()
	began := time.Now()
	dead.Kill()
	back := n.goesOn(was, replica)
	late := n.load.Lateness(began, time.Now(), nil)
	delete(late, was)
	n.report("the others", late)
	require.LessOrEqual(t, back, faulttest.Pick(6*time.Second, 2*time.Second))
	dead.Restart()
	dead.AwaitInfo("role:slave")
	dead.AwaitInfo("master_link_status:up") // else no Publish gets its replica
	time.Sleep(time.Second)
	said := n.lines.n.Load() - lines
	faulttest.Report(t, fmt.Sprintf("its own topics go on after %v; %d log lines", back.Round(10*time.Millisecond), said))
	require.LessOrEqual(t, said, int64(10))
	n.nothingWrong()
}

func (n *onNodes) at(addr string) *redistest.Instance {
	nodes := n.cluster.Nodes()
	return nodes[slices.IndexFunc(nodes, func(in *redistest.Instance) bool { return in.Addr() == addr })]
}

// topicOn returns a topic that a master has now.
func (n *onNodes) topicOn(addr string) string {
	topics := n.load.Topics()
	return topics[slices.IndexFunc(topics, func(topic string) bool { return n.owner(topic) == addr })]
}
