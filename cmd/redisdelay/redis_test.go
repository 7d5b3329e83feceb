package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestRedisAsACluster(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t, "--cluster-enabled", "yes")
	require.NoError(t, store.Client(t).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	require.Eventually(t, func() bool {
		return store.Client(t).ClusterInfo(t.Context()).Val()[:len("cluster_state:ok")] == "cluster_state:ok"
	}, patience, 10*time.Millisecond)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{store.Addr()}})
	t.Cleanup(func() { _ = client.Close() })

	p := start(t, nil, "relay", "--redis", store.Addr(), "--redis-cluster", "--from", topic, "--to", "redisstream")
	orders := publishOrders(t, client, topic, 20, 100*time.Millisecond)
	requireAll(t, orders, consumeStream(t, redis.NewClusterClient(client.Options()), topic).await(t, 20))
	requireLooks(t, nil, "--redis", store.Addr(), "--redis-cluster")
	p.stop()
}

func TestRedisBySentinels(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t, "--user", "relay", "on", ">hunter2", "~*", "&*", "+@all")
	var sentinels []string
	for range 2 {
		sentinels = append(sentinels, startSentinel(t, store.Addr(), "hunter3"))
	}
	environment := []string{"REDISDELAY_REDIS_PASSWORD=hunter2", "REDISDELAY_REDIS_SENTINEL_PASSWORD_FILE=" + file(t, "hunter3")}
	p := start(t, environment, "relay", "--redis", sentinels[0]+","+sentinels[1], "--redis-sentinel-master", "main",
		"--redis-username", "relay", "--from", topic, "--to", "redisstream")
	orders := publishOrders(t, store.Client(t), topic, 20, 100*time.Millisecond)
	requireAll(t, orders, streams{store}.consume(t, topic).await(t, 20))
	requireLooks(t, environment, "--redis", sentinels[0]+","+sentinels[1], "--redis-sentinel-master", "main", "--redis-username", "relay")
	p.stop()
}

// requireLooks requires that an operator's command sees the topic with these settings.
func requireLooks(t *testing.T, environment []string, settings ...string) {
	t.Helper()
	var out, errs strings.Builder
	status := run(t.Context(), append([]string{"groups", "ls", topic}, settings...), system{environment: environment, stdin: strings.NewReader(""), stdout: &out, stderr: &errs})
	require.Zero(t, status, errs.String())
	require.Contains(t, out.String(), topic+"  relay")
}

// startSentinel starts a Sentinel that knows the server as "main", and returns its address.
func startSentinel(t *testing.T, server, password string) string {
	t.Helper()
	host, serverPort, err := net.SplitHostPort(server)
	require.NoError(t, err)
	dir, port := t.TempDir(), freePort(t)
	config := filepath.Join(dir, "sentinel.conf")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nrequirepass %s\nsentinel monitor main %s %s 1\n",
		port, dir, password, host, serverPort)), 0o600))
	bin := os.Getenv("REDIS_SERVER_BIN")
	if bin == "" {
		bin = "redis-server"
	}
	sentinel := exec.Command(bin, config, "--sentinel")
	require.NoError(t, sentinel.Start())
	t.Cleanup(func() {
		_ = sentinel.Process.Kill()
		_ = sentinel.Wait()
	})
	return net.JoinHostPort("127.0.0.1", port)
}

// A Redis that accepts connections but never answers does not prevent the program from ending.
func TestSilentRedisDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	store, asked := silent(t)
	p := start(t, nil, "relay", "--redis", store, "--from", "a,b,c,d,e,f", "--stop-timeout", "1s",
		"--to", "redisstream", "--redisstream", store)
	p.await("msg=Relaying")
	for range 6 {
		<-asked
	}
	began := time.Now()
	p.signal()
	p.wait()
	require.Less(t, time.Since(began), 6*time.Second)
}
