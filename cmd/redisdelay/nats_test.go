package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// natsBroker is a NATS server with JetStream in this process.
type natsBroker struct {
	options *natsserver.Options
	running *natsserver.Server
}

func startNATS(t *testing.T, change ...func(*natsserver.Options)) *natsBroker {
	t.Helper()
	b := &natsBroker{options: &natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	}}
	for _, f := range change {
		f(b.options)
	}
	b.up(t)
	t.Cleanup(b.down)
	return b
}

func (b *natsBroker) up(t *testing.T) {
	t.Helper()
	var err error
	b.running, err = natsserver.NewServer(b.options)
	require.NoError(t, err)
	b.running.Start()
	require.True(t, b.running.ReadyForConnections(patience))
}

func (b *natsBroker) down() {
	b.running.Shutdown()
	b.running.WaitForShutdown()
}

func (b *natsBroker) addr() string { return b.running.Addr().String() }
func (b *natsBroker) url() string  { return "nats://" + b.addr() }

// stream creates a stream for a topic, and returns a handle on JetStream.
func (b *natsBroker) stream(t *testing.T, config natsclient.StreamConfig, options ...natsclient.Option) natsclient.JetStreamContext {
	t.Helper()
	client, err := natsclient.Connect(b.url(), options...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	js, err := client.JetStream()
	require.NoError(t, err)
	_, err = js.AddStream(&config)
	require.NoError(t, err)
	return js
}

func (b *natsBroker) consume(t *testing.T, topic string) *consumer {
	t.Helper()
	subscriber, err := nats.NewSubscriber(nats.SubscriberConfig{
		URL:       b.url(),
		JetStream: nats.JetStreamConfig{AutoProvision: true, DurablePrefix: "consumers"},
	}, nil)
	require.NoError(t, err)
	return consume(t, subscriber, topic)
}

func TestToNATS(t *testing.T) {
	t.Parallel()
	broker := startNATS(t)
	relaysOverAStop(t, start, broker.consume(t, topic), []string{"REDISDELAY_NATS=" + broker.url()}, "--to", "nats")
}

func TestNATSStartsLaterAndRestarts(t *testing.T) {
	t.Parallel()
	store, port := redistest.Start(t), freePort(t)
	p := startRelay(t, start, store, nil, "--to", "nats", "--nats", "nats://127.0.0.1:"+port, "--nats-provision", "--health", "127.0.0.1:0",
		"--backoff", "20ms")
	p.awaitUnready("no connection to NATS")
	orders := publishOrders(t, store.Client(t), topic, 10, time.Millisecond)
	p.await("The destination fails to take messages")

	broker := startNATS(t, func(o *natsserver.Options) { o.Port = listens(t, port) })
	requireAll(t, orders, broker.consume(t, topic).await(t, 10))
	p.awaitProbe("/readyz", http.StatusOK)
	broker.down()
	p.awaitProbe("/readyz", http.StatusServiceUnavailable)
	broker.up(t)
	p.awaitProbe("/readyz", http.StatusOK)
	p.stop()
}

// A device in the network may drop a connection without notice to either side.
func TestSilentlyLostConnectionToNATSIsMadeAgain(t *testing.T) {
	t.Parallel()
	address, connected := forgetfulNATS(t)
	kind := reading(t, nil, "--nats", "nats://"+address).kinds["nats"].(*natsKind)
	require.Equal(t, 5*time.Second, kind.ping)
	kind.ping = 20 * time.Millisecond
	to, err := kind.open(1, quiet())
	require.NoError(t, err)
	defer to.Close()
	for range 2 {
		select {
		case <-connected:
		case <-time.After(patience):
			require.FailNow(t, "nobody connects")
		}
	}
}

// forgetfulNATS is a server that greets each client and then never answers. It reports each
// connection.
func forgetfulNATS(t *testing.T) (address string, connected <-chan struct{}) {
	t.Helper()
	told := make(chan struct{}, 1000)
	return serving(t, func(connection net.Conn) {
		_, _ = io.WriteString(connection, `INFO {"server_id":"forgetful","version":"2.12.0","headers":true,"max_payload":1048576}`+"\r\n")
		for lines := bufio.NewScanner(connection); lines.Scan(); {
			if lines.Text() == "PING" {
				_, _ = io.WriteString(connection, "PONG\r\n")
				told <- struct{}{}
				return
			}
		}
	}), told
}

func TestMissingStreamLosesNothing(t *testing.T) {
	t.Parallel()
	store, broker := redistest.Start(t), startNATS(t)
	p := startRelay(t, start, store, nil, "--to", "nats", "--nats", broker.url(), "--backoff", "20ms")
	orders := publishOrders(t, store.Client(t), topic, 10, time.Millisecond)
	require.Contains(t, p.await(`error="(.*no response from stream)"`), topic)
	requireAll(t, orders, broker.consume(t, topic).await(t, 10))
	p.stop()
}

func TestStreamsAreCreatedForTopicsInNone(t *testing.T) {
	t.Parallel()
	broker := startNATS(t)
	js := broker.stream(t, natsclient.StreamConfig{Name: "ALL", Subjects: []string{"orders", "orders.>"}})
	to, err := reading(t, nil, "--nats", broker.url(), "--nats-provision").kinds["nats"].open(1, quiet())
	require.NoError(t, err)
	defer to.Close()
	require.Eventually(t, func() bool { return to.check(t.Context()) == nil }, patience, time.Millisecond)
	holds := func(stream string) uint64 {
		t.Helper()
		info, err := js.StreamInfo(stream)
		require.NoError(t, err)
		return info.State.Msgs
	}
	for _, name := range []string{"orders", "orders.paid", "other", "other.paid", `other/\.unpaid`} {
		require.NoError(t, to.Publish(name, message1(), message1()), name)
		require.NoError(t, to.Publish(name, message1()), name)
	}
	require.EqualValues(t, 6, holds("ALL"))
	for _, stream := range []string{"other", "other_paid", "other___unpaid"} {
		require.EqualValues(t, 3, holds(stream), stream)
	}
	require.NoError(t, js.DeleteStream("other"))
	require.Error(t, to.Publish("other", message1()))
	require.NoError(t, to.Publish("other", message1()), "it is made again")
	require.EqualValues(t, 1, holds("other"))

	require.Error(t, to.Publish("wild.*", message1()))
	_, err = js.StreamNameBySubject("wild.fire")
	require.ErrorIs(t, err, natsclient.ErrNoMatchingStream, "it would have other topics too")
}

// A message relayed twice is in the stream once. Two messages with the same UUID are both in the
// stream.
func TestStreamDropsDuplicatesOnly(t *testing.T) {
	t.Parallel()
	broker := startNATS(t)
	js := broker.stream(t, natsclient.StreamConfig{Name: topic})
	r := reading(t, nil, "--nats", broker.url())
	to, err := r.kinds["nats"].open(1, quiet())
	require.NoError(t, err)
	defer to.Close()
	publish := func(id string) {
		msg := message.NewMessage("the same", []byte("x"))
		msg.Metadata.Set(relay.IDKey, id)
		require.NoError(t, to.Publish(topic, msg))
	}
	publish("1")
	publish("1")
	publish("2")
	info, err := js.StreamInfo(topic)
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs)
}

