package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// FAULTS_SEED has a run choose the faults that another chose.
func TestOrderOfKeysOverPartitions(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "messages of a key keep the order of their due times, over partitions with one active subscriber each, while subscribers are killed, frozen and closed, messages are nacked, primaries fail, slots move, and the number of partitions grows; no two subscribers have leases of a partition at one time")
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("FAULTS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	untilPlanned(t, func() *failover {
		l := newKeyedLoad(t, seed)
		all := l.schedule()
		for i, name := range all {
			if i >= len(all)/3 {
				l.grow()
			}
			t.Log(name)
			keyFaults[name](l)
			l.checkHistories()
			l.w.Handled(l.w.Count(faulttest.Start) + 50)
		}
		faulttest.Eventually(t, l.grow, time.Minute, 100*time.Millisecond, "the number of partitions does not change")
		l.w.AwaitEvents(faulttest.Publish, publishersOfKeys*l.keys*keyRounds)
		l.checkHistories()
		faulttest.Report(t, fmt.Sprintf("seed %d: %d faults, %d messages in new partitions", seed, len(all), l.grown()))
		return l.failover
	})
}

// notBySilence has no node fail because a busy machine keeps it waiting. In the short form no
// primary is killed.
var notBySilence = faulttest.Pick([]string{"--cluster-node-timeout", "30000"}, nil)

const (
	publishersOfKeys = 2
	keyRounds        = 3
	partitionsBefore = 12
	partitionsAfter  = 16
)

// keyedLoad is a partitioned topic on a Cluster of six nodes. It has publishers of messages with
// keys, and a group of subscribers.
type keyedLoad struct {
	*failover
	cluster    *redistest.Cluster
	random     *rand.Rand
	names      []string // of the plain topics, also of those to come
	partitions int
	keys       int // of a publisher
	consumers  []*faulttest.Running
	publishers []*faulttest.Running
	started    int
	histories  histories
	unplanned  bool
	operator   *admin.Admin
}

func newKeyedLoad(t *testing.T, seed uint64) *keyedLoad {
	t.Helper()
	names, err := partition.Topics("orders", partitionsAfter)
	require.NoError(t, err)
	l := &keyedLoad{
		cluster: redistest.StartCluster(t, notBySilence...), random: rand.New(rand.NewPCG(seed, 0)), names: names,
		partitions: partitionsBefore, keys: faulttest.Pick(100, 5000),
	}
	l.operator, err = admin.New(admin.Config{Client: l.cluster.Client(t)})
	require.NoError(t, err)
	_, err = l.operator.SetPartitions(t.Context(), "orders", l.partitions)
	require.NoError(t, err)
	w := faulttest.NewWorld(t, faulttest.Place{Addrs: l.cluster.Addrs(), Cluster: true}, func(w *faulttest.World) {
		w.Topics, w.Groups, w.SingleActive, w.Unregistered = names, []string{"g"}, true, names[partitionsBefore:]
	})
	l.failover = &failover{
		t: t, w: w, waits: true, planned: func() bool { return !l.unplanned },
		rules: faulttest.Rules{SingleActive: true, MaxDeliveries: loadDeliveries},
	}
	var workers []faulttest.Worker
	for range faulttest.Pick(3, 8) {
		workers = append(workers, l.consumer())
	}
	l.consumers = w.Start(workers...)
	do := slices.Repeat([]string{faulttest.Ack}, 23)
	do[3], do[10], do[17] = faulttest.Nack(1, -1), faulttest.Nack(2, -1), faulttest.Nack(loadDeliveries, -1)
	for i := range publishersOfKeys {
		l.publishers = append(l.publishers, w.Start(faulttest.Worker{
			Role: faulttest.Publisher, Name: fmt.Sprintf("publisher-%d", i), Topics: []string{"orders"}, Partitions: l.partitions,
			Keys: l.keys, KeySet: fmt.Sprint("key-", i), Rounds: keyRounds, Batch: 10, Callers: 2, PauseMS: faulttest.Pick(300, 120), WaitReplicas: 1,
			DelaysMS: []int{0, 300, 20, 1500, 100, 50, 700}, Do: do,
		})...)
	}
	l.histories = historiesOf(t, l.cluster.Nodes()...)
	w.Handled(100)
	return l
}

// consumer is the next subscriber of the group. Strict order needs nacks without a delay. In the
// long form it follows the number of partitions in Redis, which takes it up to 15 s.
func (l *keyedLoad) consumer() faulttest.Worker {
	l.started++
	return faulttest.Worker{
		Role: faulttest.Consumer, Name: fmt.Sprintf("consumer-%d", l.started), Topics: []string{"orders"},
		Partitions: faulttest.Pick(l.partitions, partitionsAfter), Follows: faulttest.Long(),
		Group: "g", InFlight: 1, SingleActive: true, MaxDeliveries: loadDeliveries, WorkMS: 2,
	}
}

// replace ends a subscriber, and starts another one in its place.
func (l *keyedLoad) replace(i int, end func(*faulttest.Running)) {
	l.t.Helper()
	end(l.consumers[i])
	l.consumers[i] = l.w.Start(l.consumer())[0]
}

// busy is most often the subscriber that claims most now, else any.
func (l *keyedLoad) busy() (at int) {
	l.t.Helper()
	if l.random.IntN(4) == 0 {
		return l.random.IntN(len(l.consumers))
	}
	before := make([]int, len(l.consumers))
	for i, r := range l.consumers {
		before[i] = l.w.CountOf(faulttest.Claimed, r.Name)
	}
	l.w.AwaitEvents(faulttest.Claimed, l.w.Count(faulttest.Claimed)+20)
	most := -1
	for i, r := range l.consumers {
		if n := l.w.CountOf(faulttest.Claimed, r.Name) - before[i]; n > most {
			at, most = i, n
		}
	}
	return at
}

