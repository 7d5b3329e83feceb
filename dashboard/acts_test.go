package dashboard_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// did returns what the audit log has, the newest first.
func (s *site) did() (said []string) {
	s.t.Helper()
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(s.t, err)
	for _, act := range acts {
		said = append(said, act.By+" "+act.Action+" "+act.Group+" "+act.Detail)
	}
	return said
}

func TestAWorkerIsReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	long := func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.MaxInFlight, c.LeaseDuration, c.CloseTimeout = "g", 2, testkit.Never, time.Millisecond
	}
	hangs := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, long), "orders")
	s.publishing("orders", 0, nil, "x")
	testkit.Receive(t, hangs)
	_, body := s.get("/topic?t=orders")
	link := regexp.MustCompile(`href="(/worker\?[^"]*)">Release…`).FindStringSubmatch(body)
	require.NotNil(t, link, body)
	workers, err := s.admin.Workers(ctx, "orders")
	require.NoError(t, err)
	address := "/worker?" + url.Values{"t": {"orders"}, "g": {"g"}, "w": {workers[0].Name()}}.Encode()
	_, body = s.get(address)
	require.Contains(t, body, "Release 1 message")
	other := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, long), "orders")
	status, to := s.post("/release", s.fields(address, "/release")...)
	require.Equal(t, http.StatusSeeOther, status)
	_, body = s.get(to)
	require.Contains(t, body, "Released: 1 message of ")
	testkit.Receive(t, other).Ack()
	require.Equal(t, []string{`ann release-worker g done: 1 message of worker "` + workers[0].Name() + `"`}, s.did())
	for _, wrong := range []string{"g", "w"} {
		status, _ = s.post("/release", "t", "orders", wrong, "none")
		require.Equal(t, http.StatusNotFound, status)
	}
}

func TestTheHistoryOfAGroupIsSetChangedAndReset(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	history := func() admin.GroupHistory {
		stats, err := s.admin.Stats(ctx, "orders")
		require.NoError(t, err)
		return stats.Groups[0].History
	}
	for _, wrong := range [][]string{{}, {"most", "3"}, {"keep", "0"}, {"keep", "soon"}, {"keep", "24h", "most", "0"}, {"keep", "24h", "most", "many"}, {"why", "x"}} {
		status, _ := s.post("/history/set", append([]string{"t", "orders", "g", "g"}, wrong...)...)
		require.Equal(t, http.StatusBadRequest, status, "%q", wrong)
		require.Zero(t, history())
	}
	status, _ := s.post("/history/other", "t", "orders", "g", "g")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.post("/history/set", "t", "orders", "g", "none", "keep", "24h")
	require.Equal(t, http.StatusNotFound, status)

	status, to := s.post("/history/set", append(s.fields("/topic?t=orders", "/history/set"), "keep", "24h", "most", "500", "why", "lost")...)
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, admin.GroupHistory{History: admin.History{Retention: 24 * time.Hour, Max: 500}, Set: true}, history())
	_, body := s.get(to)
	require.Contains(t, body, "The history of group g is now: 24h0m0s, 500 messages, set by an operator.")
	_, _ = s.post("/history/off", "t", "orders", "g", "g")
	require.Equal(t, admin.GroupHistory{Set: true}, history())
	_, _ = s.post("/history/reset", "t", "orders", "g", "g")
	require.Zero(t, history())
	require.Equal(t, []string{"ann reset-history g ", "ann keep-history g no history", "ann keep-history g 24h0m0s, 500 messages: lost"}, s.did()[:3])
}

// An act on a message has when that was due, and the log is searched by person, topic and time.
func TestTheAuditLogHasDueTimesAndIsFiltered(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	var due []string
	for i, do := range []string{"later", "now", "cancel"} {
		id := s.publish("orders", time.Hour, nil, do)
		m, err := s.admin.Get(ctx, "orders", admin.ByID(id))
		require.NoError(t, err)
		due = append(due, m.DueText())
		require.Regexp(t, "^due was 20", due[i])
		status, _ := s.post("/message/"+do, "t", "orders", "id", id, "in", "2h")
		require.Equal(t, http.StatusSeeOther, status)
	}
	require.Equal(t, []string{"ann cancel  " + due[2], "ann deliver-now  " + due[1], "ann reschedule  in 2h0m0s, " + due[0]}, s.did())
	require.NoError(t, s.admin.Record(ctx, admin.Act{By: "bob", Action: "pause", Topic: "mails"}))
	for filter, want := range map[string][2]bool{"": {true, true}, "by=bob": {false, true}, "t=orders": {true, false}, "since=1h": {true, true}, "by=ann&t=mails": {false, false}} {
		_, body := s.get("/audit?" + filter)
		require.Equal(t, want[0], strings.Contains(body, due[0]), filter)
		require.Equal(t, want[1], strings.Contains(body, "<td>bob</td>"), filter)
	}
	_, body := s.get("/audit?since=0s")
	require.NotContains(t, body, "<td>bob</td>")
	status, _ := s.get("/audit?since=soonish")
	require.Equal(t, http.StatusBadRequest, status)
}

// Metadata by which somebody chose messages is not shown to those who may not see metadata.
func TestTheAuditLogAndJobsHideMetadata(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, map[string]string{"kind": "gift"}, "x")
	_, job := s.post("/confirm", "do", "cancel", "t", "orders", "state", "waiting", "key", "kind", "value", "gift", "count", "1", "typed-count", "1", "typed-name", "orders")
	require.Eventually(t, func() bool { _, body := s.get(job); return strings.Contains(body, "<strong>Done</strong>") }, testkit.Soon, time.Millisecond)
	require.NoError(t, s.admin.Record(ctx, admin.Act{By: "bob", Action: "cancel", Topic: "orders", Detail: "since 1h, metadata api_token=geheim", Error: "metadata pin=geheim"}))
	for _, address := range []string{job, "/audit"} {
		_, body := s.get(address)
		require.Contains(t, body, "metadata kind=gift", address)
		require.NotContains(t, body, "geheim")
		s.page.ServeAs(viewer, func() { _, body = s.get(address) })
		require.NotContains(t, body, "gift", address)
		require.Contains(t, body, "metadata that is hidden here", address)
	}
}
