package dashboard_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var ctx = context.Background()

var (
	viewer   = dashboard.User{Name: "vera", Role: dashboard.Viewer}
	reader   = dashboard.User{Name: "rita", Role: dashboard.Viewer, Contents: true}
	operator = dashboard.User{Name: "ann", Role: dashboard.Operator, Contents: true}
)

// site is a page over an embedded server.
type site struct {
	t testing.TB
	redistest.Server
	admin  *admin.Admin
	page   *dashboard.Dashboard
	before *atomic.Pointer[func(call redis.Cmder) error] // of newSite; nil before beforeEach
}

// beforeEach has do run before each call from now on. The page's goroutines call Redis at any time,
// so that a hook cannot be added to the client by now.
func (s *site) beforeEach(do func(call redis.Cmder) error) { s.before.Store(&do) }

// newSite returns a page for one user.
func newSite(t testing.TB, user dashboard.User, change ...func(*dashboard.Config)) *site {
	t.Helper()
	_, client := redistest.Embedded(t)
	before := new(atomic.Pointer[func(call redis.Cmder) error])
	client.AddHook(redistest.BeforeEach(func(call redis.Cmder) error {
		if do := before.Load(); do != nil {
			return (*do)(call)
		}
		return nil
	}))
	s := siteOn(t, redistest.On(t, client, "test"), user, change...)
	s.before = before
	return s
}

func siteOn(t testing.TB, server redistest.Server, user dashboard.User, change ...func(*dashboard.Config)) *site {
	t.Helper()
	a, err := admin.New(admin.Config{Client: server.Client, KeyPrefix: server.Prefix})
	require.NoError(t, err)
	config := dashboard.Config{Admin: a, Anonymous: user, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, f := range change {
		f(&config)
	}
	page, err := dashboard.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, page.Close()) })
	return &site{t: t, Server: server, admin: a, page: page}
}

// request is a request of a browser on this machine.
func request(method, address string, form ...string) *http.Request {
	values := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	r := httptest.NewRequest(method, address, strings.NewReader(values.Encode()))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:5000"
	return r
}

// answers sends a request.
func (s *site) answers(r *http.Request) (status int, body string, header http.Header) {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

func (s *site) get(address string) (status int, body string) {
	s.t.Helper()
	status, body, _ = s.answers(request(http.MethodGet, address))
	return status, body
}

func (s *site) post(address string, form ...string) (status int, to string) {
	s.t.Helper()
	status, _, header := s.answers(request(http.MethodPost, address, form...))
	return status, header.Get("Location")
}

// publish publishes a message, and returns its ID.
func (s *site) publish(topic string, delay time.Duration, metadata map[string]string, payload string) string {
	s.t.Helper()
	msg := s.publishing(topic, delay, metadata, payload)
	page, err := s.admin.List(ctx, topic, admin.Query{State: admin.Waiting, Limit: 1000})
	require.NoError(s.t, err)
	for _, m := range page.Messages {
		if m.UUID == msg.UUID {
			return m.ID
		}
	}
	return ""
}

// publishing publishes a message.
func (s *site) publishing(topic string, delay time.Duration, metadata map[string]string, payload string) *message.Message {
	s.t.Helper()
	msg := message.NewMessage("uuid of "+payload, []byte(payload))
	for key, value := range metadata {
		msg.Metadata.Set(key, value)
	}
	redisdelay.DelayFor(msg, delay)
	require.NoError(s.t, testkit.NewPublisher(s.t, s.Server).Publish(topic, msg))
	return msg
}

// die makes dead letters of group g, each with a payload and a reason.
func (s *site) die(topic string, reasons ...string) {
	s.t.Helper()
	sub := testkit.NewSubscriber(s.t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup, c.CloseTimeout = "g", time.Second })
	messages := testkit.SubscribeTo(s.t, sub, topic)
	for _, reason := range reasons {
		s.publish(topic, 0, nil, `{"dead":true}`)
		msg := <-messages
		require.True(s.t, redisdelay.DeadOnNack(msg, reasonError(reason)))
		msg.Nack()
	}
	require.Eventually(s.t, func() bool {
		stats, err := s.admin.Stats(ctx, topic)
		return err == nil && len(stats.Groups) == 1 && stats.Groups[0].Dead == len(reasons)
	}, testkit.Soon, time.Millisecond)
	require.NoError(s.t, sub.Close())
}

type reasonError string

func (r reasonError) Error() string { return string(r) }
