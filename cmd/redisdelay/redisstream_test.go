package main

import (
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// streams is the Redis with the streams.
type streams struct{ *redistest.Instance }

func startStreams(t *testing.T, args ...string) streams {
	t.Helper()
	return streams{redistest.Start(t, args...)}
}

func (s streams) consume(t *testing.T, topic string) *consumer {
	t.Helper()
	return consumeStream(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), topic)
}

func consumeStream(t *testing.T, client redis.UniversalClient, topic string) *consumer {
	t.Helper()
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: client, ConsumerGroup: "consumers", OldestId: "0"}, nil)
	require.NoError(t, err)
	return consume(t, subscriber, topic)
}

func inHand(t *testing.T, store *redistest.Instance) int64 {
	t.Helper()
	return store.Client(t).ZCard(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:unack:"+relay.DefaultConsumerGroup).Val()
}

// leaseEnd is when the lease of the first message that the relay has taken ends, in ms.
func leaseEnd(t *testing.T, store *redistest.Instance) float64 {
	t.Helper()
	first := store.Client(t).ZRangeWithScores(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:unack:"+relay.DefaultConsumerGroup, 0, 0).Val()
	if len(first) == 0 {
		return 0
	}
	return first[0].Score
}

func TestAllTopicsGoToTheSameRedisByOtherNames(t *testing.T) {
	t.Parallel()
	store := startStreams(t)
	p := start(t, []string{"REDISDELAY_ALL=true", "REDISDELAY_TO=redisstream", "REDISDELAY_REDIS=" + store.Addr()},
		"relay", "--map", "orders=stream:orders", "--redisstream-maxlen", "1000", "--log-format", "json")
	p.await(`"msg":"Relaying"`)
	orders := publishOrders(t, store.Client(t), "orders", 20, 100*time.Millisecond)
	refunds := publishOrders(t, store.Client(t), "refunds", 20, 100*time.Millisecond)
	requireAll(t, orders, store.consume(t, "stream:orders").await(t, 20))
	requireAll(t, refunds, store.consume(t, "refunds").await(t, 20))
	p.stop()
}

func TestProbesReportRedisAndTheBroker(t *testing.T) {
	t.Parallel()
	store, broker := redistest.Start(t), startStreams(t)
	p := startRelay(t, start, store, nil, "--to", "redisstream", "--redisstream", broker.Addr(), "--health", "127.0.0.1:0")
	require.Equal(t, "ok", p.awaitProbe("/healthz", http.StatusOK))
	require.Equal(t, "ok", p.awaitProbe("/readyz", http.StatusOK))
	status, _ := p.probe("/")
	require.Equal(t, http.StatusNotFound, status)

	broker.Kill()
	p.awaitUnready(broker.Addr())
	p.awaitProbe("/healthz", http.StatusOK)
	broker.Restart()
	p.awaitProbe("/readyz", http.StatusOK)
	store.Kill()
	p.awaitUnready(store.Addr())
	p.awaitProbe("/healthz", http.StatusOK)
	store.Restart()
	p.awaitProbe("/readyz", http.StatusOK)
	p.stop()
}

// Another process schedules the topic. If this relay were ready, a deployment would stop the one
// that works.
func TestRelayThatMayNotSubscribeIsNotReady(t *testing.T) {
	t.Parallel()
	store, broker := redistest.Start(t), startStreams(t)
	args := []string{"--to", "redisstream", "--redisstream", broker.Addr(), "--health", "127.0.0.1:0"}
	working := startRelay(t, start, store, nil, args...)
	working.awaitProbe("/readyz", http.StatusOK)
	require.NoError(t, store.Client(t).ACLSetUser(t.Context(), "relay", "on", ">secret", "~*", "&*", "+@all", "-lpush").Err())
	p := startRelay(t, start, store, []string{"REDISDELAY_REDIS_PASSWORD=secret"}, append(args, "--redis-username", "relay")...)
	p.await("Cannot subscribe")
	p.awaitUnready("+lpush")
	p.stop()
	working.stop()
}

func TestThereIsNoEndpointByDefault(t *testing.T) {
	t.Parallel()
	store := startStreams(t)
	p := startRelay(t, start, store.Instance, nil, "--to", "redisstream")
	p.stop()
	require.NotContains(t, p.said(), "probes")

	used := start(t, nil, "relay", "--redis", store.Addr(), "--from", topic, "--to", "redisstream", "--health", store.Addr())
	require.Equal(t, exitFailed, used.wait())
	require.Contains(t, used.said(), "--health: listen tcp "+store.Addr())
}

// untilTheRelayHas waits until the relay itself holds n messages, not only its subscription. It has
// short leases, and an extended lease proves this.
func untilTheRelayHas(t *testing.T, store *redistest.Instance, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return inHand(t, store) == n }, patience, time.Millisecond)
	ends := leaseEnd(t, store)
	require.Eventually(t, func() bool { return leaseEnd(t, store) > ends }, patience, time.Millisecond)
}

