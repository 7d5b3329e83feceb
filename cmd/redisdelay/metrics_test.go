package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

const metricsAddress = `msg="Answering metrics" address=(\S+)`

func TestMetricsOfATopicAreExported(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	publishOrders(t, client, topic, 3, time.Hour)
	publishOrders(t, client, "mails", 3, time.Hour)
	p := start(t, []string{"REDISDELAY_REDIS_TIMEOUT=30s"}, "metrics", topic, "--redis", mini.Addr(), "--listen", "127.0.0.1:0")
	address := p.await(metricsAddress)
	status, said := probe(t, address, "/metrics")
	require.Equal(t, http.StatusOK, status, said)
	require.Contains(t, said, `redisdelay_waiting_messages{topic="orders"} 3`)
	require.NotContains(t, said, "mails")
	for _, path := range []string{"/healthz", "/readyz"} {
		status, said = probe(t, address, path)
		require.Equal(t, http.StatusOK, status, said)
	}

	mini.SetError("LOADING")
	status, said = probe(t, address, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status, said)
	status, said = probe(t, address, "/metrics")
	require.Equal(t, http.StatusOK, status, said)
	require.Contains(t, said, "redisdelay_up 0")
	p.await("Cannot export all metrics")
	p.stop()
}

func TestARelayExportsMetrics(t *testing.T) {
	t.Parallel()
	for name, health := range map[string]string{"alone": "", "beside probes": "127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := redistest.Start(t)
			p := startRelay(t, start, store, nil, "--to", "redisstream", "--redisstream", store.Addr(), "--metrics", "localhost:0", "--health", health)
			address := p.await(metricsAddress)
			var status int
			var said string
			require.Eventually(t, func() bool { // the first claim may still be under way
				status, said = probe(t, address, "/metrics")
				return status == http.StatusOK && strings.Contains(said, `redisdelay_subscribed{group="relay",topic="orders"} 1`)
			}, 10*time.Second, 10*time.Millisecond)
			require.Contains(t, said, "\nredisdelay_redis_memory_used_bytes{")
			status, said = probe(t, address, "/healthz")
			require.Equal(t, http.StatusOK, status, said)
			if health != "" {
				status, said = p.probe("/metrics")
				require.Equal(t, http.StatusNotFound, status, said)
			}
			p.stop()
		})
	}
}

// With one address for both, one server has all.
func TestMetricsAndProbesShareAnAddress(t *testing.T) {
	t.Parallel()
	store, address := redistest.Start(t), "127.0.0.1:"+freePort(t)
	p := startRelay(t, start, store, nil, "--to", "redisstream", "--redisstream", store.Addr(), "--metrics", address, "--health", address)
	require.Equal(t, address, p.await(metricsAddress))
	require.Eventually(t, func() bool {
		status, _ := probe(t, address, "/readyz")
		return status == http.StatusOK
	}, patience, 10*time.Millisecond)
	p.stop()
}

func TestAddressOfMetricsIsChecked(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"metrics", "--redis", "localhost:1", "--listen", "9847"},
		{"relay", "--redis", "localhost:1", "--from", topic, "--to", "redisstream", "--metrics", "9847"},
	} {
		status, _, stderr := says(nil, args...)
		require.Equal(t, exitRefused, status)
		require.Contains(t, stderr, `is "9847", which is not a host:port`)
	}
	status, _, stderr := says(nil, "metrics", "--redis", "localhost:1", "--max-groups", "-1")
	require.Equal(t, exitRefused, status)
	require.Contains(t, stderr, "MaxGroups is -1")
}
