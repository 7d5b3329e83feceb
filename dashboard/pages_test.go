package dashboard_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
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
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// hostile is a text that would run a script, wherever it is shown unescaped.
const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}` + "\x00\x1b[31m\u202e"

// Every field that somebody else can fill in is shown as text, on every page.
func TestHostileTextsAreShownAsText(t *testing.T) {
	t.Parallel()
	user := operator
	user.Name = hostile
	s := newSite(t, user)
	s.die(hostile, hostile)
	msg := message.NewMessage(hostile, []byte(hostile))
	msg.Metadata.Set(hostile, hostile)
	redisdelay.SetDelayID(msg, hostile, redisdelay.DelayIDReplace)
	redisdelay.DelayFor(msg, time.Hour)
	require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(hostile, msg))
	sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = hostile })
	require.NoError(t, sub.SubscribeInitialize(hostile))
	status, to := s.post("/pause", "t", hostile, "g", hostile, "why", hostile)
	require.Equal(t, http.StatusSeeOther, status)
	status, _ = s.post("/limit/set", "t", hostile, "g", hostile, "rate", "5/s", "why", hostile)
	require.Equal(t, http.StatusSeeOther, status)

	s.recur(daily(hostile, hostile))
	status, _ = s.post("/schedule/pause", "t", hostile, "s", hostile)
	require.Equal(t, http.StatusSeeOther, status)
	require.NoError(t, s.Client.HSet(ctx, s.Prefix+":{"+hostile+"}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", hostile).Err())
	require.NoError(t, s.Client.HSet(ctx, s.Prefix+":{"+hostile+"}:names", hostile, "x").Err())
	_, checked := s.post("/check", "t", hostile)
	s.ends(checked)

	get, err := s.admin.Get(ctx, hostile, admin.ByDelayID(hostile))
	require.NoError(t, err)
	q := url.QueryEscape(hostile)
	for _, address := range []string{"/", "/?q=" + q, "/?sort=" + q, "/?page=" + q, to, "/topic?t=" + q, "/topic?t=" + q + "&range=" + q, "/topic?t=nope" + q,
		"/messages?t=" + q, "/messages?t=" + q + "&state=dead&g=g", "/messages?t=" + q + "&state=" + q, "/messages?t=" + q + "&uuid=" + q + "&reason=" + q + "&key=" + q + "&value=" + q,
		"/messages?t=" + q + "&cursor=" + q, "/message?t=" + q + "&id=" + get.ID, "/message?t=" + q + "&id=" + q, "/dead?t=" + q + "&g=g",
		"/confirm?do=purge&t=" + q + "&g=g&reason=" + q, "/confirm?do=" + q, "/schedules", "/schedules?t=" + q, "/schedules?page=" + q,
		"/schedule?t=" + q + "&s=" + q, "/confirm?do=remove-schedule&t=" + q + "&s=" + q, "/confirm?do=repair&t=" + q, checked, "/messages?t=" + q + "&delay-id=" + q, "/audit", "/audit?cursor=" + q, "/ended?t=" + q, "/ended?t=" + q + "&name=" + q, "/job?id=" + q, "/" + q, "/?f=" + q} {
		status, body := s.get(address)
		require.NotContains(t, body, "<script>alert", address)
		require.NotContains(t, body, "<img src=x", address)
		require.NotContains(t, body, `"'>`, address)
		require.Less(t, status, 500, address)
	}
}

func TestContentsAreHiddenUnlessAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	id := s.publish("orders", time.Hour, map[string]string{"customer": "Alice"}, "the payload")
	for _, address := range []string{"/messages?t=orders", "/message?t=orders&id=" + id} {
		status, body := s.get(address)
		require.Equal(t, 200, status)
		require.Contains(t, body, id)
		require.Contains(t, body, "hidden from you")
		require.NotContains(t, body, "Alice")
		require.NotContains(t, strings.ReplaceAll(body, "uuid of the payload", ""), "the payload")
	}
	status, _ := s.get("/messages?t=orders&key=customer&value=Alice") // nor can it be guessed
	require.Equal(t, http.StatusForbidden, status)

	with := siteOn(t, s.Server, reader)
	_, body := with.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "Alice")
	require.Contains(t, body, "<pre tabindex=\"0\">the payload</pre>")
	_, body = with.get("/messages?t=orders&key=customer&value=Alice")
	require.Contains(t, body, id)
	_, body = with.get("/messages?t=orders&key=customer&value=Bob")
	require.NotContains(t, body, id)
}

