package dashboard_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// brokenLog is a handler of a logger that panics at a message.
type brokenLog struct {
	slog.Handler
	at string
}

func (brokenLog) Enabled(context.Context, slog.Level) bool { return true }
func (l brokenLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.at {
		panic("the log is broken")
	}
	return nil
}

// An operation runs beside all requests, so a logger that panics would end the program.
func TestALoggerThatPanicsEndsOneOperation(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Logger = slog.New(brokenLog{slog.DiscardHandler, "Change by the dashboard"})
	})
	s.die("orders", "x")
	status, to := s.post("/confirm", "do", "purge", "t", "orders", "g", "g", "count", "1", "typed-count", "1", "typed-name", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	body := s.ends(to)
	require.Contains(t, body, "<strong>Failed</strong>")
	require.Contains(t, body, "the log is broken")
}

// The audit log takes no act without a name, and a change must not be missing there.
func TestAUserWithoutANameIsInTheAuditLog(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(*http.Request) (dashboard.User, error) { return dashboard.User{Role: dashboard.Operator}, nil }
	})
	s.publish("orders", time.Hour, nil, "x")
	status, _ := s.post("/pause", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, acts, 1)
	require.Equal(t, "anonymous", acts[0].By)
}

// Somebody who writes JSON a little wrong does not have its secrets shown.
func TestOddJSONIsRedacted(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for name, payload := range map[string]string{
		"a byte that is no UTF-8":  `{"password":"geheim","x":"` + "\xff" + `"}`,
		"a mark of the byte order": "\ufeff" + `{"password":"geheim"}`,
		"deep":                     strings.Repeat(`{"a":`, 300) + `{"password":"geheim"}` + strings.Repeat(`}`, 300),
	} {
		s.publishing("orders", time.Hour, nil, payload)
		page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		id := page.Messages[0].ID
		for _, address := range []string{"/message?t=orders&id=" + id, "/messages?t=orders"} {
			_, body := s.get(address)
			body = regexp.MustCompile(`<dt>UUID</dt><dd>.*</dd>`).ReplaceAllString(body, "")
			require.NotContains(t, body, "geheim", "%s: %s", name, address)
			require.NotContains(t, body, "67 65 68", "%s: %s", name, address)
			if strings.HasPrefix(address, "/message?") || name == "deep" {
				require.Contains(t, body, "[hidden", "%s: %s", name, address)
			}
		}
		require.NoError(t, s.admin.Cancel(ctx, "orders", admin.ByID(id)))
	}
	id := s.publish("orders", time.Hour, nil, "{\"x\":\"\xff\"}")
	_, body := s.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "22 ff 22", "bytes of a payload without secrets are shown as they are")
}

// A long payload is cut between two characters, and the page says that it is cut.
func TestLongPayloadsAreCut(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	id := s.publish("orders", time.Hour, nil, "xy"+strings.Repeat("🐦", 20_000))
	_, body := s.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "Only the beginning is shown.")
	require.Contains(t, body, `<summary>Text</summary><pre tabindex="0">xy🐦`)
	require.Contains(t, body, "🐦</pre>")
	id = s.publish("orders", time.Hour, nil, "["+strings.Repeat("1,", 30_000)+"1]") // longer with indents
	_, body = s.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "Only the beginning is shown.")
	id = s.publish("orders", time.Hour, nil, "[1]")
	_, body = s.get("/message?t=orders&id=" + id)
	require.NotContains(t, body, "Only the beginning is shown.")
}

// A topic is mended once at a time, and what a check found is mended once.
func TestATopicIsMendedOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.lose("orders", 2)
	check := func() {
		_, to := s.post("/check", "t", "orders")
		s.ends(to)
	}
	check()
	started, goOn := make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	s.beforeEach(func(call redis.Cmder) error {
		if call.Name() == "type" { // which only a check asks
			started <- struct{}{}
			<-goOn
		}
		return nil
	})
	mend := []string{"do", "repair", "t", "orders", "count", "2", "typed-count", "2", "typed-name", "orders"}
	status, to := s.post("/confirm", mend...)
	require.Equal(t, http.StatusSeeOther, status)
	<-started
	status, _ = s.post("/confirm", mend...)
	require.Equal(t, http.StatusBadRequest, status)
	release()
	require.Contains(t, s.ends(to), "<strong>Done</strong>: 2 of 2")
	status, body := s.get("/confirm?do=repair&t=orders")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "The topic was mended since the last check. Check it again.")
	check()
	_, body = s.get("/confirm?do=repair&t=orders")
	require.Contains(t, body, "The last check found nothing to mend.")
}

