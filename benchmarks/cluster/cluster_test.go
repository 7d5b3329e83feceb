// Package cluster measures what a Cluster of six nodes costs, and what its wake-ups do. It is a
// test so that the servers end with it. Run by `make bench-cluster`.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/test/clusterload"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// smoke has all be tiny, to show that it works.
var smoke = os.Getenv("BENCH_CLUSTER") == "smoke"

// some is n, or a fiftieth of it, but at least 1.
func some[N int | time.Duration](n N) N {
	if smoke {
		return max(n/50, 1)
	}
	return n
}

func start(t *testing.T) (*redistest.Cluster, *redis.ClusterClient) {
	if os.Getenv("BENCH_CLUSTER") == "" {
		t.Skip("set BENCH_CLUSTER, as make bench-cluster does")
	}
	if smoke { // figures mean nothing then
		t.Parallel()
	}
	c := redistest.StartCluster(t, "--cluster-node-timeout", "15000", "--slowlog-log-slower-than", "0")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	return c, client
}

// info returns a number of INFO, summed over nodes.
func info(t *testing.T, nodes []*redistest.Instance, fields ...string) (sum float64) {
	for _, in := range nodes {
		client := in.Client(t)
		text := client.Info(context.Background(), "everything").Val()
		_ = client.Close()
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if slices.Contains(fields, name) {
				n, _ := strconv.ParseFloat(value, 64)
				sum += n
			}
		}
	}
	return sum
}

func cpu(t *testing.T, nodes []*redistest.Instance) float64 {
	return info(t, nodes, "used_cpu_sys", "used_cpu_user") * 1e6
}