// Relays of two groups publish the same message.
func TestSameMessageIsInTwoSubjectsOfAStream(t *testing.T) {
	t.Parallel()
	broker := startNATS(t)
	js := broker.stream(t, natsclient.StreamConfig{Name: "all", Subjects: []string{"orders.>"}})
	to, err := reading(t, nil, "--nats", broker.url()).kinds["nats"].open(1, quiet())
	require.NoError(t, err)
	defer to.Close()
	for _, subject := range []string{"orders.billing", "orders.shipping"} {
		msg := message.NewMessage("the same", []byte("x"))
		msg.Metadata.Set(relay.IDKey, "1")
		require.NoError(t, to.Publish(subject, msg))
	}
	info, err := js.StreamInfo("all")
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs)
}

func TestMessageRefusedByNATSForGoodIsDead(t *testing.T) {
	t.Parallel()
	broker := startNATS(t, func(o *natsserver.Options) { o.MaxPayload = 100_000 })
	broker.stream(t, natsclient.StreamConfig{Name: topic, MaxMsgSize: 1000})
	broker.stream(t, natsclient.StreamConfig{Name: "large"})
	to, err := reading(t, nil, "--nats", broker.url()).kinds["nats"].open(1, quiet())
	require.NoError(t, err)
	defer to.Close()
	require.Eventually(t, func() bool { return to.check(t.Context()) == nil }, patience, time.Millisecond)
	for size, permanent := range map[int]bool{100: false, 1500: true, 101_000: true} {
		err := to.Publish(topic, message.NewMessage("order", []byte(strings.Repeat("x", size))))
		require.Equal(t, permanent, err != nil, "%d bytes: %v", size, err)
		require.Equal(t, permanent, err != nil && to.permanent(err), "%d bytes: %v", size, err)
	}
	odd := message.NewMessage("order", nil)
	odd.Metadata.Set("order number", "1")
	err = to.Publish(topic, odd)
	require.ErrorContains(t, err, `metadata key "order number"`)
	require.True(t, to.permanent(err))
	headed := message.NewMessage("order", nil)
	headed.Metadata.Set("x", strings.Repeat("x", 70_000))
	err = to.Publish("large", headed)
	require.ErrorContains(t, err, "header size")
	require.True(t, to.permanent(err))
	err = to.Publish("nowhere", message.NewMessage("order", nil))
	require.Error(t, err)
	require.False(t, to.permanent(err), "a stream may come")
}

