package dashboard_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// addresses returns an address for each route with a method.
func (s *site) addresses(method string) (all []string) {
	for _, r := range s.page.Routes() {
		if r[0] == method {
			all = append(all, strings.NewReplacer("{$}", "", "{do}", "requeue").Replace(r[1])+"?t=orders&g=g&do=purge")
		}
	}
	return all
}

func TestEveryAnswerHasTheHeadersThatProtectIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "x")
	for _, address := range append(s.addresses(http.MethodGet), "/assets/app.js", "/nothing", "/topic?t=nope") {
		_, _, h := s.answers(request(http.MethodGet, address))
		csp := h.Get("Content-Security-Policy")
		require.Contains(t, csp, "default-src 'none'", address)
		require.Contains(t, csp, "frame-ancestors 'none'", address)
		require.NotContains(t, csp, "unsafe", address)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), address)
		require.Equal(t, "DENY", h.Get("X-Frame-Options"), address)
		if strings.HasPrefix(address, "/assets/") {
			require.Contains(t, h.Get("Cache-Control"), "immutable")
		} else {
			require.Equal(t, "no-store", h.Get("Cache-Control"), address)
		}
	}
}

// A hostile page whose name leads to this machine reaches the page under its own name.
func TestRebindingOfDNSIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) { c.Hosts = []string{"Ops.example.com"} })
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "127.0.0.1:1": 200, "[::1]:8080": 200, "::1": 200, "ops.example.com": 200, "OPS.example.com.:443": 200,
		"evil.example.com": 421, "evil.example.com:8080": 421, "": 421, "localhost.evil.example.com": 421, "10.0.0.1": 421,
	} {
		r := request(http.MethodGet, "/")
		r.Host = host
		status, _, _ := s.answers(r)
		require.Equal(t, want, status, host)
	}
}

func TestChangesFromOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example.com")
		},
		func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") },
	} {
		r := request(http.MethodPost, "/pause", "t", "orders")
		change(r)
		status, _, _ := s.answers(r)
		require.Equal(t, http.StatusForbidden, status)
	}
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	require.Nil(t, stats.Pause)
	status, _ := s.post("/pause", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
}

func TestOnlyPostChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for _, address := range s.addresses(http.MethodPost) {
		if strings.HasPrefix(address, "/confirm") {
			continue // GET asks for the confirmation
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			status, _, _ := s.answers(request(method, address))
			require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, status, "%s %s", method, address)
		}
	}
}

// Every address that changes something is tried by somebody who may only look.
func TestViewersChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, reader)
	s.die("orders", "x")
	posts := s.addresses(http.MethodPost)
	require.Greater(t, len(posts), 4)
	for _, address := range posts {
		if strings.HasPrefix(address, "/check?") {
			continue // it changes nothing
		}
		status, _ := s.post(address, "t", "orders", "g", "g", "do", "purge", "count", "1", "typed-count", "1", "typed-name", "orders")
		require.Equal(t, http.StatusForbidden, status, address)
	}
	for _, r := range s.page.Routes() {
		if r[0] != http.MethodGet && r[1] != "/check" {
			require.Equal(t, "operator", r[2], r[1])
		}
	}
	for _, do := range []string{"purge", "repair", "remove-schedule"} {
		status, _ := s.get("/confirm?do=" + do + "&t=orders&g=g&s=x")
		require.Equal(t, http.StatusForbidden, status, do)
	}
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	require.Equal(t, 1, stats.Groups[0].Dead)
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Empty(t, acts)
	for _, address := range []string{"/topic?t=orders", "/dead?t=orders&g=g"} {
		_, body := s.get(address)
		require.NotContains(t, body, "/confirm")
		require.Equal(t, strings.Count(body, `action="/check"`), strings.Count(body, `method="post"`))
	}
}

