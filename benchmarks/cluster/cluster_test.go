// Package cluster measures what a Cluster of six nodes costs, and what its wake-ups do. It is a
// test so that the servers end with it. Run by `make bench-cluster`.
package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/clusterload"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func start(t *testing.T) (*redistest.Cluster, *redis.ClusterClient) {
	if os.Getenv("BENCH_CLUSTER") == "" {
		t.Skip("set BENCH_CLUSTER, as make bench-cluster does")
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
	time.Sleep(5 * time.Second)
	without := cpu(t, c.Nodes()) - before
	l, err := clusterload.Start(clusterload.Config{Client: client, PerNode: 3, Every: 20 * time.Millisecond, Delay: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	before = cpu(t, c.Nodes())
	from := time.Now()
	time.Sleep(20 * time.Second)
	to := time.Now()
	used, n := cpu(t, c.Nodes())-before-without*to.Sub(from).Seconds()/5, 0
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

// TestIdle shows the commands of an idle process.
func TestIdle(t *testing.T) {
	c, client := start(t)
	l, err := clusterload.Start(clusterload.Config{Client: client, PerNode: 3, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(7 * time.Second)
	before := info(t, c.Primaries, "total_commands_processed")
	time.Sleep(20 * time.Second)
	commands := info(t, c.Primaries, "total_commands_processed") - before
	_, _ = l.Stop(0)
	l = nil
	before = info(t, c.Primaries, "total_commands_processed")
	time.Sleep(20 * time.Second)
	fmt.Printf("idle, 9 topics on 3 masters: %.1f commands a second\n", (commands-(info(t, c.Primaries, "total_commands_processed")-before))/20)
}

// TestMigrate shows how long MIGRATE of one key stops its node.
func TestMigrate(t *testing.T) {
	c, _ := start(t)
	for _, size := range []int{10_000, 100_000, 300_000} {
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

// migrate moves a key of a topic to another node, and back again by deleting it there.
func migrate(t *testing.T, c *redistest.Cluster, kind string, size int) time.Duration {
	ctx, key := context.Background(), "redisdelay:{t}:"+kind
	from, _ := c.Owner("{t}")
	to := c.Primaries[0]
	if to == from {
		to = c.Primaries[1]
	}
	source, target := from.Client(t), to.Client(t)
	defer source.Close()
	defer target.Close()
	slot := source.ClusterKeySlot(ctx, key).Val()
	for first := 0; first < size; first += 1000 {
		pipe := source.Pipeline()
		for i := first; i < first+1000; i++ {
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
	do := func(client redis.UniversalClient, args ...any) {
		if err := client.Do(ctx, args...).Err(); err != nil {
			t.Fatal(args, err)
		}
	}
	do(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ID(from))
	do(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ID(to))
	began := time.Now()
	do(source, "MIGRATE", "127.0.0.1", to.Port(), key, 0, 60000)
	took := time.Since(began)
	do(source, "CLUSTER", "SETSLOT", slot, "STABLE")
	do(target, "FLUSHALL")
	do(target, "CLUSTER", "SETSLOT", slot, "STABLE")
	return took
}

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
	const n = 3000
	channel := "redisdelay:mailbox:0123456789ABCDEF:{t}"
	for _, trial := range []struct {
		name, command string
		at            *redistest.Instance
	}{{"nothing", "", nil}, {"PUBLISH", "PUBLISH", owner}, {"SPUBLISH", "SPUBLISH", owner}, {"PUBLISH over the bus", "PUBLISH", other}} {
		client := owner.Client(t).(*redis.Client)
		var incoming <-chan *redis.Message
		script := "return redis.call('SET', KEYS[1], ARGV[1])"
		if trial.at != nil {
			listening := trial.at.Client(t).(*redis.Client)
			defer listening.Close()
			subscribe := listening.Subscribe
			if trial.command == "SPUBLISH" {
				subscribe = listening.SSubscribe
			}
			pubsub := subscribe(ctx, channel)
			defer pubsub.Close()
			if _, err := pubsub.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			incoming = pubsub.Channel()
			script = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('" + trial.command + "', ARGV[2], ARGV[1])"
		}
		sha := client.ScriptLoad(ctx, script).Val()
		before, began := cpu(t, c.Nodes()), time.Now()
		time.Sleep(3 * time.Second)
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
		slices.Sort(late)
		fmt.Printf("| %s | %.0f us | %.2f | %.2f |\n", trial.name, used/n, ms(clusterload.Quantile(late, 0.5)), ms(clusterload.Quantile(late, 0.99)))
		_ = client.Close()
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
