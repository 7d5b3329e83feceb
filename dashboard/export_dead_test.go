package dashboard_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// bury makes dead letters of these messages in group g.
func (s *site) bury(topic, reason string, all ...*message.Message) {
	s.t.Helper()
	sub := testkit.NewSubscriber(s.t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup, c.CloseTimeout = "g", testkit.Soon })
	messages := testkit.SubscribeTo(s.t, sub, topic)
	require.NoError(s.t, testkit.NewPublisher(s.t, s.Server).Publish(topic, all...))
	for range all {
		msg := <-messages
		require.True(s.t, redisdelay.DeadOnNack(msg, errors.New(reason)))
		msg.Nack()
	}
	require.NoError(s.t, sub.Close())
}

func TestDeadLettersAreExportedAsTheToolDoes(t *testing.T) {
	t.Parallel()
	s := newSite(t, reader)
	var all []*message.Message
	for range 250 {
		msg := message.NewMessage("uuid \xff", []byte("order 1\x00\xff"))
		msg.Metadata.Set("kind", "gift")
		all = append(all, msg)
	}
	s.bury("orders", "no stock of article 17", all...)
	s.bury("orders", "answered 500", message.NewMessage("other", []byte("x")))
	address := "/export?" + url.Values{"t": {"orders"}, "g": {"g"}, "reason": {"no stock of article #"}}.Encode()
	status, body, header := s.answers(request(http.MethodGet, address))
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, header.Get("Content-Disposition"), "attachment")
	lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	require.Len(t, lines, 250)
	var l admin.Letter
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &l))
	require.Equal(t, "uuid \xff", l.UUID)
	require.Equal(t, "order 1\x00\xff", string(l.Payload))
	require.Equal(t, map[string]string{"kind": "gift"}, map[string]string{"kind": l.Metadata["kind"]})
	require.Equal(t, "no stock of article 17", l.Reason)
	require.WithinDuration(t, time.Now(), l.DiedAt, time.Hour)
	status, body, _ = s.answers(request(http.MethodGet, "/export?t=orders&g=g"))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 251, strings.Count(body, "\n"))
	status, _ = s.get("/export?t=orders&g=g&reason=nothing")
	require.Equal(t, http.StatusNotFound, status)
	_, body = s.get("/dead?t=orders&g=g")
	require.Contains(t, body, "/export?")
}

// A value that the page hides does not leave it in a file.
func TestHiddenValuesAreNotExported(t *testing.T) {
	t.Parallel()
	for name, hide := range map[string]func(*message.Message){
		"by its key":        func(msg *message.Message) { msg.Metadata.Set("X-Auth-Token", "geheim") },
		"in the payload":    func(msg *message.Message) { msg.Payload = []byte(`{"a":["x"],"user":{"password":"geheim"}}`) },
		"in a text of JSON": func(msg *message.Message) { msg.Metadata.Set("user", `{"password":"geheim"}`) },
		"far behind": func(msg *message.Message) {
			msg.Payload = []byte(`{"a":"` + strings.Repeat("\u2028", 100_000) + `","password":"geheim"}`)
		},
		"in what is not whole": func(msg *message.Message) { msg.Payload = []byte(`{"password":"geheim`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, operator)
			msg := message.NewMessage("secret", []byte("{}"))
			hide(msg)
			s.bury("orders", "x", message.NewMessage("plain", []byte(`{"order":1}`)), msg)
			status, body := s.get("/export?t=orders&g=g")
			require.Equal(t, http.StatusForbidden, status)
			require.Contains(t, body, "1 of 2 dead letters have values that are hidden on this page")
			require.NotContains(t, body, "geheim")
		})
	}
	s := newSite(t, viewer)
	s.die("orders", "x")
	status, _ := s.get("/export?t=orders&g=g")
	require.Equal(t, http.StatusForbidden, status)
	_, body := s.get("/dead?t=orders&g=g")
	require.NotContains(t, body, "/export")
}
