package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"code.dny.dev/ssrf"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

const (
	webhookKey  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	webhookKey2 = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// endpoint is a web server that gets webhooks.
func endpoint(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// toHTTP opens a destination that may call this machine.
func toHTTP(t *testing.T, environment []string, url string, args ...string) *destination {
	t.Helper()
	to, err := reading(t, environment, append([]string{"--http", url, "--http-allow-private", "127.0.0.0/8"}, args...)...).kinds["http"].open(1, quiet())
	require.NoError(t, err)
	t.Cleanup(func() { _ = to.Close() })
	return to
}

// transportOf returns what a destination connects with.
func transportOf(to *destination) *http.Transport {
	return to.Publisher.(*httpPublisher).client.Transport.(*http.Transport)
}

// webhookOf is a message as the relay gives it to a destination.
func webhookOf(payload string, metadata ...string) *message.Message {
	msg := message.NewMessage("uuid", []byte(payload))
	msg.Metadata.Set(relay.IDKey, "01M7Y3SQGNBVX5P66MY8JV56FH")
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	return msg
}

// The example is that of the specification of Standard Webhooks.
func TestSignatureIsThatOfStandardWebhooks(t *testing.T) {
	t.Parallel()
	keys, err := readKeys(webhookKey)
	require.NoError(t, err)
	msg := message.NewMessage("uuid", []byte(`{"test": 2432232314}`))
	msg.Metadata.Set(relay.IDKey, "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header := http.Header{}
	(&httpPublisher{keys: keys}).sign(header, msg, time.Unix(1614265330, 0))
	require.Equal(t, http.Header{
		"Webhook-Id":        {"msg_p5jXN8AQM9LWM0D4loKWxJek"},
		"Webhook-Timestamp": {"1614265330"},
		"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
	}, header)
}

// signedBy returns whether a request has a signature by the key.
func signedBy(key string, r *http.Request, body []byte) bool {
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, "whsec_"))
	mac := hmac.New(sha256.New, raw)
	fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, signature := range strings.Split(r.Header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}

func TestRequestHasThePayloadTheMetadataAndASignatureByEachKey(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		got <- r
	})
	keys := file(t, webhookKey+"\n"+webhookKey2+"\n")
	to := toHTTP(t, []string{"REDISDELAY_HTTP_PASSWORD=hunter2"}, target+"/hooks/{topic}?from={topic}&a=b", "--http-method", "PUT",
		"--http-secret-file", keys, "--http-username", "relay")
	require.NoError(t, to.Publish("orders/new & old", webhookOf("{}", "Kind", "gift, wrapped; 50%", "traceparent", "00-é")))
	r := <-got
	body, _ := io.ReadAll(r.Body)
	require.Equal(t, "{}", string(body))
	require.Equal(t, "PUT", r.Method)
	require.Equal(t, "/hooks/orders%2Fnew%20&%20old?from=orders%2Fnew+%26+old&a=b", r.RequestURI)
	require.Equal(t, "orders/new & old", r.URL.Query().Get("from"))
	require.True(t, signedBy(webhookKey, r, body))
	require.True(t, signedBy(webhookKey2, r, body))
	require.False(t, signedBy(webhookKey, r, append(body, ' ')))
	user, password, _ := r.BasicAuth()
	require.Equal(t, "relay hunter2", user+" "+password)
	seen := maps.Clone(r.Header)
	for _, varies := range []string{"Webhook-Timestamp", "Webhook-Signature", "Authorization", "User-Agent", "Content-Length"} {
		require.NotEmpty(t, seen.Get(varies), varies)
		seen.Del(varies)
	}
	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "Kind": {"gift, wrapped; 50%"}, "Traceparent": {"00-é"}, "Message-Uuid": {"uuid"},
		"Webhook-Id": {"01M7Y3SQGNBVX5P66MY8JV56FH"},
	}, seen)

	to = toHTTP(t, nil, target)
	require.NoError(t, to.Publish(topic, webhookOf("x", "content-type", "text/plain")))
	r = <-got
	require.Equal(t, "text/plain", r.Header.Get("Content-Type"), "metadata come before the setting")
	require.Equal(t, "POST /", r.Method+" "+r.RequestURI)
	require.Empty(t, r.Header.Get("Webhook-Signature"), "without a key")
	require.Empty(t, r.Header.Get("Authorization"))
}

