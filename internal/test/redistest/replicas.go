package redistest

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

// StartReplicated starts a server and replicas of it, and returns when the replicas are
// synchronised. args are added to the command line of each.
func StartReplicated(t testing.TB, replicas int, args ...string) (primary *Instance, others []*Instance) {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	primary = Start(t, args...)
	for range replicas {
		others = append(others, Start(t, append(args, "--replicaof", "127.0.0.1", primary.Port())...))
	}
	for _, replica := range others {
		replica.AwaitInfo("master_link_status:up")
	}
	return primary, others
}

// AwaitInfo waits until INFO replication of the server contains a line.
func (in *Instance) AwaitInfo(line string) {
	in.t.Helper()
	client := in.Client(in.t)
	defer client.Close()
	in.await(line, func() bool {
		return strings.Contains(client.Info(context.Background(), "replication").Val(), line+"\r\n")
	})
}

// await fails the test if the condition is not true within startTimeout.
func (in *Instance) await(what string, holds func() bool) {
	in.t.Helper()
	if !comes(holds) {
		in.t.Fatalf("redistest: %s: not after %v: %s", in.Addr(), startTimeout, what)
	}
}

// comes returns whether the condition becomes true within startTimeout.
func comes(holds func() bool) bool {
	for deadline := time.Now().Add(startTimeout); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// PrimaryName is the Sentinels' name of the primary that they watch.
const PrimaryName = "primary"

// StartSentinels starts three Sentinels that watch a primary and its replicas. It returns their
// addresses when they can run a failover, which they do when the primary has not answered for two
// seconds. They ask a new primary for the first time after a second: if they waited no longer than
// that, they would often take it for down at once.
func StartSentinels(t testing.TB, primary *Instance, replicas ...*Instance) (addrs []string) {
	t.Helper()
	const n, quorum = 3, 2
	// Information that Sentinels otherwise exchange through the primary every two seconds.
	var ports []int
	var known []string
	for i := range n {
		ports = append(ports, FreePort())
		known = append(known, fmt.Sprintf("sentinel known-sentinel %s 127.0.0.1 %d %s", PrimaryName, ports[i], sentinelID(i)))
	}
	for _, replica := range replicas {
		known = append(known, fmt.Sprintf("sentinel known-replica %s 127.0.0.1 %s", PrimaryName, replica.Port()))
	}
	var sentinels []*Instance
	for i := range n {
		config := []string{
			"sentinel myid " + sentinelID(i),
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s %d", PrimaryName, primary.Port(), quorum),
			"sentinel down-after-milliseconds " + PrimaryName + " 2000",
			"sentinel failover-timeout " + PrimaryName + " 5000",
		}
		for j, line := range known {
			if j != i {
				config = append(config, line)
			}
		}
		in := &Instance{t: t, config: strings.Join(config, "\n"), args: []string{"--sentinel"}}
		sentinels = append(sentinels, in.start(func() int { return ports[i] }))
	}
	for _, in := range sentinels {
		client := in.Client(t)
		in.await("the Sentinels agree", func() bool {
			text, err := client.Do(context.Background(), "SENTINEL", "CKQUORUM", PrimaryName).Text()
			if err != nil || !strings.HasPrefix(text, fmt.Sprintf("OK %d ", n)) {
				return false
			}
			known, err := client.Do(context.Background(), "SENTINEL", "REPLICAS", PrimaryName).Slice()
			return err == nil && strings.Count(fmt.Sprint(known), "master-link-status:ok ") == len(replicas)
		})
		addrs = append(addrs, in.Addr())
	}
	return addrs
}

func sentinelID(i int) string {
	return hex.EncodeToString(bytes.Repeat([]byte{byte(i + 1)}, 20))
}