// holding starts a relay that holds a message for which the broker does not answer.
func holding(t *testing.T, args ...string) (p *tool, store *redistest.Instance, broker streams, orders map[string]order) {
	t.Helper()
	store, broker = redistest.Start(t), startStreams(t)
	p = startRelay(t, start, store, nil, append([]string{"--to", "redisstream", "--redisstream", broker.Addr(), "--health", "127.0.0.1:0",
		"--lease", "1s"}, args...)...)
	broker.Pause()
	t.Cleanup(broker.Resume)
	orders = publishOrders(t, store.Client(t), topic, 1, time.Millisecond)
	untilTheRelayHas(t, store, 1)
	p.signal()
	p.await(`msg="Stopping`)
	require.Equal(t, "the program is stopping", p.awaitProbe("/readyz", http.StatusServiceUnavailable))
	p.awaitProbe("/healthz", http.StatusOK)
	return p, store, broker, orders
}

func TestHeldMessagesArePublishedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	p, store, broker, orders := holding(t)
	broker.Resume()
	require.Zero(t, p.wait())
	require.Zero(t, inHand(t, store))
	requireAll(t, orders, broker.consume(t, topic).await(t, 1))
}

// The lines of a message that a relay leaves to its lease when it ends.
const (
	givenUp   = "not settled within CloseTimeout"
	leaseLost = "The lease of a message was lost"
)

func TestMessagesLeftToTheirLeasesAreLogged(t *testing.T) {
	t.Parallel()
	store, broker := redistest.Start(t), startStreams(t)
	p := startRelay(t, start, store, nil, "--to", "redisstream", "--redisstream", broker.Addr(), "--stop-timeout", "2s",
		"--lease", "1s", "--backoff", "1h")
	broker.Pause()
	t.Cleanup(broker.Resume)
	publishOrders(t, store.Client(t), topic, 10, time.Millisecond)
	untilTheRelayHas(t, store, 10)
	p.signal()
	require.Zero(t, p.wait())
	said := p.said()
	if !strings.Contains(said, leaseLost) {
		require.Equal(t, inHand(t, store) > 0, strings.Contains(said, givenUp))
	}
	named := map[string]bool{}
	for _, found := range regexp.MustCompile("(?m)("+givenUp+"|"+leaseLost+").* message_uuid=(\\S+)").FindAllStringSubmatch(said, -1) {
		named[found[2]] = true
	}
	require.GreaterOrEqual(t, len(named), int(inHand(t, store)), "each has a line, also if its lease was over before the timeout")
	require.Contains(t, said, "msg=Ended\n")
}

func TestSecondSignalEndsItAtOnce(t *testing.T) {
	t.Parallel()
	p, store, broker, orders := holding(t)
	p.signal()
	p.wait()
	require.Equal(t, syscall.SIGTERM, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.EqualValues(t, 1, inHand(t, store), "it is another's when the lease is over")
	broker.Resume()
	startRelay(t, start, store, nil, "--to", "redisstream", "--redisstream", broker.Addr())
	for _, a := range broker.consume(t, topic).await(t, 1) { // the paused one may have taken it too
		require.Contains(t, orders, a.uuid)
	}
}

func TestRedisWithTLSAndAPassword(t *testing.T) {
	t.Parallel()
	certs, port, password := newCertificates(t), freePort(t), "hunter2"
	store := redistest.Start(t, "--tls-port", port, "--tls-cert-file", certs.serverCert, "--tls-key-file", certs.serverKey,
		"--tls-ca-cert-file", certs.ca, "--tls-auth-clients", "yes",
		"--user", "relay", "on", ">"+password, "~*", "&*", "+@all", "--user", "default", "on", "nopass", "+ping")
	connection := []string{"--redis", "localhost:" + port, "--redis-username", "relay", "--redis-tls",
		"--redis-tls-ca", certs.ca, "--redis-tls-cert", certs.clientCert, "--redis-tls-key", certs.clientKey}
	args := func(more ...string) []string {
		return append(append([]string{"relay", "--from", topic, "--to", "redisstream", "--health", "127.0.0.1:0", "--log-level", "debug"}, connection...), more...)
	}
	byFile := []string{"REDISDELAY_REDIS_PASSWORD_FILE=" + file(t, password+"\n")}

	p := start(t, byFile, args("--redis-tls-server-name", certifiedName)...)
	p.awaitProbe("/readyz", http.StatusOK)
	client := redis.NewClient(&redis.Options{Addr: store.Addr(), Username: "relay", Password: password})
	t.Cleanup(func() { _ = client.Close() })
	orders := publishOrders(t, client, topic, 50, 100*time.Millisecond)
	requireAll(t, orders, consumeStream(t, redis.NewClient(client.Options()), topic).await(t, 50))
	p.stop()
	require.NotContains(t, p.said(), "hunter2")

	// Wrong credentials do not connect, and the log says why.
	other := start(t, byFile, args()...)
	other.awaitUnready("certificate")
	wrong := start(t, []string{"REDISDELAY_REDIS_PASSWORD=hunter3"}, args("--redis-tls-server-name", certifiedName)...)
	wrong.awaitUnready("WRONGPASS")
	wrong.stop()
	require.NotContains(t, wrong.said(), "hunter")
	insecure := start(t, byFile, args("--redis-tls-insecure")...)
	insecure.awaitProbe("/readyz", http.StatusOK)
	require.Contains(t, insecure.said(), "level=WARN")
	require.Contains(t, insecure.said(), "--redis-tls-insecure")
}

// bodies returns the number of messages in the store.
func bodies(t *testing.T, store *redistest.Instance) int64 {
	t.Helper()
	return store.Client(t).HLen(t.Context(), redisdelay.DefaultKeyPrefix+":{"+topic+"}:messages").Val()
}