func TestStatusSaysWhetherAMessageIsTakenDeadOrTriedAgain(t *testing.T) {
	t.Parallel()
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscan(r.Header.Get("Status"), &status)
		w.WriteHeader(status)
		if status >= 300 && status != http.StatusNotModified {
			_, _ = io.WriteString(w, "no such\norder")
		}
	})
	to := toHTTP(t, nil, target)
	dead := map[int]bool{400: true, 410: true, 413: true, 415: true, 422: true}
	for status := 200; status < 600; status++ {
		if http.StatusText(status) == "" {
			continue
		}
		err := to.Publish(topic, webhookOf("x", "Status", fmt.Sprint(status)))
		require.Equal(t, status < 300, err == nil, "%d: %v", status, err)
		require.Equal(t, dead[status], err != nil && to.permanent(err), "%d: %v", status, err)
		if status >= 300 {
			require.ErrorContains(t, err, fmt.Sprint(strings.TrimPrefix(target, "http://"), " answers ", status, " ", http.StatusText(status)))
		}
		if status >= 400 {
			require.ErrorContains(t, err, `"no such\norder"`)
		}
	}
}

func TestRetryAfterSaysHowLongAMessageWaits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		header, clock string
		want          time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"7", "", 7 * time.Second},
		{"soon", "", 0},
		{"-7", "", 0},
		{"1.5", "", 0},
		{"31536000", "", 24 * time.Hour},
		{"99999999999999999999999", "", 24 * time.Hour},
		{date(90 * time.Second), "", 90 * time.Second},
		{date(-time.Hour), "", 0},
		{date(100 * time.Hour), "", 24 * time.Hour},
		{date(90 * time.Second), date(time.Minute), 30 * time.Second}, // the server's clock is a minute ahead
		{"7", date(time.Minute), 7 * time.Second},
	} {
		header := http.Header{"Retry-After": {c.header}, "Date": {c.clock}}
		require.Equal(t, c.want, retryAfter(header, now), "%q at %q", c.header, c.clock)
	}
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "60")
		status := http.StatusTooManyRequests
		if r.Header.Get("Gone") != "" {
			status = http.StatusGone
		}
		w.WriteHeader(status)
	})
	to := toHTTP(t, nil, target)
	var wait *redisdelay.PostponeError
	require.ErrorAs(t, to.Publish(topic, webhookOf("x")), &wait)
	require.Equal(t, time.Minute, wait.Delay)
	require.ErrorContains(t, wait, "429 Too Many Requests")
	err := to.Publish(topic, webhookOf("x", "Gone", "yes"))
	require.True(t, to.permanent(err))
	require.False(t, errors.As(err, &wait), "it is dead, and is not tried again")
}

func TestRedirectIsFollowedOnlyToTheSameServerWithTheSameRequest(t *testing.T) {
	t.Parallel()
	var strayed atomic.Int32
	other := endpoint(t, func(http.ResponseWriter, *http.Request) { strayed.Add(1) })
	var got atomic.Value
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			body, _ := io.ReadAll(r.Body)
			got.Store(fmt.Sprint(r.Method, " ", string(body), " ", signedBy(webhookKey, r, body)))
		case "/temporary":
			http.Redirect(w, r, "/here", http.StatusTemporaryRedirect)
		case "/permanent":
			http.Redirect(w, r, "/temporary", http.StatusPermanentRedirect)
		case "/found":
			http.Redirect(w, r, "/here", http.StatusFound) // which a client follows with a GET
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusTemporaryRedirect)
		case "/away":
			http.Redirect(w, r, other+"/?token=hunter2", http.StatusTemporaryRedirect)
		}
	})
	for path, followed := range map[string]bool{"/temporary": true, "/permanent": true, "/found": false, "/loop": false, "/away": false} {
		got.Store("")
		to := toHTTP(t, []string{"REDISDELAY_HTTP_SECRET=" + webhookKey}, target+path)
		err := to.Publish(topic, webhookOf("payload"))
		if followed {
			require.NoError(t, err, path)
			require.Equal(t, "POST payload true", got.Load(), path)
			continue
		}
		require.ErrorContains(t, err, "that is not followed", path)
		require.NotContains(t, err.Error(), "token=hunter2", path)
		require.False(t, to.permanent(err), path)
		require.Empty(t, got.Load(), path)
	}
	require.Zero(t, strayed.Load())
}

func TestPrivateAddressesAreRefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	client := newHTTPClient(ssrf.New(ssrf.WithAnyPort()), nil)
	for _, host := range []string{
		"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", // private and this machine
		"169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[fec0::1]", "[2001:db8::1]",
		"[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]", // IPv4 within IPv6
		"[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001::1]", // NAT64, 6to4, Teredo
		"localhost",
	} {
		_, err := client.Get("http://" + host + ":9/")
		require.ErrorIs(t, err, ssrf.ErrProhibitedIP, host)
	}

	// A name is looked up at each connection, and its address is checked then.
	var called atomic.Int32
	target := endpoint(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	port := target[strings.LastIndex(target, ":"):]
	open := func(url string, args ...string) (*destination, error) {
		return reading(t, nil, append([]string{"--http", url}, args...)...).kinds["http"].open(1, quiet())
	}
	to, err := open("http://localhost" + port)
	require.NoError(t, err)
	err = to.Publish(topic, webhookOf("x"))
	require.ErrorContains(t, err, "localhost"+port+" is not at a public address, and --http-allow-private does not allow it")
	require.False(t, to.permanent(err), "the name may get another address")
	require.Zero(t, called.Load())

	for _, allowed := range []string{"127.0.0.1", "127.0.0.0/8", "10.0.0.0/8,127.0.0.1", "0.0.0.0/0"} {
		to, err := open(target, "--http-allow-private", allowed)
		require.NoError(t, err, allowed)
		require.NoError(t, to.Publish(topic, webhookOf("x")), allowed)
	}
	require.EqualValues(t, 4, called.Load())

	// An address in the URL is refused at once.
	for _, host := range []string{"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "[fe80::1%25lo]"} {
		_, err := open("http://"+host+"/", "--http-allow-private", "10.0.0.0/8")
		require.ErrorIs(t, err, errRefused, host)
		require.ErrorContains(t, err, "is not a public address; if messages may go there, set --http-allow-private", host)
	}
	for _, public := range []string{"93.184.216.34", "[2606:2800:220:1::1]", "example.com"} {
		_, err := open("https://" + public + "/")
		require.NoError(t, err, public)
	}
}

// A proxy of the environment could reach addresses that are refused.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	proxy := endpoint(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	store := redistest.Start(t)
	p := startRelay(t, start, store, []string{"HTTP_PROXY=" + proxy, "http_proxy=" + proxy}, "--to", "http", "--http", "http://nowhere.invalid",
		"--http-allow-private", "127.0.0.1")
	p.await("Requests are not signed")
	publishOrders(t, store.Client(t), topic, 1, time.Millisecond)
	p.await("The destination fails to take messages.*nowhere.invalid")
	p.stop()
	require.Zero(t, called.Load())
}

func TestRequestEndsWithItsTimeLimit(t *testing.T) {
	t.Parallel()
	address, _ := silent(t)
	to := toHTTP(t, nil, "http://"+address, "--http-timeout", "100ms")
	began := time.Now()
	err := to.Publish(topic, webhookOf("x"))
	require.ErrorContains(t, err, address+" does not answer within 100ms")
	require.False(t, to.permanent(err))
	require.Less(t, time.Since(began), patience/4)

	to = toHTTP(t, nil, "http://127.0.0.1:"+freePort(t)+"/hunter2?token=hunter2")
	err = to.Publish(topic, webhookOf("x"))
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "hunter2", "a URL may have a secret")
}

// The status decides. Neither an answer that never ends nor one that comes drop by drop holds up
// the next message.
func TestAnswerIsReadToABound(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 2)
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		pause, status, chunk := time.Duration(0), http.StatusOK, bytes.Repeat([]byte("x"), 64<<10)
		if r.URL.Path == "/slow" {
			pause, status, chunk = 10*time.Millisecond, http.StatusInternalServerError, chunk[:1]
		}
		w.WriteHeader(status)
		written := 0
		for range 1 << 30 {
			n, err := w.Write(chunk)
			if written += n; err != nil || http.NewResponseController(w).Flush() != nil {
				break
			}
			select {
			case <-r.Context().Done():
			case <-time.After(pause):
			}
		}
		ended <- written
	})
	require.NoError(t, toHTTP(t, nil, target).Publish(topic, webhookOf("x")))
	require.Less(t, <-ended, 64<<20, "the client closed the connection")

	began := time.Now()
	err := toHTTP(t, nil, target+"/slow", "--http-timeout", "1m").Publish(topic, webhookOf("x"))
	require.ErrorContains(t, err, `500 Internal Server Error: "x`)
	require.Less(t, len(err.Error()), 500)
	require.Less(t, time.Since(began), patience/2)
	<-ended
}