// Without a handler, the NATS client would write each error to standard error.
func TestPermissionErrorOfNATSIsLoggedOnce(t *testing.T) {
	t.Parallel()
	denied := &natsserver.Permissions{Publish: &natsserver.SubjectPermission{Deny: []string{topic}}}
	broker := startNATS(t, func(o *natsserver.Options) {
		o.Users = []*natsserver.User{{Username: "relay", Password: "hunter2", Permissions: denied}}
	})
	store := redistest.Start(t)
	p := startRelay(t, start, store, []string{"REDISDELAY_NATS_PASSWORD=hunter2"}, "--to", "nats", "--nats", broker.url(), "--nats-username", "relay",
		"--log-format", "json", "--concurrency", "8", "--batch", "1", "--stop-timeout", "1s")
	publishOrders(t, store.Client(t), topic, 8, time.Millisecond)
	p.await("Permissions Violation for Publish")
	p.await("The destination fails to take messages") // as the destination has not answered
	p.stop()
	require.Equal(t, 1, strings.Count(p.said(), "Permissions Violation"))
	for _, line := range strings.Split(strings.TrimSpace(p.said()), "\n") {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

// The server would close the connection of a client that sends a subject with a blank.
func TestTopicThatIsNoSubjectIsDeadAndTheConnectionStays(t *testing.T) {
	t.Parallel()
	for _, provision := range []string{"--nats-provision=false", "--nats-provision"} {
		broker := startNATS(t)
		broker.stream(t, natsclient.StreamConfig{Name: topic})
		to, err := reading(t, nil, "--nats", broker.url(), provision).kinds["nats"].open(1, quiet())
		require.NoError(t, err)
		defer to.Close()
		require.Eventually(t, func() bool { return to.check(t.Context()) == nil }, patience, time.Millisecond)
		connections := func() uint64 {
			varz, err := broker.running.Varz(nil)
			require.NoError(t, err)
			return varz.TotalConnections
		}
		before := connections()
		for _, odd := range []string{"unpaid orders", "unpaid\torders", "unpaid\rorders", "unpaid\norders", " "} {
			err := to.Publish(odd, message.NewMessage("order", nil))
			require.Error(t, err, "%q", odd)
			require.True(t, to.permanent(err), "%q: %v", odd, err)
		}
		require.NoError(t, to.Publish(topic, message.NewMessage("order", nil)))
		require.Equal(t, before, connections())
	}
}

func TestAuthenticationAtNATS(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	certs := newCertificates(t)
	byOperator, creds := newOperator(t)

	byUser := func(o *natsserver.Options) { o.Username, o.Password = "relay", "hunter2" }
	byToken := func(o *natsserver.Options) { o.Authorization = "hunter2" }
	byNKey := func(o *natsserver.Options) { o.Nkeys = []*natsserver.NkeyUser{{Nkey: public}} }
	for name, c := range map[string]struct {
		server            func(*natsserver.Options)
		environment, args []string
		refused           bool
	}{
		"password in the URL":       {byUser, []string{"REDISDELAY_NATS=nats://relay:hunter2@ADDR"}, nil, false},
		"password in a variable":    {byUser, []string{"REDISDELAY_NATS_PASSWORD=hunter2"}, []string{"--nats", "nats://ADDR", "--nats-username", "relay"}, false},
		"password in a file":        {byUser, nil, []string{"--nats", "nats://ADDR", "--nats-username", "relay", "--nats-password-file", file(t, "hunter2\n")}, false},
		"wrong password":            {byUser, []string{"REDISDELAY_NATS=nats://relay:hunter3@ADDR"}, nil, true},
		"no password":               {byUser, nil, []string{"--nats", "nats://ADDR"}, true},
		"token in the URL":          {byToken, []string{"REDISDELAY_NATS=nats://hunter2@ADDR"}, nil, false},
		"token in a variable":       {byToken, []string{"REDISDELAY_NATS_TOKEN=hunter2"}, []string{"--nats", "nats://ADDR"}, false},
		"NKey":                      {byNKey, nil, []string{"--nats", "nats://ADDR", "--nats-nkey-file", file(t, string(seed))}, false},
		"credentials file":          {byOperator, nil, []string{"--nats", "nats://ADDR", "--nats-creds-file", creds}, false},
		"certificate":               {byCertificate(t, certs), nil, certified("tls://ADDR", certs), false},
		"certificate by nats-tls":   {byCertificate(t, certs), nil, append(certified("nats://ADDR", certs), "--nats-tls"), false},
		"certificate of nobody":     {byCertificate(t, certs), nil, []string{"--nats", "tls://ADDR", "--nats-tls-insecure"}, true},
		"authority that is unknown": {byCertificate(t, certs), nil, []string{"--nats", "tls://ADDR"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := startNATS(t, c.server)
			fill := func(all []string) (filled []string) {
				for _, text := range all {
					filled = append(filled, strings.ReplaceAll(text, "ADDR", broker.addr()))
				}
				return filled
			}
			to, err := reading(t, fill(c.environment), append(fill(c.args), "--nats-provision")...).kinds["nats"].open(1, quiet())
			require.NoError(t, err)
			defer to.Close()
			err = to.Publish(topic, message.NewMessage("order", nil))
			if c.refused {
				require.Error(t, err)
				require.Error(t, to.check(t.Context()))
				require.NotContains(t, to.check(t.Context()).Error(), "hunter")
				return
			}
			require.Eventually(t, func() bool { return to.check(t.Context()) == nil }, patience, time.Millisecond)
			require.NoError(t, to.Publish(topic, message.NewMessage("order", nil)))
		})
	}
}

// byCertificate makes the server require a client certificate.
func byCertificate(t *testing.T, certs certificates) func(*natsserver.Options) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certs.serverCert, certs.serverKey)
	require.NoError(t, err)
	authority, err := os.ReadFile(certs.ca)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(authority))
	return func(o *natsserver.Options) {
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert}
		o.TLSTimeout = 10
	}
}

