package dashboard_test

import (
	"bytes"
	"io"
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
	require.Contains(t, body, `name="every" value="default"`)
	typed := append(s.fields(form, "/confirm"), "typed-name", "orders", "typed-count", "2")
	for _, every := range []string{"", "on", "other"} {
		status, _ = s.post("/confirm", append(typed, "every", every)...)
		require.Equal(t, http.StatusBadRequest, status, "the other group is not agreed to")
	}
	status, to := s.post("/confirm", append(typed, "every", "default")...)
	require.Equal(t, http.StatusSeeOther, status)
	_, again := s.post("/confirm", append(typed, "every", "default")...)
	require.Equal(t, to, again, "the form was sent twice")
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
	_, to = s.post("/confirm", append(s.fields(form, "/confirm"), "typed-name", "orders", "typed-count", "2", "every", "default")...)
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
		wrong(sends("orders", content), http.StatusBadRequest, says)
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
	wrong(request(http.MethodGet, first), http.StatusNotFound, "choose it again")
	_, _, header := s.answers(sends("orders", file))
	s.die("books", "x")
	wrong(request(http.MethodGet, strings.Replace(header.Get("Location"), "t=orders", "t=books", 1)), http.StatusNotFound, "choose it again")
	blind := siteOn(t, s.Server, dashboard.User{Name: "bob", Role: dashboard.Operator})
	status, body, _ := blind.answers(request(http.MethodGet, header.Get("Location")))
	require.Equal(t, http.StatusForbidden, status, body)

	for _, user := range []dashboard.User{reader, {Name: "bob", Role: dashboard.Operator}} { // one may only look, one sees no payloads
		status, body, _ := siteOn(t, s.Server, user).answers(sends("orders", file))
		require.Equal(t, http.StatusForbidden, status, body)
	}
	status, _, _ = siteOn(t, s.Server, viewer).answers(sends("orders", strings.Repeat("x", 1<<20)))
	require.Equal(t, http.StatusForbidden, status)
}

// endless is a body without an end, which counts what is read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, strings.Repeat("x", len(p))), nil
}

// A long request is read only from somebody who may import, and only as a file.
func TestNobodyHasALongRequestRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	for _, user := range []dashboard.User{viewer, {Name: "bob", Role: dashboard.Operator}, operator} {
		body := &endless{}
		r := request(http.MethodPost, "/import?t=orders")
		r.Body = io.NopCloser(body)
		status, _, _ := siteOn(t, s.Server, user).answers(r)
		require.Contains(t, []int{http.StatusForbidden, http.StatusBadRequest}, status)
		require.LessOrEqual(t, body.read, 1<<16, user.Name)
	}
}

// An Authenticate may look for a session in the form of a request.
func TestAFileReachesThePagePastAnAuthenticateThatReadsForms(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(r *http.Request) (dashboard.User, error) {
			_ = r.FormValue("session")
			return operator, nil
		}
	})
	s.die("orders", "x")
	_, file := s.get("/export?t=orders&g=g")
	status, body, _ := s.answers(sends("orders", file))
	require.Equal(t, http.StatusSeeOther, status, body)
}
