package dashboard_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func containsAll(body string, texts ...string) bool {
	for _, text := range texts {
		if !strings.Contains(body, text) {
			return false
		}
	}
	return true
}

// lose makes n messages that are in no state.
func (s *site) lose(topic string, n int) {
	s.t.Helper()
	sub := testkit.NewSubscriber(s.t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = "g" })
	require.NoError(s.t, sub.SubscribeInitialize(topic))
	for i := range n {
		id := s.publish(topic, time.Hour, nil, fmt.Sprint("lost ", i))
		require.NoError(s.t, s.Client.ZRem(ctx, s.Prefix+":{"+topic+"}:pending", id).Err())
	}
}

// ends waits until a job ends, and returns its page.
func (s *site) ends(address string) (body string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		status, got := s.get(address)
		require.Equal(s.t, http.StatusOK, status)
		body = got
		return strings.Contains(body, "<dt>Ended</dt>")
	}, testkit.Soon, time.Millisecond)
	return body
}

func TestATopicIsCheckedAndMended(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.lose("orders", 25)
	status, body := s.get("/confirm?do=repair&t=orders")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "Check the topic first.")
	status, to := s.post("/check", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	body = s.ends(to)
	for _, want := range []string{"Check of orders", "A message has a body, and is in no state", "To mend it: It is due again in all groups.", "And 5 more of this kind.",
		"Mend 25 violations…", `value="100"`, "Redis may lose messages when it restarts."} {
		require.Contains(t, body, want)
	}
	_, body = s.get("/topic?t=orders")
	require.Contains(t, body, ": 25 violations</a>")
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	require.Zero(t, stats.Waiting, "a check changes nothing")

	_, body = s.get("/confirm?do=repair&t=orders")
	require.Contains(t, body, "Mend 25 violations")
	form := []string{"do", "repair", "t", "orders", "count", "25", "typed-count", "25", "typed-name"}
	status, _ = s.post("/confirm", append(form, "order")...)
	require.Equal(t, http.StatusBadRequest, status)
	status, to = s.post("/confirm", append(form, "orders")...)
	require.Equal(t, http.StatusSeeOther, status)
	body = s.ends(to)
	require.Contains(t, body, "<strong>Done</strong>: 25 of 25")
	require.Contains(t, body, "25 mended. It is due again in all groups.")
	report, err := s.admin.Check(ctx, "orders")
	require.NoError(t, err)
	require.Empty(t, report.Violations())
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, acts, 2) // a check is no change
	require.Equal(t, "repair", acts[0].Action)
	require.Equal(t, "done: 25 violations", acts[0].Detail)
}

// A viewer may check, once a minute, and not mend.
func TestAViewerChecksSeldom(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.lose("orders", 1)
	status, to := s.post("/check", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	body := s.ends(to)
	require.Contains(t, body, "A message has a body, and is in no state")
	require.NotContains(t, body, "/confirm")
	status, again := s.post("/check", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, to, again)
	status, _ = s.post("/check", "t", "nope")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.post("/confirm", "do", "repair", "t", "orders", "count", "1", "typed-count", "1", "typed-name", "orders")
	require.Equal(t, http.StatusForbidden, status)
	status, _ = s.post("/confirm", "do", "check", "t", "orders", "count", "1", "typed-count", "1", "typed-name", "orders")
	require.Equal(t, http.StatusForbidden, status)
}

// One check runs at a time, however many ask.
func TestOneCheckRunsAtATime(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	s.publish("mails", time.Hour, nil, "x")
	started, goOn := make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release) // else a test that fails would not end
	s.beforeEach(func(call redis.Cmder) error {
		if call.Name() == "type" { // which only a check asks
			started <- struct{}{}
			<-goOn
		}
		return nil
	})
	status, to := s.post("/check", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	<-started
	status, again := s.post("/check", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, to, again, "one that is under way is joined")
	_, body := s.get(to)
	require.Contains(t, body, "Under way")
	_, body = s.get("/topic?t=orders")
	require.Contains(t, body, "A check is under way: 0 %")
	status, _ = s.post("/check", "t", "mails")
	require.Equal(t, http.StatusTooManyRequests, status)
	release()
	s.ends(to)
	status, _ = s.post("/check", "t", "mails")
	require.Equal(t, http.StatusSeeOther, status)
}

// Checks of viewers do not push out what operators did.
func TestChecksAreForgottenFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	_, kept := s.post("/confirm", "do", "purge", "t", "orders", "g", "g", "count", "1", "typed-count", "1", "typed-name", "orders")
	s.ends(kept)
	for range 120 {
		status, to := s.post("/check", "t", "orders")
		require.Equal(t, http.StatusSeeOther, status)
		s.ends(to)
	}
	status, body := s.get(kept)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "<strong>Done</strong>: 1 of 1")
}