func certified(url string, certs certificates) []string {
	return []string{"--nats", url, "--nats-tls-ca", certs.ca, "--nats-tls-cert", certs.clientCert, "--nats-tls-key", certs.clientKey,
		"--nats-tls-server-name", certifiedName}
}

// newOperator creates an operator that the server trusts, an account, a user, and its credentials
// file.
func newOperator(t *testing.T) (server func(*natsserver.Options), creds string) {
	t.Helper()
	pair := func(make func() (nkeys.KeyPair, error)) (key nkeys.KeyPair, public string) {
		key, err := make()
		require.NoError(t, err)
		public, err = key.PublicKey()
		require.NoError(t, err)
		return key, public
	}
	encode := func(claims jwt.Claims, by nkeys.KeyPair) string {
		text, err := claims.Encode(by)
		require.NoError(t, err)
		return text
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	account, accountID := pair(nkeys.CreateAccount)
	user, userID := pair(nkeys.CreateUser)
	_, systemID := pair(nkeys.CreateAccount)

	of := jwt.NewAccountClaims(accountID)
	of.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accounts := &natsserver.MemAccResolver{}
	require.NoError(t, accounts.Store(accountID, encode(of, operator)))
	require.NoError(t, accounts.Store(systemID, encode(jwt.NewAccountClaims(systemID), operator)))
	trusted, err := jwt.DecodeOperatorClaims(encode(jwt.NewOperatorClaims(operatorID), operator))
	require.NoError(t, err)

	seed, err := user.Seed()
	require.NoError(t, err)
	text, err := jwt.FormatUserConfig(encode(jwt.NewUserClaims(userID), account), seed)
	require.NoError(t, err)
	return func(o *natsserver.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{trusted}, accounts, systemID
	}, file(t, string(text))
}