// schedule is what fails, in order.
func (l *keyedLoad) schedule() (all []string) {
	if !faulttest.Long() {
		return []string{"a subscriber is killed", "a slot moves", "a subscriber freezes"}
	}
	for range 3 {
		names := slices.Sorted(maps.Keys(keyFaults))
		l.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		all = append(all, names...)
	}
	return all
}

var keyFaults = map[string]func(*keyedLoad){
	"a subscriber is killed": func(l *keyedLoad) { l.replace(l.busy(), (*faulttest.Running).Kill) },
	"a subscriber closes":    func(l *keyedLoad) { l.replace(l.busy(), (*faulttest.Running).Stop) },
	"a subscriber freezes": func(l *keyedLoad) {
		thaw := l.consumers[l.busy()].Freeze()
		time.Sleep(time.Second/2 + time.Duration(l.random.Int64N(int64(2*time.Second)))) // a lease is a second
		thaw()
	},
	"a replica takes over by hand": func(l *keyedLoad) {
		owner, replica := l.somewhere()
		takeOver(l.t, replica)
		follows(owner)
		l.histories.takenOver(l.t, owner, replica)
	},
	"a primary is killed": func(l *keyedLoad) {
		owner, replica := l.somewhere()
		topics := on(l.cluster, owner, l.names)
		l.safe = time.Now().UnixNano()
		reached := offset(l.t, owner, "master_repl_offset")
		faulttest.Eventually(l.t, func() bool { return offset(l.t, replica, "slave_repl_offset") >= reached }, time.Minute, time.Millisecond)
		owner.Kill()
		l.lost(topics...)
		replica.AwaitInfo("role:master")
		owner.Restart()
		follows(owner)
		l.histories.takenOver(l.t, owner, replica)
	},
	"a slot moves": func(l *keyedLoad) {
		name := l.names[l.random.IntN(l.partitions)]
		from, _ := l.cluster.Owner("{" + name + "}")
		others := slices.DeleteFunc(l.primaries(), func(in *redistest.Instance) bool { return in == from })
		to := others[l.random.IntN(len(others))]
		l.w.During("a slot moves", func() { moveSlot(l.t, l.cluster, "{"+name+"}", to).finish() })
		now, _ := l.cluster.Owner("{" + name + "}")
		require.Equal(l.t, to, now)
	},
}

// follows waits until a node is a replica that has all.
func follows(in *redistest.Instance) {
	in.AwaitInfo("role:slave")
	in.AwaitInfo("master_link_status:up")
}

// somewhere is the primary of a random partition, and its replica.
func (l *keyedLoad) somewhere() (owner, replica *redistest.Instance) {
	l.t.Helper()
	name := l.names[l.random.IntN(l.partitions)]
	faulttest.Eventually(l.t, func() bool {
		owner, replica = l.cluster.Owner("{" + name + "}")
		return replica != nil
	}, time.Minute, 10*time.Millisecond)
	return owner, replica
}

// primaries are those that have partitions.
func (l *keyedLoad) primaries() (all []*redistest.Instance) {
	l.t.Helper()
	owners := map[*redistest.Instance]bool{}
	for _, name := range l.names {
		owner, _ := l.cluster.Owner("{" + name + "}")
		owners[owner] = true
	}
	for _, in := range l.cluster.Nodes() {
		if owners[in] {
			all = append(all, in)
		}
	}
	return all
}

// checkHistories notes if there was a failover that is not the test's.
func (l *keyedLoad) checkHistories() {
	l.t.Helper()
	l.unplanned = l.unplanned || !maps.Equal(l.histories, historiesOf(l.t, l.cluster.Nodes()...))
}

// grow does the next step of a change of the number of partitions, and returns whether it is done.
// Subscribers are first, as docs/scale.md says.
func (l *keyedLoad) grow() (done bool) {
	l.t.Helper()
	if !faulttest.Long() {
		if l.partitions == partitionsBefore {
			l.partitions = partitionsAfter
			for i := range l.consumers {
				l.replace(i, (*faulttest.Running).Stop)
			}
			l.growPublishers()
		}
		return true
	}
	now, err := l.operator.SetPartitions(l.t.Context(), "orders", partitionsAfter)
	require.NoError(l.t, err)
	if now.Partitions == partitionsAfter && l.partitions == partitionsBefore {
		l.partitions = partitionsAfter
		l.growPublishers()
	}
	return now.Done()
}

// growPublishers has other publishers go on, with the new number. They begin with the keys that
// have messages which wait.
func (l *keyedLoad) growPublishers() {
	l.t.Helper()
	for i, r := range l.publishers {
		r.Stop()
		worker, published := r.Worker, l.w.CountOf(faulttest.Publish, r.Name)
		worker.Name += "-grown"
		worker.Partitions = l.partitions
		worker.First = max(0, published-faulttest.KeysAtOnce*keyRounds)
		l.publishers[i] = l.w.Start(worker)[0]
	}
}

// grown counts the messages that were published to new partitions.
func (l *keyedLoad) grown() (n int) {
	l.t.Helper()
	for _, e := range l.w.History() {
		if e.Kind == faulttest.Published && slices.Contains(l.names[partitionsBefore:], e.Topic) {
			n++
		}
	}
	require.Positive(l.t, n)
	return n
}
