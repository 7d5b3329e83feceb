package dashboard_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// sends is a request with a file.
func sends(topic, file string) *http.Request {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("file", "orders.ndjson")
	_, _ = part.Write([]byte(file))
	_ = form.Close()
	r := httptest.NewRequest(http.MethodPost, "/import?"+url.Values{"t": {topic}}.Encode(), &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:5000"
	return r
}

func TestAnExportOfThePageIsImportedThere(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.bury("orders", "no stock", message.NewMessage("uuid \xff", []byte("order 1\x00\xff")), message.NewMessage("2", []byte("2")))
	_, file := s.get("/export?t=orders&g=g")
	_, err := s.admin.PurgeDead(ctx, "orders", admin.Bulk{Group: "g"})
	require.NoError(t, err)
	require.NoError(t, testkit.NewSubscriber(t, s.Server).SubscribeInitialize("orders")) // another group
	_, body := s.get("/dead?t=orders&g=g")
	require.Contains(t, body, `action="/import?t=orders"`, "also without a dead letter")

	status, body, header := s.answers(sends("orders", file))
	require.Equal(t, http.StatusSeeOther, status, body)
	form := header.Get("Location")
	_, body = s.get(form)
	require.Contains(t, body, "Import 2 dead letters")
	require.Contains(t, body, "They were dead in group &#34;g&#34;.")
	require.Contains(t, body, "Deliver them to group &#34;default&#34;, too")
	typed := append(s.fields(form, "/confirm"), "typed-name", "orders", "typed-count", "2")
	status, _ = s.post("/confirm", typed...)
	require.Equal(t, http.StatusBadRequest, status, "the other group is not agreed to")
	status, to := s.post("/confirm", append(typed, "every", "on")...)
	require.Equal(t, http.StatusSeeOther, status)
	done := func(to, want string) {
		t.Helper()
		require.Eventually(t, func() bool { _, body = s.get(to); return strings.Contains(body, want) }, testkit.Soon, time.Millisecond, body)
	}
	done(to, "<strong>Done</strong>: 2 of 2")
	require.Equal(t, []string{"ann import  done: 2 dead letters", "ann import  begins with 2 dead letters"}, s.did())
	status, _ = s.get(form)
	require.Equal(t, http.StatusNotFound, status, "the file is done with")

	_, _, header = s.answers(sends("orders", file))
	form = header.Get("Location")
	_, to = s.post("/confirm", append(s.fields(form, "/confirm"), "typed-name", "orders", "typed-count", "2", "every", "on")...)
	done(to, "2 dead letters left out, imported within the last hour.")
}

func TestFilesThatAreNotImported(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	_, file := s.get("/export?t=orders&g=g")
	wrong := func(r *http.Request, want int, says string) {
		t.Helper()
		status, body, _ := s.answers(r)
		require.Equal(t, want, status, body)
		require.Contains(t, body, says)
	}
	wrong(sends("orders", strings.Repeat("x", 16<<20+1)), http.StatusRequestEntityTooLarge, "at most 16 MiB")
	wrong(sends("other", file), http.StatusNotFound, "")
	r := request(http.MethodPost, "/import?t=orders", "file", "x")
	wrong(r, http.StatusBadRequest, "cannot be read")
	r = sends("orders", file)
	r.Body = http.NoBody
	wrong(r, http.StatusBadRequest, "Nothing was changed.")
	for content, says := range map[string]string{"": "The file has no dead letter.", file + "{}\n": "line 2 is not an exported dead letter"} {
		_, _, header := s.answers(sends("orders", content))
		wrong(request(http.MethodGet, header.Get("Location")), http.StatusBadRequest, says)
	}

	first := ""
	for i := range 5 { // four may wait
		_, _, header := s.answers(sends("orders", file))
		status, _ := s.get(header.Get("Location"))
		require.Equal(t, http.StatusOK, status)
		if i == 0 {
			first = header.Get("Location")
		}
	}
	wrong(request(http.MethodGet, first), http.StatusNotFound, "Choose it again")

	for _, user := range []dashboard.User{reader, {Name: "bob", Role: dashboard.Operator}} { // one may only look, one sees no payloads
		status, body, _ := siteOn(t, s.Server, user).answers(sends("orders", file))
		require.Equal(t, http.StatusForbidden, status, body)
	}
	status, _, _ := siteOn(t, s.Server, viewer).answers(sends("orders", strings.Repeat("x", 1<<20)))
	require.Equal(t, http.StatusForbidden, status)
}
