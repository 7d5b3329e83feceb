package dashboard_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The page counts what becomes due by metadata, and tells nobody what is hidden from him.
func TestUpcomingIsCountedByMetadata(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	server := redistest.On(t, client, "test")
	sites := map[string]*site{}
	for _, user := range []dashboard.User{viewer, reader} {
		sites[user.Name] = siteOn(t, server, user)
	}
	s := sites["rita"]
	for i := range 3 {
		s.publish("orders", 90*time.Minute, map[string]string{"kind": "card", "accessToken": "geheim", "headers": `{"Authorization":"verborgen"}`}, "x")
		if i > 0 {
			s.publish("orders", 90*time.Minute, map[string]string{"kind": "gift"}, "x")
		}
	}
	count := func(user string, status int, pairs ...string) string {
		t.Helper()
		values := url.Values{"t": {"orders"}, "from": {"1h"}, "width": {"1h"}, "intervals": {"1"}}
		for i := 0; i < len(pairs); i += 2 {
			values.Set(pairs[i], pairs[i+1])
		}
		got, body := sites[user].get("/upcoming?" + values.Encode())
		require.Equal(t, status, got, "%s %q", user, pairs)
		return body
	}
	require.Contains(t, count("rita", http.StatusOK), "<strong>5 waiting, 0 retrying</strong>.")
	require.Contains(t, count("rita", http.StatusOK, "metadata", "kind=card"), "<strong>3 waiting, 0 retrying</strong> with kind=card.")
	require.Contains(t, count("rita", http.StatusOK, "metadata", "kind=card", "from", "3h"), "<strong>0 waiting")
	require.Contains(t, count("vera", http.StatusOK), "<strong>5 waiting")
	count("vera", http.StatusForbidden, "metadata", "kind=card")
	count("rita", http.StatusForbidden, "metadata", "accessToken=geheim")
	require.Contains(t, count("rita", http.StatusOK, "metadata", `headers={"Authorization":"verborgen"}`), "<strong>0 waiting")
	for field, text := range map[string]string{"metadata": "card", "from": "soon", "width": "-1h", "intervals": "1001"} {
		count("rita", http.StatusBadRequest, field, text)
	}
	require.Contains(t, count("rita", http.StatusOK, "from", "2099-11-27 09:00", "zone", "Europe/Berlin"), `datetime="2099-11-27T08:00:00.000Z"`)
	utc := siteOn(t, server, reader, func(c *dashboard.Config) { c.UTC = true })
	_, body := utc.get("/upcoming?t=orders&from=2099-11-27+09:00&zone=Europe/Berlin")
	require.Contains(t, body, `datetime="2099-11-27T09:00:00.000Z"`)
	require.Contains(t, body, `data-zone="UTC"`)
}
