package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// A group that settles nothing is hung, and the page names the process that has its messages.
func TestAHungGroupLeadsToItsWorker(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := serve(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix}, operator)
	messages := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
		c.ConsumerGroup, c.MaxInFlight, c.LeaseDuration = group, 2, time.Hour
	}), topic)
	s.publish(topic, 0, "a", "b", "c", "d")
	testkit.Receive(t, messages)
	require.Eventually(t, func() bool { return s.group().InHand == 2 && s.group().Ready == 2 }, patience, 5*time.Millisecond)
	server.Advance(3 * time.Minute)
	b := open(t, s.address)
	b.sees(`Group "billing" of topic "orders" is hung: it has 2 messages in hand`, "2 messages are ready", "Look at dashboard.test on")
	b.click("In hand")
	b.sees("2 messages in this state.", "dashboard.test on", ", process ", "since")
	require.Equal(t, 2, b.rows())
}

// The page says that it is not live while Redis is gone.
func TestLiveStopsWhenRedisIsGone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := serve(t, redistest.Server{Client: server.Client(t), Prefix: redisdelay.DefaultKeyPrefix}, operator)
	s.publish(topic, time.Hour, "x")
	state := func(b *tab, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return got(b, chromedp.Evaluate[string](`document.getElementById("state").textContent`)) == want
		}, patience, 20*time.Millisecond, want)
	}
	b, other := open(t, s.address+"/topic?t="+topic), open(t, s.address)
	state(b, "Live")
	state(other, "Live")
	server.Kill()
	state(b, "Not live: Redis does not answer")
	state(other, "Not live: Redis does not answer")
	server.Restart()
	state(b, "Live")
	state(other, "Live")
	_, err := s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})
	require.NoError(t, err)
	state(b, "Not live")
}

// The problem of a schedule has its last error.
func TestAStoppedScheduleHasItsLastError(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		ago := func(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }
		record := fmt.Sprintf(`1 %d 0 0 0 0 3 0 0 - - %d,2,%s,%s {"spec":"@hourly","zone":"UTC","misfire":"last"}`, ago(3*time.Hour), ago(time.Hour),
			queue.EncodeName("web-1"), queue.EncodeName("no file /var/report"))
		require.NoError(t, s.Client.HSet(ctx, queue.NewKeys(s.Prefix, topic).Schedules(), queue.EncodeName("nightly"), record).Err())
		b := open(t, s.address)
		b.sees(`No program publishes schedule "nightly" of topic "orders"`, `on web-1: "no file /var/report".`)
	})
}
