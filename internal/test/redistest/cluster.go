package redistest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// slotCount is the number of slots in a cluster.
const slotCount = 16384

// Cluster is a real Redis Cluster for one test. It ends like an Instance.
type Cluster struct {
	t         testing.TB
	Primaries []*Instance // at the start; failovers change the roles
	Replicas  []*Instance // one for each primary
}

// StartCluster starts a cluster of three primaries, each with a third of the slots and one replica.
// args are added to the command line of each node. It returns when all nodes agree. A node counts
// as failed after a second without an answer.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	const primaries = 3
	c := &Cluster{t: t}
	args = append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	for i := range 2 * primaries {
		in := Start(t, args...)
		if i < primaries {
			c.Primaries = append(c.Primaries, in)
		} else {
			c.Replicas = append(c.Replicas, in)
		}
	}
	for i, in := range c.Nodes() {
		c.do(in, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < primaries {
			first, end := i*slotCount/primaries, (i+1)*slotCount/primaries
			add := []any{"CLUSTER", "ADDSLOTS"}
			for slot := first; slot < end; slot++ {
				add = append(add, slot)
			}
			c.do(in, add...)
		}
	}
	for i, in := range c.Nodes() { // each to each, because gossip takes its time
		for _, other := range c.Nodes()[i+1:] {
			c.do(in, "CLUSTER", "MEET", "127.0.0.1", other.Port())
		}
	}
	for _, in := range c.Nodes() {
		c.await(in, "nodes know one another", func(node redis.UniversalClient) bool {
			nodes := node.ClusterNodes(context.Background()).Val()
			return strings.Count(nodes, " connected") == 2*primaries && !strings.Contains(nodes, "handshake")
		})
	}
	for i, replica := range c.Replicas {
		c.do(replica, "CLUSTER", "REPLICATE", c.ID(c.Primaries[i]))
	}
	for i, replica := range c.Replicas {
		replica.AwaitInfo("master_link_status:up")
		c.Primaries[i].AwaitInfo("connected_slaves:1")
	}
	for _, in := range c.Nodes() {
		c.await(in, "every slot with a replica", func(node redis.UniversalClient) bool {
			owners := node.ClusterSlots(context.Background()).Val()
			return len(owners) == primaries && !slices.ContainsFunc(owners, func(owner redis.ClusterSlot) bool {
				return len(owner.Nodes) != 2
			}) && strings.Contains(node.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
		})
	}
	return c
}

// Nodes returns all nodes, the primaries first.
func (c *Cluster) Nodes() []*Instance {
	return slices.Concat(c.Primaries, c.Replicas)
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (addrs []string) {
	for _, in := range c.Nodes() {
		addrs = append(addrs, in.Addr())
	}
	return addrs
}

// Client returns a new client of the cluster, closed when t ends. A node that is down costs it no
// retries of dialing.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// ID returns the cluster's ID of a node.
func (c *Cluster) ID(in *Instance) string {
	c.t.Helper()
	return fmt.Sprint(c.do(in, "CLUSTER", "MYID"))
}

// Owner returns the primary that says it has the slot of a key, and its replica if it has one.
func (c *Cluster) Owner(key string) (primary, replica *Instance) {
	c.t.Helper()
	for _, asked := range c.Nodes() {
		var client redis.UniversalClient = redis.NewClient(&redis.Options{Addr: asked.Addr(), MaxRetries: -1, DialerRetries: 1})
		slot := int(client.ClusterKeySlot(context.Background(), key).Val())
		owners := client.ClusterSlots(context.Background()).Val() // none if the node is down
		_ = client.Close()
		for _, owner := range owners {
			if owner.Nodes[0].Addr != asked.Addr() || slot < owner.Start || owner.End < slot {
				continue
			}
			for _, node := range owner.Nodes[1:] {
				replica = c.at(node.Addr)
			}
			return asked, replica
		}
	}
	c.t.Fatalf("redistest: nobody has the slot of %q", key)
	return nil, nil
}

func (c *Cluster) at(addr string) *Instance {
	for _, in := range c.Nodes() {
		if in.Addr() == addr {
			return in
		}
	}
	c.t.Fatalf("redistest: the cluster has a node at %s, which is not the test's", addr)
	return nil
}

// await waits until a condition on a node is true.
func (c *Cluster) await(in *Instance, what string, holds func(redis.UniversalClient) bool) {
	c.t.Helper()
	client := in.Client(c.t)
	defer client.Close()
	in.await(what, func() bool { return holds(client) })
}

// do runs a command on a node, and fails the test if that fails.
func (c *Cluster) do(in *Instance, args ...any) any {
	c.t.Helper()
	client := in.Client(c.t)
	defer client.Close()
	reply, err := client.Do(context.Background(), args...).Result()
	if err != nil {
		c.t.Fatalf("redistest: %s: %.40v: %v", in.Addr(), args, err)
	}
	return reply
}