func TestMessageThatIsNoRequestIsDead(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	to := toHTTP(t, nil, endpoint(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })+"/hooks/{topic}")
	for want, msg := range map[string]*message.Message{
		`metadata key "order number" is not a valid HTTP header`:                 webhookOf("x", "order number", "1"),
		`metadata key "" is not a valid HTTP header`:                             webhookOf("x", "", "1"),
		`metadata key "Kind\r\nX" is not a valid`:                                webhookOf("x", "Kind\r\nX", "1"),
		`the value of metadata key "Kind" has a line break`:                      webhookOf("x", "Kind", "a\r\nHost: b"),
		`its metadata has the keys "KIND" and "kind", which are one HTTP header`: webhookOf("x", "kind", "a", "KIND", "b"),
		`metadata key "host" is a header that the request has itself`:            webhookOf("x", "host", "a"),
		`metadata key "Content-Length" is a header that`:                         webhookOf("x", "Content-Length", "1"),
		`metadata key "transfer-encoding" is a header that`:                      webhookOf("x", "transfer-encoding", "chunked"),
		`metadata key "webhook-signature" is a header that`:                      webhookOf("x", "webhook-signature", "v1,a"),
		`metadata key _watermill_message_uuid is reserved`:                       webhookOf("x", "_watermill_message_uuid", "a"),
	} {
		err := to.Publish(topic, msg)
		require.ErrorContains(t, err, want)
		require.True(t, to.permanent(err), want)
	}
	odd := webhookOf("x")
	odd.UUID = "a\nb"
	require.True(t, to.permanent(to.Publish(topic, odd)))
	require.Zero(t, called.Load())
}

// Some servers decode %2F before they resolve a path, or take a backslash for a slash.
func TestTopicDoesNotLeadOutOfThePath(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	target := endpoint(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	for path, topics := range map[string][]string{
		"/hooks/{topic}":        {".", "..", "../../admin", `..\admin`, "a/..", "a/./b", "/.."},
		"/hooks/{topic}{topic}": {".", "a/../b", "./."},
		"/hooks/.{topic}":       {".", "", "/a"},
		"/hooks/%2e{topic}":     {"."},
	} {
		to := toHTTP(t, nil, target+path)
		for _, name := range topics {
			err := to.Publish(name, webhookOf("x"))
			require.ErrorContains(t, err, "a step of the URL's path would be . or ..", "%s with %q", path, name)
			require.True(t, to.permanent(err))
		}
	}
	require.Zero(t, called.Load())
	for path, topics := range map[string][]string{
		"/hooks/{topic}":    {"...", "..a", "a..b", "a/b", "a.b"},
		"/hooks?of={topic}": {"..", "../../admin"},
		"/a/../hooks":       {"..", "a"},
	} {
		to := toHTTP(t, nil, target+path)
		for _, name := range topics {
			require.NoError(t, to.Publish(name, webhookOf("x")), "%s with %q", path, name)
		}
	}
	_, err := reading(t, nil, "--http", target+"/a/../{topic}", "--http-allow-private", "127.0.0.0/8").kinds["http"].open(1, quiet())
	require.ErrorContains(t, err, "--http has a step . or .. in its path")
}

func TestMetadataDoNotReplaceTheUser(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	target := endpoint(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") })
	msg := webhookOf("x", "authorization", "Bearer abc")
	to := toHTTP(t, []string{"REDISDELAY_HTTP_PASSWORD=hunter2"}, target, "--http-username", "relay")
	err := to.Publish(topic, msg)
	require.ErrorContains(t, err, `metadata key "authorization" is a header that the request has itself`)
	require.True(t, to.permanent(err))
	require.NoError(t, toHTTP(t, nil, target).Publish(topic, msg))
	require.Equal(t, "Bearer abc", <-got)
}

func TestAnswerThatEchoesASecretIsNotKept(t *testing.T) {
	t.Parallel()
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, r.Header.Get("Say"))
	})
	const path = "/hooks/hunter2-in-the-path?token=hunter2%2Bquery&empty="
	for _, said := range []string{
		"no page /hooks/hunter2-in-the-path", "no hook hunter2-in-the-path", "token hunter2+query", "token hunter2%2Bquery",
		"got Bearer hunter2-login", "got hunter2-login", "got id=hunter2-cookie; a=b", "got hunter2-cookie",
		strings.Repeat("x", 190) + "token hunter2+query", // a part of it is in the excerpt
	} {
		err := toHTTP(t, nil, target+path).Publish(topic, webhookOf("x", "Say", said, "Authorization", "Bearer hunter2-login", "Cookie", "id=hunter2-cookie; a=b"))
		require.ErrorContains(t, err, "answers 403 Forbidden", said)
		require.NotContains(t, err.Error(), "hunter2", said)
		require.NotContains(t, err.Error(), "token", said)
	}
	require.ErrorContains(t, toHTTP(t, nil, target+path).Publish(topic, webhookOf("x", "Say", "no such hook")), `"no such hook"`)
	require.ErrorContains(t, toHTTP(t, nil, target).Publish(topic, webhookOf("x", "Say", "no / here")), `"no / here"`)
}

