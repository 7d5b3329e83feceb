package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// partitioned makes a topic of three partitions with a group. In each a message waits.
func (s *site) partitioned(topic string) (names, ids []string) {
	s.t.Helper()
	names, err := partition.Topics(topic, 3)
	require.NoError(s.t, err)
	sub := testkit.NewSubscriber(s.t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = "g" })
	for i, name := range names {
		require.NoError(s.t, sub.SubscribeInitialize(name))
		ids = append(ids, s.publish(name, time.Duration(i+1)*time.Hour, nil, "not paid"))
	}
	return names, ids
}

func TestAPartitionedTopicIsOneOnThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	names, ids := s.partitioned("orders")
	s.publish("mails", time.Hour, nil, "hello")
	_, err := s.admin.Pause(ctx, names[1], admin.PauseOptions{})
	require.NoError(t, err)

	s = siteOn(t, s.Server, operator)
	var body string
	testkit.Eventually(t, func() bool {
		_, body = s.get("/")
		return strings.Contains(body, "<dt>Topics</dt><dd>2</dd>") && strings.Contains(body, "is paused")
	}, "not all topics were read")
	require.Contains(t, body, "<dt>Waiting</dt><dd>4</dd>")
	require.Contains(t, body, `href="/topic?t=orders"`)
	require.Contains(t, body, "3 partitions")
	list := body[strings.Index(body, "<tbody>"):]
	require.NotContains(t, list, "/topic?t="+names[0])
	require.Contains(t, list, "Nobody does the due-time work of topic &#34;"+names[0], "the row has the worst of its partitions")

	_, body = s.get("/topic?t=orders")
	require.Contains(t, body, "<h2>3 partitions</h2>")
	for _, name := range names {
		require.Contains(t, body, `<a class="row" href="/topic?t=`+name+`">`)
	}
	require.Contains(t, body, "<dt>Waiting</dt><dd><a href=\"/messages?state=waiting&amp;t=orders\">3</a>")
	_, body = s.get("/topic?t=" + names[0])
	require.NotContains(t, body, "partitions</h2>")
	_, body = s.get("/") // reading the whole has not made another topic
	require.Contains(t, body, "<dt>Topics</dt><dd>2</dd>")

	_, body = s.get("/messages?t=orders")
	require.Contains(t, body, ids[0])
	require.Contains(t, body, names[0])
	_, body = s.get("/message?t=orders&id=" + ids[2])
	require.Contains(t, body, `<dt>Partition</dt><dd><a href="/topic?t=`+names[2]+`">`)

	status, _ := s.post("/pause", "t", "orders", "why", "deploy")
	require.Equal(t, http.StatusSeeOther, status)
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	for _, p := range stats.Partitions {
		require.Equal(t, "deploy", p.Pause.Why)
	}
	status, _ = s.post("/message/cancel", "t", "orders", "id", ids[2])
	require.Equal(t, http.StatusSeeOther, status)
	_, to := s.post("/check", "t", "orders")
	s.ends(to)
	_, body = s.get(to)
	require.Contains(t, body, "<strong>Done</strong>")
	status, to = s.post("/confirm", "do", "remove-topic", "t", "orders", "count", "2", "typed-name", "orders", "typed-count", "2")
	require.Equal(t, http.StatusSeeOther, status)
	s.ends(to)
	_, err = s.admin.Stats(ctx, "orders")
	require.ErrorIs(t, err, admin.ErrNotFound)
	testkit.Eventually(t, func() bool {
		_, body = s.get("/")
		return strings.Contains(body, "<dt>Topics</dt><dd>1</dd>")
	}, "the topic is still there")
	require.NotContains(t, body, "orders")

	s.partitioned(hostile)
	for _, address := range []string{"/", "/topic?t=" + url.QueryEscape(hostile), "/messages?t=" + url.QueryEscape(hostile)} {
		status, body := s.get(address)
		require.Equal(t, http.StatusOK, status)
		require.NotContains(t, body, "<script>alert")
		require.NotContains(t, body, "<img src=x")
	}
}