func TestMessagesAreFilteredByDelayID(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	var messages []*message.Message
	for i := range 1100 { // more than one step of the filter
		msg := message.NewMessage(fmt.Sprint("uuid of ", i), []byte("x"))
		redisdelay.DelayFor(msg, time.Hour+time.Duration(i)*time.Second)
		redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReject)
		messages = append(messages, msg)
	}
	publisher := testkit.NewPublisher(t, s.Server)
	require.NoError(t, publisher.Publish("orders", messages[:600]...))
	require.NoError(t, publisher.Publish("orders", messages[600:]...))
	want, err := s.admin.Get(ctx, "orders", admin.ByDelayID("order 1050"))
	require.NoError(t, err)
	_, body := s.get("/messages?t=orders&delay-id=order+1050")
	require.Contains(t, body, want.ID)
	require.Equal(t, 1, strings.Count(body, `class="row id"`))
	require.Contains(t, body, `name="delay-id" value="order 1050"`)
	_, body = s.get("/messages?t=orders&delay-id=order+7")
	require.Equal(t, 1, strings.Count(body, `class="row id"`))
	require.Contains(t, body, `delay-id=order&#43;7`, "the next page has the same filter")
	_, body = s.get("/messages?t=orders&delay-id=other")
	require.Contains(t, body, "No message matches.")
}

// publishNamed publishes a message with a delay ID, and returns its ID.
func (s *site) publishNamed(topic, name string, delay time.Duration) string {
	s.t.Helper()
	s.publishing(topic, delay, map[string]string{redisdelay.DelayIDKey: name}, "x")
	m, err := s.admin.Get(ctx, topic, admin.ByDelayID(name))
	require.NoError(s.t, err)
	return m.ID
}

// The chart has the retries of all groups, and says which it leaves out.
func TestTheChartHasRetriesOfAllGroups(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	var subs []*redisdelay.Subscriber
	for i := range 22 {
		sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
			c.ConsumerGroup, c.CloseTimeout = fmt.Sprintf("group %02d", i), time.Second
		})
		require.NoError(t, sub.SubscribeInitialize("orders"))
		subs = append(subs, sub)
	}
	s.publishing("orders", 0, nil, "x")
	for _, sub := range subs {
		msg := <-testkit.SubscribeTo(t, sub, "orders")
		redisdelay.DelayFor(msg, 10*time.Minute)
		msg.Nack()
	}
	require.Eventually(t, func() bool {
		_, body := s.get("/topic?t=orders")
		return containsAll(body, "20 messages in the next hour", "Not counted: 2 retries of 2 further groups.")
	}, testkit.Soon, 10*time.Millisecond)
	for _, sub := range subs {
		require.NoError(t, sub.Close())
	}
}

// The timeline has all that Redis knows about each group.
func TestTheTimelineSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.CloseTimeout, c.MaxDeliveries, c.DeadRetention = "g", time.Second, 3, 48*time.Hour
	})
	messages := testkit.SubscribeTo(t, sub, "orders")
	s.publishing("orders", 0, nil, "x")
	msg := <-messages
	d, _ := redisdelay.DeliveryFromContext(msg.Context())
	address := "/message?t=orders&id=" + d.ID
	require.NoError(t, s.Client.HSet(ctx, s.Prefix+":{orders}:suspects:g", d.ID, "2 - -").Err())
	require.Eventually(t, func() bool {
		_, body := s.get(address)
		return containsAll(body, "Published", "In hand of a consumer", "Its lease ends, unless it is extended", "dashboard.test on ", "was due <time",
			"2 leases in a row expired", "but not each delivery")
	}, testkit.Soon, 10*time.Millisecond)
	require.NoError(t, s.Client.Del(ctx, s.Prefix+":{orders}:suspects:g").Err())
	redisdelay.DelayFor(msg, time.Hour)
	msg.Nack()
	require.Eventually(t, func() bool {
		_, body := s.get(address)
		return containsAll(body, "Failed, and waits for its next delivery", "1 delivery of at most 3 failed", ">in 59 min", `<span class="chip">g</span>`)
	}, testkit.Soon, 10*time.Millisecond)
	_, err := s.admin.Kill(ctx, "orders", admin.GroupMessage{Group: "g", ID: d.ID}, admin.KillOptions{Reason: "enough"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, body := s.get(address)
		return containsAll(body, "Dead letter", "last reason</span> killed: enough", "Is deleted", ">in 1 d 23 h")
	}, testkit.Soon, 10*time.Millisecond)
	require.NoError(t, sub.Close())
}