// The end of a request does not end the dial that it began.
func TestConnectionIsClosedIfTheServerIsSilentInTLS(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	address := serving(t, func(connection net.Conn) {
		_, _ = io.Copy(io.Discard, connection)
		close(closed)
	})
	to := toHTTP(t, nil, "https://"+address, "--http-timeout", "100ms")
	require.Equal(t, connectTimeout, transportOf(to).TLSHandshakeTimeout)
	transportOf(to).TLSHandshakeTimeout = time.Second
	require.ErrorContains(t, to.Publish(topic, webhookOf("x")), "does not answer within 100ms")
	select {
	case <-closed:
	case <-time.After(patience):
		require.FailNow(t, "the connection stays")
	}
}

// Nothing comes on a connection whose server has gone without a word. HTTP/2 would use it again.
func TestDeadConnectionOfHTTP2IsClosed(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { assert.Equal(t, 2, r.ProtoMajor) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var dead atomic.Bool
	closed := make(chan struct{})
	address := serving(t, func(connection net.Conn) {
		behind, err := net.Dial("tcp", server.Listener.Addr().String())
		if !assert.NoError(t, err) {
			return
		}
		defer behind.Close()
		go func() { _, _ = io.Copy(connection, behind) }()
		data := make([]byte, 32<<10)
		for {
			n, err := connection.Read(data)
			if err != nil {
				close(closed)
				return
			}
			if !dead.Load() {
				_, _ = behind.Write(data[:n])
			}
		}
	})
	to := toHTTP(t, nil, "https://"+address, "--http-timeout", "1s", "--http-tls-insecure")
	pings := transportOf(to).HTTP2
	require.Equal(t, http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}, *pings)
	pings.SendPingTimeout, pings.PingTimeout = time.Second, time.Second
	require.NoError(t, to.Publish(topic, webhookOf("x")))
	dead.Store(true)
	require.Error(t, to.Publish(topic, webhookOf("x")))
	select {
	case <-closed:
	case <-time.After(patience):
		require.FailNow(t, "the connection stays")
	}
}

func TestHTTPWithTLS(t *testing.T) {
	t.Parallel()
	certs := newCertificates(t)
	pair, err := tls.LoadX509KeyPair(certs.serverCert, certs.serverKey)
	require.NoError(t, err)
	authority, err := os.ReadFile(certs.ca)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(authority))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = slog.NewLogLogger(quiet().Handler(), slog.LevelDebug)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	fine := []string{"--http-tls-ca", certs.ca, "--http-tls-cert", certs.clientCert, "--http-tls-key", certs.clientKey, "--http-tls-server-name", certifiedName}
	require.NoError(t, toHTTP(t, nil, server.URL, fine...).Publish(topic, webhookOf("x")))
	require.NoError(t, toHTTP(t, nil, strings.Replace(server.URL, "https", "http", 1), append(fine, "--http-tls")...).Publish(topic, webhookOf("x")))
	err = toHTTP(t, nil, server.URL, "--http-tls-ca", certs.ca, "--http-tls-server-name", certifiedName).Publish(topic, webhookOf("x"))
	require.Error(t, err, "without a certificate")
	err = toHTTP(t, nil, server.URL, fine[2:]...).Publish(topic, webhookOf("x"))
	require.ErrorContains(t, err, "certificate")
}

// webhooks are the requests that an endpoint got.
type webhooks struct {
	mu  sync.Mutex
	all []webhook
}

type webhook struct{ path, id, uuid, body string }

