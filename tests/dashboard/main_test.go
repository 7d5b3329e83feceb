// Package dashboard has the tests of the web page in a real browser. They are in a module of their
// own, because they need the driver of the browser.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.stop != nil {
		chromium.stop()
	}
	_ = os.RemoveAll(tool.dir)
	os.Exit(code)
}

var ctx = context.Background()

const (
	topic = "orders"
	group = "billing"
)

var operator = dashboard.User{Name: "ann", Role: dashboard.Operator, Contents: true}

// site is a page that is served, over a real server.
type site struct {
	redistest.Server
	t       testing.TB
	admin   *admin.Admin
	address string
}

// serve serves a page of a user until the test ends.
func serve(t testing.TB, s redistest.Server, user dashboard.User) *site {
	t.Helper()
	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	page, err := dashboard.New(dashboard.Config{Admin: a, Anonymous: user, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	serving, stop := context.WithCancel(ctx)
	bound, served := make(chan net.Addr, 1), make(chan error, 1)
	go func() { served <- page.ListenAndServe(serving, "127.0.0.1:0", func(a net.Addr) { bound <- a }) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
		require.NoError(t, page.Close())
	})
	return &site{Server: s, t: t, admin: a, address: "http://" + (<-bound).String()}
}

// publish publishes messages with a payload each.
func (s *site) publish(topic string, delay time.Duration, payloads ...string) {
	s.t.Helper()
	var all []*message.Message
	for _, payload := range payloads {
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		msg.Metadata.Set("kind", "gift")
		redisdelay.DelayFor(msg, delay)
		all = append(all, msg)
	}
	require.NoError(s.t, testkit.NewPublisher(s.t, s.Server).Publish(topic, all...))
}

// subscriber returns a subscriber of the group.
func (s *site) subscriber(most int) *redisdelay.Subscriber {
	s.t.Helper()
	return testkit.NewSubscriber(s.t, s.Server, func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.MaxInFlight, c.CloseTimeout = group, most, time.Second
	})
}

// register makes the group.
func (s *site) register() {
	s.t.Helper()
	sub := s.subscriber(1)
	require.NoError(s.t, sub.SubscribeInitialize(topic))
	require.NoError(s.t, sub.Close())
}

// die makes n dead letters, of two reasons.
func (s *site) die(n int, size int) {
	s.t.Helper()
	sub := s.subscriber(200)
	messages := testkit.SubscribeTo(s.t, sub, topic)
	var payloads []string
	for i := range n {
		payloads = append(payloads, fmt.Sprintf(`{"order":%d,"pad":"%0*d"}`, i, size, 0))
	}
	s.publish(topic, 0, payloads...)
	for i := range n {
		msg := <-messages
		reason := fmt.Errorf("no stock of article %d", i)
		if i%5 == 0 {
			reason = errors.New("the customer is unknown")
		}
		require.True(s.t, redisdelay.DeadOnNack(msg, reason))
		msg.Nack()
	}
	require.Eventually(s.t, func() bool { return s.group().Dead == n }, patience, 5*time.Millisecond)
	require.NoError(s.t, sub.Close())
}

// recurring is the name of a schedule.
const recurring = "daily report"

// recur has recurring schedules in a topic, each with an occurrence that waits.
func (s *site) recur(topic string, names ...string) {
	s.t.Helper()
	p, err := periodic.New(periodic.Config{Publisher: testkit.NewPublisher(s.t, s.Server), Poll: 100 * time.Millisecond}, nil)
	require.NoError(s.t, err)
	for _, name := range names {
		require.NoError(s.t, p.Add(periodic.Schedule{Name: name, Topic: topic, Spec: "30 9 * * *", Location: time.UTC,
			Message: func(periodic.Occurrence) (*message.Message, error) {
				return message.NewMessage(watermill.NewUUID(), []byte("again")), nil
			}}))
	}
	running, stop := context.WithCancel(ctx)
	ended := testkit.Begin(func() error { return p.Run(running) })
	s.t.Cleanup(func() {
		stop()
		require.NoError(s.t, <-ended)
	})
	for _, name := range names {
		require.Eventually(s.t, func() bool { return s.schedule(topic, name).Waiting == 1 }, patience, 5*time.Millisecond)
	}
}

// schedule returns a schedule, empty if there is none.
func (s *site) schedule(topic, name string) admin.Schedule {
	s.t.Helper()
	all, err := s.admin.Schedules(ctx, topic)
	require.NoError(s.t, err)
	for _, one := range all[0].Schedules {
		if one.Name == name {
			return one
		}
	}
	return admin.Schedule{}
}

// checked has a topic with a damage checked, and returns the address of what it found.
func (s *site) checked(topic string) string {
	s.t.Helper()
	require.NoError(s.t, s.Client.HSet(ctx, queue.NewKeys(s.Prefix, topic).Messages(), "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	request, err := http.NewRequest(http.MethodPost, s.address+"/check", strings.NewReader(url.Values{"t": {topic}}.Encode()))
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	require.Equal(s.t, http.StatusOK, answer.StatusCode)
	return answer.Request.URL.RequestURI()
}

func (s *site) stats() admin.Stats {
	s.t.Helper()
	stats, err := s.admin.Stats(ctx, topic)
	require.NoError(s.t, err)
	return stats
}

// group returns the only group of the topic.
func (s *site) group() admin.GroupStats {
	s.t.Helper()
	stats := s.stats()
	require.Len(s.t, stats.Groups, 1)
	return stats.Groups[0]
}

// age has the first ready message of the group be ready for an hour, and nobody seen for as long.
func (s *site) age() {
	s.t.Helper()
	keys := queue.NewKeys(s.Prefix, topic)
	require.Eventually(s.t, func() bool { return s.Client.LLen(ctx, keys.Ready(group)).Val() > 0 }, patience, 5*time.Millisecond)
	entry := s.Client.LIndex(ctx, keys.Ready(group), 0).Val()
	require.NoError(s.t, s.Client.LSet(ctx, keys.Ready(group), 0, fmt.Sprintf("%s:%d", entry[:26], time.Now().Add(-time.Hour).UnixMilli())).Err())
	require.NoError(s.t, s.Client.HSet(ctx, keys.Stats(group), "seen", time.Now().Add(-time.Hour).UnixMilli()).Err())
}

// acts returns what the audit log has, the newest first.
func (s *site) acts() (said []string) {
	s.t.Helper()
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(s.t, err)
	for _, a := range acts {
		said = append(said, a.By+" "+a.Action)
	}
	return said
}
