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

// An operation on messages that wait changes those that the list shows, and no others.
func TestManyWaitingMessagesAreChangedAsTheListChoosesThem(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for i := range 6 {
		s.publish("orders", time.Hour, map[string]string{"kind": []string{"gift", "book"}[i%2]}, "x")
	}
	waiting := func() (gifts, books []time.Time) {
		page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		for _, m := range page.Messages {
			if m.Metadata["kind"] == "gift" {
				gifts = append(gifts, m.Places[0].At)
			} else {
				books = append(books, m.Places[0].At)
			}
		}
		return gifts, books
	}
	_, before := waiting()
	chosen := url.Values{"t": {"orders"}, "state": {"waiting"}, "key": {"kind"}, "value": {"gift"}}
	_, list := s.get("/messages?" + chosen.Encode())
	require.Contains(t, list, "All that match:")
	chosen.Set("do", "reschedule")
	_, form := s.get("/confirm?" + chosen.Encode())
	require.Contains(t, form, "Reschedule 3 messages")
	require.Contains(t, form, "metadata kind=gift")

	post := func(do string, more ...string) (int, string) {
		pairs := []string{"do", do, "t", "orders", "state", "waiting", "key", "kind", "value", "gift", "count", "3", "typed-count", "3", "typed-name", "orders"}
		return s.post("/confirm", append(pairs, more...)...)
	}
	for _, wrong := range []string{"", "soon"} {
		status, _ := post("reschedule", "in", wrong)
		require.Equal(t, http.StatusBadRequest, status)
	}
	done := func(to string) {
		t.Helper()
		require.Eventually(t, func() bool { _, body := s.get(to); return strings.Contains(body, "<strong>Done</strong>: 3 of 3") }, testkit.Soon, time.Millisecond)
	}
	status, to := post("reschedule", "in", "5h")
	require.Equal(t, http.StatusSeeOther, status)
	done(to)
	gifts, books := waiting()
	require.Equal(t, before, books)
	require.Len(t, gifts, 3)
	require.WithinDuration(t, before[0].Add(4*time.Hour), gifts[0], testkit.Soon)
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Equal(t, "done: 3 messages", acts[0].Detail)
	require.Equal(t, "begins with 3 messages, waiting, metadata kind=gift, in 5h0m0s", acts[1].Detail)

	status, to = post("cancel")
	require.Equal(t, http.StatusSeeOther, status)
	done(to)
	gifts, books = waiting()
	require.Empty(t, gifts)
	require.Equal(t, before, books)

	status, _ = s.get("/confirm?do=cancel&t=orders&state=dead&g=g")
	require.Equal(t, http.StatusBadRequest, status)
}