func TestKeysAreRedacted(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) { c.Redact = []string{"Password", "authorization"} })
	payload := `{"n":12345678901234567890.10,"a":[{"password":{"deep":"geheim"}},{"PASSWORD":["geheim"]},"<&>"],"ok":null,"x":{}}`
	id := s.publish("orders", time.Hour, map[string]string{"Authorization": "geheim", "kind": "gift"}, payload)
	for _, address := range []string{"/message?t=orders&id=" + id, "/messages?t=orders"} {
		_, body := s.get(address)
		body = strings.ReplaceAll(body, "uuid of "+payload, "")
		body = regexp.MustCompile(`<dt>UUID</dt><dd>.*</dd>`).ReplaceAllString(body, "")
		require.NotContains(t, body, "geheim", address)
		require.NotContains(t, body, "67 65 68 65 69 6d", address)
		require.Contains(t, body, "[hidden]")
		require.Contains(t, body, "gift")
	}
	_, body := s.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "12345678901234567890.10")
	status, _ := s.get("/messages?t=orders&key=AUTHORIZATION&value=geheim")
	require.Equal(t, http.StatusForbidden, status)
}

func TestBulkOperationsNeedTheTopicAndTheCount(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "line 1", "line 2", "other")
	dead := func() int {
		stats, err := s.admin.Stats(ctx, "orders")
		require.NoError(t, err)
		return stats.Groups[0].Dead
	}
	_, body := s.get("/confirm?do=purge&t=orders&g=g&reason=line+%23")
	require.Contains(t, body, "Purge 2 dead letters")
	form := func(change ...string) []string {
		return append([]string{"do", "purge", "t", "orders", "g", "g", "reason", "line #", "count", "2", "typed-name", "orders", "typed-count", "2"}, change...)
	}
	for _, wrong := range [][2]string{{"typed-name", "order"}, {"typed-name", ""}, {"typed-count", "3"}, {"typed-count", ""}, {"count", "x"}, {"count", "-1"}, {"do", "drop"}} {
		status, _ := s.post("/confirm", form(wrong[0], wrong[1])...)
		require.Equal(t, http.StatusBadRequest, status, wrong)
	}
	require.Equal(t, 3, dead())
	status, to := s.post("/confirm", form()...)
	require.Equal(t, http.StatusSeeOther, status)
	require.Eventually(t, func() bool { _, body := s.get(to); return strings.Contains(body, "<strong>Done</strong>: 2 of 2") }, testkit.Soon, time.Millisecond)
	require.Equal(t, 1, dead())

	status, to = s.post("/confirm", "do", "requeue", "t", "orders", "g", "g", "count", "1", "typed-name", "orders", "typed-count", "1", "spread", "1h")
	require.Equal(t, http.StatusSeeOther, status)
	require.Eventually(t, func() bool { _, body := s.get(to); return strings.Contains(body, "<strong>Done</strong>: 1 of 1") }, testkit.Soon, time.Millisecond)
	require.Zero(t, dead())
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, acts, 4) // each begins and ends
	require.Equal(t, "done: 1 dead letter", acts[0].Detail)
	require.Equal(t, `begins with 2 dead letters, reason "line #"`, acts[3].Detail)
}

func TestWholeGroupsAndTopicsAreRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	s.publish("orders", time.Hour, nil, "later")
	_, body := s.get("/confirm?do=remove-topic&t=orders")
	require.Contains(t, body, "2 messages")
	status, _ := s.post("/confirm", "do", "remove-topic", "t", "orders", "count", "1", "typed-name", "orders", "typed-count", "1")
	require.Equal(t, http.StatusBadRequest, status) // there are more by now
	for _, do := range []string{"remove-group", "remove-topic"} {
		status, to := s.post("/confirm", "do", do, "t", "orders", "g", "g", "count", "2", "typed-name", "orders", "typed-count", "2")
		require.Equal(t, http.StatusSeeOther, status)
		require.Eventually(t, func() bool { _, body := s.get(to); return strings.Contains(body, "<strong>Done") }, testkit.Soon, time.Millisecond)
	}
	status, body = s.get("/topic?t=orders")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "It is not in Redis.")
}

func TestOneMessageIsChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	id := s.publish("orders", time.Hour, nil, "x")
	status, to := s.post("/message/later", "t", "orders", "id", id, "in", "2h")
	require.Equal(t, http.StatusSeeOther, status)
	_, body := s.get(to)
	require.Contains(t, body, "Rescheduled: it is due in 2 h.")
	_, body = s.get(to)
	require.NotContains(t, body, "Rescheduled", "a link puts words into the page")
	_, to = s.post("/message/later", "t", "orders", "id", id, "in", "-2h")
	_, body = s.get(to)
	require.Contains(t, body, "Rescheduled: it is due now.")
	for text, said := range map[string]string{"tomorrow 9:00": "Rescheduled: it is due at ", "2099-11-27 09:00": "2099-11-27 09:00:00 CET", "2d": "in 2 d", "2020-01-01": "it is due now"} {
		_, to = s.post("/message/later", "t", "orders", "id", id, "in", text, "zone", "Europe/Berlin")
		_, body = s.get(to)
		require.Contains(t, body, said, text)
	}
	status, _ = s.post("/message/later", "t", "orders", "id", id, "in", "soon")
	require.Equal(t, http.StatusBadRequest, status)
	status, _ = s.post("/message/cancel", "t", "orders", "id", id)
	require.Equal(t, http.StatusSeeOther, status)
	status, _ = s.post("/message/now", "t", "orders", "id", id)
	require.Equal(t, http.StatusNotFound, status)
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, acts, 8)
	require.Contains(t, acts[0].Error, "not found")
	require.Equal(t, id, acts[1].MessageID)
}

// Pages stay right while messages move: a message that stays is on one page.
func TestPagesOfMessages(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	var messages []*message.Message
	for i := range 120 {
		msg := message.NewMessage(fmt.Sprint("uuid of ", i), []byte("x"))
		redisdelay.DelayFor(msg, time.Hour+time.Duration(i)*time.Second)
		messages = append(messages, msg)
	}
	require.NoError(t, testkit.NewPublisher(t, s.Server).Publish("orders", messages...))
	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Waiting, Limit: 1000})
	require.NoError(t, err)
	var ids []string
	for _, m := range page.Messages {
		ids = append(ids, m.ID)
	}
	seen := map[string]int{}
	next := "/messages?t=orders"
	for n := 0; next != ""; n++ {
		_, body := s.get(next)
		for _, id := range ids {
			if strings.Contains(body, ">"+id+"<") {
				seen[id]++
			}
		}
		next = ""
		if m := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(body); m != nil {
			next = strings.ReplaceAll(m[1], "&amp;", "&")
		}
		require.NoError(t, s.admin.Cancel(ctx, "orders", admin.ByID(ids[n]))) // messages before the cursor go
	}
	require.Len(t, seen, 120)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
}

// However many browsers look, Redis is asked once.
func TestBrowsersShareWhatIsRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.die("orders", "x")
	server := httptest.NewServer(s.page)
	t.Cleanup(server.Close)
	var asked atomic.Int64
	s.beforeEach(func(call redis.Cmder) error {
		asked.Add(1)
		return nil
	})
	browsers := 40
	got := make(chan string, browsers)
	for range browsers {
		go func() {
			r, _ := http.NewRequest(http.MethodGet, server.URL+"/topic?t=orders", nil)
			r.Header.Set("Accept", "text/event-stream")
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				got <- err.Error()
				return
			}
			defer answer.Body.Close()
			lines := bufio.NewScanner(answer.Body)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				if lines.Text() == "event: live" {
					break
				}
			}
			got <- answer.Header.Get("Content-Type")
		}()
	}
	for range browsers {
		require.Equal(t, "text/event-stream", <-got)
	}
	require.Less(t, asked.Load(), int64(browsers))
	require.Greater(t, asked.Load(), int64(1))
}

func TestTheOverviewSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	var status int
	var body string
	until := func(on *site, want string) { // all topics are read in the background
		require.Eventually(t, func() bool { status, body = on.get("/"); return strings.Contains(body, want) }, testkit.Soon, 10*time.Millisecond, want)
	}
	until(s, "There is no topic yet.")
	s.die("orders", "x")
	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{By: "ann", Why: "deploy"})
	require.NoError(t, err)
	s.get("/topic?t=orders") // the list shows what is read for other pages, too
	until(s, "because: &#34;deploy&#34;")
	s.publish("alright", time.Hour, nil, "x")
	sub := testkit.NewSubscriber(t, s.Server)
	require.NoError(t, sub.SubscribeInitialize("alright"))
	testkit.SubscribeTo(t, sub, "alright")
	require.Eventually(t, func() bool {
		s.get("/topic?t=alright")
		_, body = s.get("/")
		orders, alright := strings.Index(body, `href="/topic?t=orders"><span`), strings.Index(body, `href="/topic?t=alright"><span`)
		return orders >= 0 && orders < alright // the worst comes first
	}, testkit.Soon, 10*time.Millisecond)
	require.NoError(t, sub.Close())
	require.NoError(t, s.Client.Close())
	status, body = s.get("/topic?t=other")
	require.Equal(t, http.StatusBadGateway, status)
	require.Contains(t, body, "Is the server up")
	until(siteOn(t, s.Server, viewer), "Redis does not answer")
	require.Equal(t, http.StatusBadGateway, status)
}

func TestThePageOfATopicSaysWhoIsActive(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	for range 2 {
		testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.SingleActive = true }), "orders")
	}
	require.Eventually(t, func() bool {
		stats, err := s.admin.Stats(ctx, "orders")
		require.NoError(t, err)
		return stats.Groups[0].Active != "" && stats.Groups[0].Standby == 1
	}, testkit.Soon, time.Millisecond)
	status, body := s.get("/topic?t=orders")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `<span class="chip">one is active, 1 stand by</span>`)
	require.Equal(t, 1, strings.Count(body, `<span class="chip">active</span>`))
	require.Equal(t, 1, strings.Count(body, `<span class="chip">stands by</span>`))
}

// The buttons, and what the forms ask for, are those of the table of operations.
func TestOperationsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x", "y")
	_, page := s.get("/dead?t=orders&g=g")
	for _, name := range []string{"1", "2"} {
		s.publish("waits", time.Hour, nil, name)
	}
	_, waiting := s.get("/messages?t=waits")
	for _, o := range admin.Operations() {
		caption := strings.ToUpper(o.Verb[:1]) + o.Verb[1:]
		if o.State == admin.Dead {
			require.Equal(t, 3, strings.Count(page, "do="+o.Name+"&"), "%s: for each reason, and for all", o.Name)
			require.Contains(t, page, caption+" all…")
		} else {
			require.NotContains(t, page, "do="+o.Name+"&")
			require.Equal(t, o.Waits, strings.Contains(waiting, "do="+o.Name+"&"), o.Name)
		}
		if o.Of == admin.OfSchedule {
			continue
		}
		topic := map[bool]string{true: "waits", false: "orders"}[o.Waits]
		_, form := s.get("/confirm?do=" + o.Name + "&t=" + topic + "&g=g&s=x&to=other&reason=")
		require.Equal(t, o.Times, strings.Contains(form, `name="in"`), o.Name)
		require.Contains(t, form, o.Effect)
		require.Contains(t, form, caption+" 2 "+o.Unit+"s")
		require.Equal(t, o.Spreads, strings.Contains(form, `name="spread"`), o.Name)
		require.Equal(t, o.Moves, strings.Contains(form, `name="to"`), o.Name)
		require.Equal(t, o.Deletes, strings.Contains(form, "This cannot be undone."), o.Name)
		require.Equal(t, o.Of == admin.OfGroup, strings.Contains(form, "<dt>Group</dt>"), o.Name)
	}
}

func TestDeadLettersMoveOverATime(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x", "y")
	form := []string{"do", "move", "t", "orders", "g", "g", "count", "2", "typed-name", "orders", "typed-count", "2", "spread", "10h"}
	status, _ := s.post("/confirm", form...)
	require.Equal(t, http.StatusBadRequest, status, "no topic to move to")
	status, to := s.post("/confirm", append(form, "to", " retired ")...)
	require.Equal(t, http.StatusSeeOther, status)
	require.Eventually(t, func() bool { _, body := s.get(to); return strings.Contains(body, "<strong>Done</strong>: 2 of 2") }, testkit.Soon, time.Millisecond)
	moved, err := s.admin.List(ctx, "retired", admin.Query{State: admin.Waiting})
	require.NoError(t, err)
	require.Len(t, moved.Messages, 2) // nobody schedules the topic
	require.InDelta(t, 5*time.Hour, moved.Messages[1].Places[0].At.Sub(moved.Messages[0].Places[0].At), float64(time.Minute))
}
