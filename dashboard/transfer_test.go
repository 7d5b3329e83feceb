package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestMessagesMoveToAnotherTopic(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x", "y")
	for i := range 6 {
		s.publish("orders", time.Hour, map[string]string{"kind": []string{"gift", "book"}[i%2]}, "x")
	}
	moved := func(form string, count string) string {
		t.Helper()
		status, to := s.post("/confirm", append(s.fields(form, "/confirm"), "typed-name", "orders", "typed-count", count)...)
		require.Equal(t, http.StatusSeeOther, status)
		body := ""
		require.Eventually(t, func() bool {
			_, body = s.get(to)
			return strings.Contains(body, "<strong>Done</strong>: "+count+" of "+count)
		}, testkit.Soon, time.Millisecond)
		return body
	}
	_, list := s.get("/messages?t=orders&state=waiting&key=kind&value=gift")
	require.Contains(t, list, "Move to another topic")
	gifts := url.Values{"do": {"move-messages"}, "t": {"orders"}, "state": {"waiting"}, "key": {"kind"}, "value": {"gift"}, "to": {" gifts "}}
	status, body := s.get("/confirm?" + gifts.Encode())
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "Choose that the page makes what is missing.")
	gifts.Set("create", "on")
	_, body = s.get("/confirm?" + gifts.Encode())
	require.Contains(t, body, "Move 3 messages")
	require.Contains(t, body, "There is no topic &#34;gifts&#34; yet. It is made.")
	require.NotContains(t, body, "This cannot be undone.")
	moved("/confirm?"+gifts.Encode(), "3")
	stats, err := s.admin.Stats(ctx, "gifts")
	require.NoError(t, err)
	require.Equal(t, 3, stats.Waiting)
	require.Equal(t, []string{`ann move  done: 3 messages`, `ann move  begins with 3 messages, to "gifts", waiting, metadata kind=gift`}, s.did())

	_, topic := s.get("/topic?t=orders")
	require.Contains(t, topic, "such as of a topic that was renamed")
	all := "/confirm?do=move-messages&t=orders&to=shop&create=on"
	_, body = s.get(all)
	require.Contains(t, body, "Move 5 messages")
	require.Contains(t, body, "It gets 1 group that it lacks: &#34;g&#34;.")
	moved(all, "5")
	stats, err = s.admin.Stats(ctx, "shop")
	require.NoError(t, err)
	require.Equal(t, 3, stats.Waiting)
	require.Equal(t, 2, stats.Groups[0].Dead)
	dead, err := s.admin.List(ctx, "shop", admin.Query{State: admin.Dead, Group: "g"})
	require.NoError(t, err)
	require.Equal(t, "x", dead.Messages[0].Places[0].Reason)

	for _, wrong := range []string{"", "&to=orders", "&to=x&state=ready", "&to=x&state=dead"} {
		status, _ = s.get("/confirm?do=move-messages&t=orders" + wrong)
		require.Equal(t, http.StatusBadRequest, status, wrong)
	}
	s.publish("orders", time.Hour, nil, "late")
	_, to := s.post("/confirm", append(s.fields(all, "/confirm"), "typed-name", "orders", "typed-count", "1")...)
	require.NotEmpty(t, to)
}