// TestLoad shows how late messages are on each node, and what they cost the servers.
func TestLoad(t *testing.T) {
	c, client := start(t)
	connections := info(t, c.Nodes(), "connected_clients")
	before := cpu(t, c.Nodes())
	time.Sleep(some(5 * time.Second))
	without := cpu(t, c.Nodes()) - before
	l, err := clusterload.Start(clusterload.Config{Client: client, PerNode: 3, Every: 20 * time.Millisecond, Delay: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(some(2 * time.Second))
	before = cpu(t, c.Nodes())
	from := time.Now()
	time.Sleep(some(20 * time.Second))
	to := time.Now()
	used, n := cpu(t, c.Nodes())-before-without*to.Sub(from).Seconds()/some(5*time.Second).Seconds(), 0
	late := l.Lateness(from, to, nil)
	for node, its := range late {
		n += len(its)
		fmt.Printf("| %s | %d | %.1f | %.1f | %.1f |\n", node, len(its),
			ms(clusterload.Quantile(its, 0.5)), ms(clusterload.Quantile(its, 0.99)), ms(its[len(its)-1]))
	}
	fmt.Printf("CPU of all nodes a message: %.0f us; connections of the process: %.0f\n", used/float64(n), info(t, c.Nodes(), "connected_clients")-connections)
	if verdict, err := l.Stop(10 * time.Second); err != nil || verdict.Lost+verdict.Doubled+verdict.Early > 0 {
		t.Fatal(verdict, err)
	}
}

// TestMany shows the same with 750 topics that four clients share, as four processes would.
func TestMany(t *testing.T) {
	c, _ := start(t)
	connections := info(t, c.Nodes(), "connected_clients")
	var loads []*clusterload.Load
	for range 4 {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
		defer client.Close()
		l, err := clusterload.Start(clusterload.Config{Client: client, PerNode: some(250), Every: 10 * time.Second, Delay: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		loads = append(loads, l)
	}
	time.Sleep(some(5 * time.Second))
	from := time.Now()
	time.Sleep(some(20 * time.Second))
	all := map[string][]time.Duration{}
	for _, l := range loads {
		for node, its := range l.Lateness(from, time.Now(), nil) {
			all[node] = append(all[node], its...)
		}
	}
	for node, its := range all {
		slices.Sort(its)
		fmt.Printf("| 750 topics, 4 clients, %s | %d | %.1f | %.1f |\n", node, len(its), ms(clusterload.Quantile(its, 0.5)), ms(clusterload.Quantile(its, 0.99)))
	}
	fmt.Printf("connections of the four: %.0f\n", info(t, c.Nodes(), "connected_clients")-connections)
	for _, l := range loads {
		_, _ = l.Stop(0)
	}
}

// TestIdle shows the commands of an idle process.
func TestIdle(t *testing.T) {
	c, client := start(t)
	l, err := clusterload.Start(clusterload.Config{Client: client, PerNode: 3, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(some(7 * time.Second))
	before := info(t, c.Primaries, "total_commands_processed")
	time.Sleep(some(20 * time.Second))
	commands := info(t, c.Primaries, "total_commands_processed") - before
	_, _ = l.Stop(0)
	l = nil
	before = info(t, c.Primaries, "total_commands_processed")
	time.Sleep(some(20 * time.Second))
	fmt.Printf("idle, 9 topics on 3 masters: %.1f commands a second\n", (commands-(info(t, c.Primaries, "total_commands_processed")-before))/some(20*time.Second).Seconds())
}

// TestMigrate shows how long MIGRATE of one key stops its node.
func TestMigrate(t *testing.T) {
	c, _ := start(t)
	for _, size := range []int{some(10_000), some(100_000), some(300_000)} {
		for _, key := range []string{"pending", "messages"} {
			var took []time.Duration
			for range 3 {
				took = append(took, migrate(t, c, key, size))
			}
			slices.Sort(took)
			fmt.Printf("| %s | %d | %v |\n", key, size, took[1].Round(100*time.Microsecond))
		}
	}
}

// nodesOf returns the node that has the topic, and another master.
func nodesOf(c *redistest.Cluster) (from, to *redistest.Instance) {
	from, _ = c.Owner("{t}")
	for _, to = range c.Primaries {
		if to != from {
			break
		}
	}
	return from, to
}

func do(t *testing.T, client redis.UniversalClient, args ...any) {
	if err := client.Do(context.Background(), args...).Err(); err != nil {
		t.Fatal(args, err)
	}
}

// fill makes a key of a topic with so many messages.
func fill(t *testing.T, client redis.UniversalClient, kind string, size int) (key string) {
	ctx := context.Background()
	key = "redisdelay:{t}:" + kind
	for first := 0; first < size; first += 1000 {
		pipe := client.Pipeline()
		for i := first; i < min(first+1000, size); i++ {
			id := fmt.Sprintf("01JDABCDEF%016d", i)
			if kind == "pending" {
				pipe.ZAdd(ctx, key, redis.Z{Score: float64(1795621355243 + i), Member: id})
			} else {
				pipe.HSet(ctx, key, id, strings.Repeat("x", 100))
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

// migrate moves a key of a topic to another node, where it deletes the key.
func migrate(t *testing.T, c *redistest.Cluster, kind string, size int) time.Duration {
	from, to := nodesOf(c)
	source, target := from.Client(t), to.Client(t)
	defer source.Close()
	defer target.Close()
	key := fill(t, source, kind, size)
	slot := source.ClusterKeySlot(context.Background(), key).Val()
	do(t, target, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ID(from))
	do(t, source, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ID(to))
	began := time.Now()
	do(t, source, "MIGRATE", "127.0.0.1", to.Port(), key, 0, 60000)
	took := time.Since(began)
	do(t, source, "CLUSTER", "SETSLOT", slot, "STABLE")
	do(t, target, "FLUSHALL")
	do(t, target, "CLUSTER", "SETSLOT", slot, "STABLE")
	return took
}

// TestAtomicMigration shows how long the nodes stop, and how long calls about the topic fail, while
// the server itself moves a slot with 300,000 messages.
func TestAtomicMigration(t *testing.T) {
	c, client := start(t)
	ctx := context.Background()
	from, to := nodesOf(c)
	source := from.Client(t)
	fill(t, source, "pending", some(300_000))
	key := fill(t, source, "messages", some(300_000))
	slot := source.ClusterKeySlot(ctx, key).Val()
	var err error
	for _, command := range [][]any{
		{"CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", c.ID(to)}, // Valkey 9, on the source
		{"CLUSTER", "MIGRATION", "IMPORT", slot, slot},                          // Redis 8.4, on the target
	} {
		at := from
		if command[1] == "MIGRATION" {
			at = to
		}
		if err = at.Client(t).Do(ctx, command...).Err(); err == nil {
			break
		}
	}
	if err != nil {
		t.Skip("the server has no atomic slot migration: ", err)
	}
	began, longest := time.Now(), map[string]time.Duration{}
	for _, in := range []*redistest.Instance{from, to} {
		node := in.Client(t)
		go func() {
			for { // until the client is closed
				sent := time.Now()
				if node.Ping(ctx).Err() != nil {
					return
				}
				pings <- ping{in.Addr(), time.Since(sent)}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	var lastGood time.Time
	var gap time.Duration
	for owner := from; owner != to; {
		select {
		case p := <-pings:
			longest[p.node] = max(longest[p.node], p.took)
			continue
		default:
		}
		sent := time.Now()
		if client.HSet(ctx, key, "new", "x").Err() == nil {
			if !lastGood.IsZero() {
				gap = max(gap, time.Since(lastGood))
			}
			lastGood = time.Now()
		}
		if time.Since(sent) < time.Millisecond {
			time.Sleep(time.Millisecond)
		}
		owner, _ = c.Owner("{t}")
	}
	fmt.Printf("atomic migration of 300,000: %v, the source stops for %v, the target for %v, a write waits for %v at most\n",
		time.Since(began).Round(time.Millisecond), longest[from.Addr()], longest[to.Addr()], gap)
}

type ping struct {
	node string
	took time.Duration
}

var pings = make(chan ping, 1000)

// TestPublish shows what a wake-up costs all nodes, by PUBLISH and by SPUBLISH from a script. It
// also shows how late it comes, on the node that publishes and over the Cluster's bus.
func TestPublish(t *testing.T) {
	c, _ := start(t)
	ctx := context.Background()
	owner, _ := c.Owner("{t}")
	other := c.Primaries[0]
	if other == owner {
		other = c.Primaries[1]
	}
	n := some(3000)
	channel := "redisdelay:mailbox:0123456789ABCDEF:{t}"
	for _, trial := range []struct {
		name, command string
		at            *redistest.Instance
	}{{"nothing", "", nil}, {"PUBLISH", "PUBLISH", owner}, {"SPUBLISH", "SPUBLISH", owner}, {"PUBLISH over the bus", "PUBLISH", other}} {
		client := owner.Client(t).(*redis.Client)
		var incoming <-chan *redis.Message
		stop := func() error { return nil }
		script := "return redis.call('SET', KEYS[1], ARGV[1])"
		if trial.at != nil {
			listening := trial.at.Client(t).(*redis.Client)
			subscribe := listening.Subscribe
			if trial.command == "SPUBLISH" {
				subscribe = listening.SSubscribe
			}
			pubsub := subscribe(ctx, channel)
			stop = func() error { return errors.Join(pubsub.Close(), listening.Close()) } // the next has the channel alone
			if _, err := pubsub.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			incoming = pubsub.Channel()
			script = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('" + trial.command + "', ARGV[2], ARGV[1])"
		}
		sha := client.ScriptLoad(ctx, script).Val()
		before, began := cpu(t, c.Nodes()), time.Now()
		time.Sleep(some(3 * time.Second))
		idle := (cpu(t, c.Nodes()) - before) / time.Since(began).Seconds()
		var late []time.Duration
		before, began = cpu(t, c.Nodes()), time.Now()
		for i := range n {
			sent := time.Now()
			if err := client.EvalSha(ctx, sha, []string{"{t}"}, i, channel).Err(); err != nil {
				t.Fatal(err)
			}
			if incoming != nil {
				<-incoming
				late = append(late, time.Since(sent))
			}
			time.Sleep(2 * time.Millisecond)
		}
		used := cpu(t, c.Nodes()) - before - idle*time.Since(began).Seconds()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(late)
		fmt.Printf("| %s | %.0f us | %.2f | %.2f |\n", trial.name, used/float64(n), ms(clusterload.Quantile(late, 0.5)), ms(clusterload.Quantile(late, 0.99)))
		_ = client.Close()
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