// Close ends a check that is under way, waits for it, and ends the connections of browsers. The
// browser that asked for the check may be gone by then.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	server := httptest.NewServer(s.page)
	t.Cleanup(server.Close)
	patient, end := context.WithTimeout(ctx, testkit.Soon)
	defer end()
	live, err := http.NewRequestWithContext(patient, http.MethodGet, server.URL+"/topic?t=orders", nil)
	require.NoError(t, err)
	live.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(live)
	require.NoError(t, err)
	defer answer.Body.Close()

	started, goOn, ended := make(chan struct{}, 100), make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var checking atomic.Bool
	checking.Store(true)
	s.beforeEach(func(call redis.Cmder) error {
		if call.Name() == "type" && checking.CompareAndSwap(true, false) { // which only a check asks
			started <- struct{}{}
			<-goOn
		}
		return nil
	})
	asks, leave := context.WithCancel(ctx)
	r := request(http.MethodPost, "/check", "t", "orders").WithContext(asks)
	status, _, _ := s.answers(r)
	require.Equal(t, http.StatusSeeOther, status)
	leave()
	<-started
	go func() {
		defer close(ended)
		_ = s.page.Close()
	}()
	_, err = io.Copy(io.Discard, answer.Body) // until the page ends it
	require.NoError(t, err)
	require.Never(t, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}, 50*time.Millisecond, 10*time.Millisecond, "Close does not wait for the check")
	release()
	<-ended
	status, _ = s.get("/")
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// The audit log has the one who stops an operation, too.
func TestWhoStopsAnOperationIsKnown(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(r *http.Request) (dashboard.User, error) {
			return dashboard.User{Name: r.FormValue("who"), Role: dashboard.Operator}, nil
		}
	})
	s.die("orders", "x")
	started, goOn := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	var begun atomic.Bool
	s.beforeEach(func(call redis.Cmder) error {
		if call.Name() == "xadd" && begun.CompareAndSwap(false, true) { // the act with which the operation begins
			started <- struct{}{}
			<-goOn
		}
		return nil
	})
	_, to := s.post("/confirm?who=ann", "do", "purge", "t", "orders", "g", "g", "count", "1", "typed-count", "1", "typed-name", "orders")
	<-started
	status, _ := s.post("/job/stop?who=bob", "id", strings.TrimPrefix(to, "/job?id="))
	require.Equal(t, http.StatusSeeOther, status)
	release()
	s.ends(to)
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	var did []string
	for _, a := range acts {
		did = append(did, a.By+" "+a.Action+" "+a.Topic)
	}
	require.ElementsMatch(t, []string{"ann purge orders", "bob stop orders", "ann purge orders"}, did)
}

// A message that is looked for by its delay ID is read once for all browsers, too.
func TestAMessageByDelayIDIsReadOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.publishNamed("orders", "order 7", time.Hour)
	_, body := s.get("/message?t=orders&id=order+7")
	require.Contains(t, body, "order 7")
	var asked atomic.Int64
	s.beforeEach(func(call redis.Cmder) error {
		if strings.HasPrefix(call.Name(), "evalsha") {
			asked.Add(1)
		}
		return nil
	})
	for range 50 {
		s.get("/message?t=orders&id=order+7")
	}
	require.Less(t, asked.Load(), int64(25))
}

// Each address that changes something refuses requests of other sites.
func TestEveryChangeFromAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	for _, address := range s.addresses(http.MethodPost) {
		r := request(http.MethodPost, address, "t", "orders", "g", "g", "s", "x", "do", "purge", "count", "1", "typed-count", "1", "typed-name", "orders")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		status, body, _ := s.answers(r)
		require.Equal(t, http.StatusForbidden, status, address)
		require.Contains(t, body, "comes from another site", address)
	}
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Empty(t, acts)
}