func (h *webhooks) add(r *http.Request) webhook {
	body, _ := io.ReadAll(r.Body)
	got := webhook{r.URL.Path, r.Header.Get("webhook-id"), r.Header.Get("Message-Uuid"), string(body)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, got)
	return got
}

// of returns the requests for a message.
func (h *webhooks) of(uuid string) (found []webhook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.all {
		if w.uuid == uuid {
			found = append(found, w)
		}
	}
	return found
}

// An endpoint takes some messages, refuses one, throttles one and is broken for one topic. Nothing
// is lost, none holds up another, and the dead letter says why. Nothing secret is logged.
func TestToHTTP(t *testing.T) {
	t.Parallel()
	var got webhooks
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		hook := got.add(r)
		first := len(got.of(hook.uuid)) == 1
		switch {
		case hook.path == "/down":
			w.WriteHeader(http.StatusServiceUnavailable)
		case hook.uuid == "orders-3":
			http.Error(w, "no such customer", http.StatusUnprocessableEntity)
		case hook.uuid == "orders-5" && first:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case hook.uuid == "orders-7" && first:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	store := redistest.Start(t)
	client := store.Client(t)
	p := startRelay(t, start, store,
		[]string{"REDISDELAY_HTTP=" + strings.Replace(target, "http://", "http://relay:hunter2@", 1) + "/{topic}?token=hunter3", "REDISDELAY_HTTP_SECRET=" + webhookKey},
		"--from", "down", "--map", "orders=shop", "--to", "http", "--http-allow-private", "127.0.0.1", "--backoff", "50ms", "--max-deliveries", "2", "--log-level", "debug")
	publishOrders(t, client, "down", 2, time.Millisecond)
	orders := publishOrders(t, client, topic, 20, 100*time.Millisecond)
	operator, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stats, err := operator.Stats(t.Context(), topic)
		return err == nil && stats.Waiting == 0 && len(stats.Groups) == 1 && stats.Groups[0].Dead == 1 &&
			stats.Groups[0].Ready+stats.Groups[0].InHand+stats.Groups[0].Retrying == 0
	}, patience, 10*time.Millisecond)
	for uuid, order := range orders {
		requests := got.of(uuid)
		want := 1
		if uuid == "orders-5" || uuid == "orders-7" {
			want = 2
		}
		require.Len(t, requests, want, uuid)
		for _, r := range requests {
			require.Equal(t, webhook{"/shop", requests[0].id, uuid, order.payload}, r)
			require.Len(t, r.id, 26)
		}
	}
	// After two deliveries, as the relay allows here, those of the other topic are dead too.
	require.Eventually(t, func() bool { return len(got.of("down-0")) == 2 && len(got.of("down-1")) == 2 }, patience, 10*time.Millisecond)
	p.stop()
	for _, secret := range []string{"hunter2", "hunter3", webhookKey, webhookKey[6:]} {
		require.NotContains(t, p.said(), secret)
		require.NotContains(t, strings.Join(p.cmd.Args, " "), secret)
	}
	reasons, err := operator.DeadReasons(t.Context(), topic, admin.Bulk{Group: relay.DefaultConsumerGroup})
	require.NoError(t, err)
	require.Len(t, reasons.Reasons, 1)
	require.Contains(t, reasons.Reasons[0].Reason, `answers 422 Unprocessable Entity`)
}

// The process is killed when the endpoint has the message, and Redis does not know it. The message
// comes again, with the same ID.
func TestWebhookComesAgainWithItsIDAfterAKill(t *testing.T) {
	t.Parallel()
	var got webhooks
	var first atomic.Pointer[tool]
	came := make(chan struct{}, 10)
	target := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		got.add(r)
		if p := first.Swap(nil); p != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		came <- struct{}{}
	})
	store := redistest.Start(t)
	args := []string{"--to", "http", "--http", target, "--http-allow-private", "127.0.0.1", "--lease", "2s"}
	environment := []string{"REDISDELAY_HTTP_SECRET=" + webhookKey}
	first.Store(startRelay(t, start, store, environment, args...))
	publishOrders(t, store.Client(t), topic, 1, time.Millisecond)
	<-came
	second := startRelay(t, start, store, environment, args...)
	select {
	case <-came:
	case <-time.After(patience):
		require.FailNow(t, "it does not come again")
	}
	second.stop()
	hooks := got.of("orders-0")
	require.Len(t, hooks, 2)
	require.Equal(t, hooks[0], hooks[1])
}
