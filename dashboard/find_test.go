package dashboard_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// finding opens the page of a search, and returns whether it found a message.
func (s *site) finding(id string, pairs ...string) (status int, found bool) {
	s.t.Helper()
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	status, body := s.get("/find?" + values.Encode())
	if status == http.StatusOK {
		require.Contains(s.t, body, "Looked ")
	}
	return status, strings.Contains(body, "id="+id)
}

// nextOf returns the address of the link that goes on.
func nextOf(t *testing.T, body string) string {
	t.Helper()
	link := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(body)
	require.NotNil(t, link, body)
	return html.UnescapeString(link[1])
}

// A search never finds a hidden value, so that it does not tell what that is.
func TestASearchNeverFindsWhatIsHidden(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	server := redistest.On(t, client, "test")
	sites := map[string]*site{}
	for _, user := range []dashboard.User{viewer, reader} {
		sites[user.Name] = siteOn(t, server, user)
	}
	s := sites["rita"]
	publish := func(topic, uuid string, metadata map[string]string, payload string) string {
		msg := message.NewMessage(uuid, []byte(payload))
		for key, value := range metadata {
			msg.Metadata.Set(key, value)
		}
		redisdelay.DelayFor(msg, time.Hour)
		require.NoError(t, testkit.NewPublisher(t, server).Publish(topic, msg))
		found, err := s.admin.Find(ctx, admin.Search{Filter: admin.Filter{UUID: uuid}})
		require.NoError(t, err)
		require.Len(t, found.Messages, 1)
		return found.Messages[0].ID
	}
	id := publish("orders", "uuid of it", map[string]string{"accessToken": "geheim", "headers": `{"Authorization":"verborgen","a":"seen"}`, "kind": "gift",
		"partition_key": "customer 17"}, `{"order": 4711, "password": "geheim", "body": "{\"secret\":\"verborgen\",\"note\":\"open\"}"}`)
	other := publish("mails", "uuid of another", nil, "order 4711 in words")
	for _, user := range []string{"vera", "rita"} {
		for _, text := range []string{"geheim", "verborgen", "accessToken=geheim", "[hidden]", "gehei", `"password": "g`} {
			status, found := sites[user].finding(id, "q", text)
			require.Equal(t, http.StatusOK, status, text)
			require.False(t, found, "%s finds %q", user, text)
		}
	}
	for _, text := range []string{"accessToken=geheim", "accessToken=", "password=x"} {
		status, _ := s.finding(id, "q", text, "by", "metadata")
		require.Equal(t, http.StatusForbidden, status, text)
	}
	_, found := s.finding(id, "q", `headers={"Authorization":"verborgen","a":"seen"}`, "by", "metadata")
	require.False(t, found)
	_, body := s.get("/messages?t=orders&key=headers&value=" + url.QueryEscape(`{"Authorization":"verborgen","a":"seen"}`))
	require.NotContains(t, body, "id="+id)
	for text, by := range map[string]string{"4711": "", "kind=gift": "metadata", "gift": "", "customer 17": "key", `"order": 4711`: "text", "open": "text", "seen": ""} {
		_, found := s.finding(id, "q", text, "by", by)
		require.True(t, found, text)
		status, found := sites["vera"].finding(id, "q", text, "by", by)
		require.False(t, found, "without contents: %s", text)
		require.Equal(t, map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[by == ""], status)
	}
	_, found = s.finding(other, "q", "4711")
	require.True(t, found, "in all topics")
	_, found = s.finding(other, "q", "4711", "t", "orders")
	require.False(t, found, "in another topic")
	for _, user := range []string{"vera", "rita"} {
		for text, by := range map[string]string{id: "", id + " ": "id", "uuid of": ""} {
			_, found := sites[user].finding(id, "q", text, "by", by)
			require.True(t, found, text)
		}
	}
	status, _ := s.get("/find?q=x&t=unknown")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.get("/find?q=x&by=luck")
	require.Equal(t, http.StatusBadRequest, status)
	status, body = s.get("/find")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, body, "Looked ")
}

// A page says the same words as the tool about a message that ended.
func TestAMessageThatEndedIsExplained(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	for _, address := range []string{"/message?t=orders&id=01M7Y3SQGNBVX5P66MY8JV56FH", "/find?q=01M7Y3SQGNBVX5P66MY8JV56FH&by=id"} {
		_, body := s.get(address)
		require.Contains(t, body, "it was acked, dropped as too late, cancelled, replaced or deleted, or it never was there")
	}
}

// A search that ends at its bound goes on behind it.
func TestASearchGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for range 70 {
		s.publishing("orders", time.Hour, nil, "order 4711")
	}
	_, body := s.get("/find?q=4711")
	require.Contains(t, body, "Left out of topic &#34;orders&#34;: what was not reached")
	next := nextOf(t, body)
	_, body = s.get(next)
	require.Contains(t, body, "Looked at 20 messages in 1 topic")
	require.NotContains(t, body, "Look further")
}