// A header or a field of a form does not make anybody somebody else.
func TestUsersCannotChooseTheirRole(t *testing.T) {
	t.Parallel()
	users := map[string]dashboard.User{"vera": viewer, "ann": operator, "nobody": {Name: "nobody"}, "odd": {Name: "odd", Role: 7}}
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = dashboard.TrustedProxy("X-User", func(name string) dashboard.User { return users[name] })
		c.Proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")}
	})
	s.publish("orders", time.Hour, nil, "x")
	try := func(remote string, names ...string) int {
		r := request(http.MethodPost, "/pause?user=ann&role=operator", "t", "orders", "role", "operator", "user", "ann")
		r.RemoteAddr = remote
		r.Header["X-User"] = names
		r.Header.Set("X-Role", "operator")
		status, _, _ := s.answers(r)
		return status
	}
	require.Equal(t, http.StatusSeeOther, try("10.0.0.5:1", "ann"))
	require.Equal(t, http.StatusForbidden, try("10.0.0.5:1", "vera"))
	require.Equal(t, http.StatusForbidden, try("10.0.0.5:1", "nobody"))
	require.Equal(t, http.StatusForbidden, try("10.0.0.5:1", "odd"))
	require.Equal(t, http.StatusForbidden, try("10.0.0.5:1", "unknown"))
	require.Equal(t, http.StatusUnauthorized, try("10.0.0.5:1", "ann", "vera"))
	require.Equal(t, http.StatusUnauthorized, try("10.0.0.5:1"))
	require.Equal(t, http.StatusUnauthorized, try("10.0.0.6:1", "ann"))
	require.Equal(t, http.StatusUnauthorized, try("127.0.0.1:1", "ann"))
	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	require.Len(t, acts, 1)
	require.Equal(t, "ann", acts[0].By)
}

func TestBasicAuthAsksForAPassword(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = dashboard.BasicAuth(map[string]dashboard.Login{"ann": {Password: "tea", User: dashboard.User{Name: "other", Role: dashboard.Viewer}}, "empty": {}})
	})
	try := func(name, password string) (int, string) {
		r := request(http.MethodGet, "/")
		r.RemoteAddr = "203.0.113.9:1" // another machine
		if name != "" {
			r.SetBasicAuth(name, password)
		}
		status, body, h := s.answers(r)
		require.Equal(t, status == 401, h.Get("WWW-Authenticate") != "")
		return status, body
	}
	status, body := try("ann", "tea")
	require.Equal(t, 200, status)
	require.Contains(t, body, "You are ann, viewer")
	for _, wrong := range [][2]string{{"", ""}, {"ann", "coffee"}, {"ann", ""}, {"bob", "tea"}, {"empty", ""}} {
		status, body = try(wrong[0], wrong[1])
		require.Equal(t, 401, status)
		require.NotContains(t, body, "Topics")
	}
}

func TestWithoutAuthenticationOnlyThisMachineSeesThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, dashboard.User{})
	status, body := s.get("/")
	require.Equal(t, 200, status)
	require.Contains(t, body, "read-only")
	for _, remote := range []string{"192.168.1.7:4000", ""} {
		r := request(http.MethodGet, "/")
		r.RemoteAddr = remote
		status, body, _ := s.answers(r)
		require.Equal(t, http.StatusForbidden, status)
		require.Contains(t, body, "Authenticate")
	}
}

func TestListeningBeyondThisMachineNeedsAuthentication(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		require.ErrorIs(t, s.page.ListenAndServe(ctx, address, nil), dashboard.ErrNeedsAuthentication, address)
	}
	with := newSite(t, viewer, func(c *dashboard.Config) {
		c.Authenticate = func(*http.Request) (dashboard.User, error) { return viewer, nil }
	})
	for page, address := range map[*dashboard.Dashboard]string{s.page: "127.0.0.1:0", with.page: "0.0.0.0:0"} {
		serving, stop := context.WithCancel(ctx)
		require.NoError(t, page.ListenAndServe(serving, address, func(net.Addr) { stop() }))
	}
}

func TestFilesOutsideOfTheAssetsAreNotServed(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for _, path := range []string{"/assets/../config.go", "/assets/..%2fconfig.go", "/assets/%2e%2e/config.go", "/assets/..\\config.go",
		"/assets/%2fetc%2fpasswd", "/assets/", "/assets/.", "/assets/..", "/assets/templates/layout.html", "/templates/layout.html"} {
		status, body := s.get(path)
		require.NotEqual(t, 200, status, path)
		require.NotContains(t, body, "package dashboard", path)
		require.NotContains(t, body, "root:", path)
	}
	status, _ := s.get("/assets/app.css")
	require.Equal(t, 200, status)
}

func TestLargeRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	status, _ := s.post("/pause", "t", "orders", "other", strings.Repeat("a", 70_000))
	require.Equal(t, http.StatusBadRequest, status)
	status, _ = s.get("/?q=" + strings.Repeat("a", 10_000))
	require.Equal(t, http.StatusRequestURITooLong, status)
	stats, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
	require.Nil(t, stats.Pause)
}

// A browser that sends its request slowly, or takes no answer, does not keep a connection for ever.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.page.Hasten(200*time.Millisecond, 200*time.Millisecond)
	id := s.publish("orders", time.Hour, nil, strings.Repeat("x", 60_000))
	serving, stop := context.WithCancel(ctx)
	bound := make(chan net.Addr, 1)
	served := make(chan error, 1)
	go func() { served <- s.page.ListenAndServe(serving, "127.0.0.1:0", func(a net.Addr) { bound <- a }) }()
	address := (<-bound).String()
	for name, sent := range map[string]string{
		"header": "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
		"body":   "POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nt=",
		"answer": "GET /message?t=orders&id=" + id + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(testkit.Soon)))
		_, err = conn.Write([]byte(sent))
		if name == "answer" { // takes no answer, but asks for more
			for err == nil {
				_, err = conn.Write([]byte(sent))
			}
		} else {
			_, err = io.Copy(io.Discard, conn)
		}
		timeout := net.Error(nil)
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the server keeps the connection: %s", name)
		require.NoError(t, conn.Close())
	}
	stop()
	require.NoError(t, <-served)
}

func TestThePageWorksBehindAPrefix(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) { c.Prefix = "/ops/delays" })
	s.publish("orders", time.Hour, nil, "x")
	status, body := s.get("/ops/delays/topic?t=orders")
	require.Equal(t, 200, status)
	for _, part := range strings.Split(body, `="/`)[1:] {
		require.True(t, strings.HasPrefix(part, "ops/delays/"), "an address without the prefix: %.60s", part)
	}
	status, to := s.post("/ops/delays/pause", "t", "orders")
	require.Equal(t, http.StatusSeeOther, status)
	require.True(t, strings.HasPrefix(to, "/ops/delays/topic?"), to)
	s.recur(daily("orders", "a"))
	status, to = s.post("/ops/delays/schedule/pause", "t", "orders", "s", "a")
	require.Equal(t, http.StatusSeeOther, status)
	_, checked := s.post("/ops/delays/check", "t", "orders")
	for _, address := range []string{to, checked, "/ops/delays/schedules", "/ops/delays/confirm?do=remove-schedule&t=orders&s=a"} {
		status, body = s.get(address)
		require.Equal(t, 200, status, address)
		for _, part := range strings.Split(body, `="/`)[1:] {
			require.True(t, strings.HasPrefix(part, "ops/delays/"), "an address without the prefix: %.60s", part)
		}
	}
	status, _, h := s.answers(request(http.MethodGet, "/ops/delays"))
	require.Equal(t, http.StatusFound, status)
	require.Equal(t, "/ops/delays/", h.Get("Location"))
	for _, path := range []string{"/", "/topic?t=orders", "/ops/delaysx", "//evil.example.com/"} {
		status, _ = s.get(path)
		require.Equal(t, http.StatusNotFound, status, path)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := dashboard.New(dashboard.Config{Prefix: "ops/", Hosts: []string{"ops.example.com:80"}})
	for _, field := range []string{"Admin", "Prefix", "Hosts"} {
		require.ErrorContains(t, err, field)
	}
}

func TestAPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(r *http.Request) (dashboard.User, error) {
			if r.Header.Get("X-Panic") != "" {
				panic("broken hook")
			}
			return viewer, nil
		}
	})
	r := request(http.MethodGet, "/")
	r.Header.Set("X-Panic", "1")
	status, body, _ := s.answers(r)
	require.Equal(t, 500, status)
	require.NotContains(t, body, "broken hook")
	status, _ = s.get("/")
	require.Equal(t, 200, status)
}