func TestTheLimitOfAGroupIsSetLiftedAndReset(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	limit := func() admin.GroupLimit {
		stats, err := s.admin.Stats(ctx, "orders")
		require.NoError(t, err)
		return stats.Groups[0].Limit
	}
	for _, wrong := range [][]string{{}, {"burst", "3"}, {"rate", "0/s"}, {"rate", "NaN/s"}, {"rate", "50"}, {"rate", "5/s", "burst", "0"}, {"at-once", "-1"},
		{"at-once", "many"}, {"rate", "5/s", "burst", "9999999"}, {"rate", "1/72h"}, {"why", "deal"}} {
		status, said := s.post("/limit/set", append([]string{"t", "orders", "g", "g"}, wrong...)...)
		require.Equal(t, http.StatusBadRequest, status, "%q: %s", wrong, said)
		require.Zero(t, limit())
	}
	status, _ := s.post("/limit/other", "t", "orders", "g", "g")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.post("/limit/set", "t", "orders", "g", "none", "rate", "5/s")
	require.Equal(t, http.StatusNotFound, status)

	status, to := s.post("/limit/set", "t", "orders", "g", "g", "rate", " 50/s ", "at-once", "5", "why", "deal")
	require.Equal(t, http.StatusSeeOther, status, to)
	require.Equal(t, admin.GroupLimit{Limit: admin.Limit{Rate: 50, Burst: 5, AtOnce: 5}, Set: true}, limit())
	_, body := s.get(to)
	require.Contains(t, body, "The limit of group g is now: 50/s, burst 5, 5 at once, set by an operator.")
	require.Contains(t, body, `<span class="chip">50/s, burst 5, 5 at once, set by an operator</span>`)
	require.NotContains(t, body, ">limited</span>")
	_, to = s.post("/limit/lift", "t", "orders", "g", "g", "why", "quick")
	require.Equal(t, admin.GroupLimit{Set: true}, limit())
	_, body = s.get(to)
	require.Contains(t, body, `<span class="chip">lifted; subscribers ask for no limit</span>`)
	_, to = s.post("/limit/reset", "t", "orders", "g", "g")
	require.Zero(t, limit())
	_, body = s.get(to)
	require.Contains(t, body, "is now: no limit.")

	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	var said []string
	for _, act := range acts {
		if act.Error == "" {
			said = append(said, act.By+" "+act.Action+" "+act.Group+" "+act.Detail)
		}
	}
	require.Equal(t, []string{operator.Name + " reset-limit g ", operator.Name + " lift-limit g quick", operator.Name + " limit g 50/s, burst 5, 5 at once: deal"}, said)
}

func TestALimitedGroupIsMarked(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	in := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.MaxInFlight, c.AtOnce, c.CloseTimeout = "g", 2, 1, time.Millisecond
	}), "orders")
	s.publish("orders", 0, nil, "x")
	s.publish("orders", 0, nil, "y")
	testkit.Receive(t, in)
	testkit.Eventually(t, func() bool {
		_, body := s.get("/topic?t=orders")
		return strings.Contains(body, `<span class="chip">1 at once</span> <span class="chip warning">limited</span>`)
	}, "the chip")
}

// A pause of no time would be one without end.
func TestAPauseOfNoTimeIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	for _, length := range []string{"0", "0s", "-1m", "soon"} {
		status, to := s.post("/pause", "t", "orders", "for", length)
		require.Equal(t, http.StatusBadRequest, status, to)
	}
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	require.Nil(t, stats.Pause)
}

// A typo in a confirmation keeps the form, with what was typed.
func TestATypoKeepsTheForm(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publishNamed("orders", "order 7", time.Hour)
	status, body, _ := s.answers(request(http.MethodPost, "/confirm", "do", "remove-topic", "t", "orders", "count", "1", "typed-name", "oders", "typed-count", "1"))
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "The topic that you typed is another one. Nothing was changed.")
	require.Contains(t, body, `<input name="typed-name" value="oders"`)
	require.Contains(t, body, `<input name="typed-count" value="1"`)
}
