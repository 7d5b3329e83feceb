package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// guarded is a page with a password, where a failed login keeps its place until the test ends.
type guarded struct {
	*site
	compared atomic.Int64
}

func newGuarded(t *testing.T, proxies ...netip.Prefix) *guarded {
	t.Helper()
	g := &guarded{}
	g.site = newSite(t, operator, func(c *dashboard.Config) {
		compare := dashboard.BasicAuth(map[string]dashboard.Login{"ann": {Password: "tea", User: operator}})
		c.Proxies = proxies
		c.Authenticate = func(r *http.Request) (dashboard.User, error) {
			if _, _, given := r.BasicAuth(); given {
				g.compared.Add(1)
			}
			return compare(r)
		}
	})
	g.page.KeepFailedLogins(time.Hour)
	return g
}

// login is a request from an address, with a password unless it is "".
func login(from, password string) *http.Request {
	r := request(http.MethodGet, "/")
	r.RemoteAddr = from
	if password != "" {
		r.SetBasicAuth("ann", password)
	}
	return r
}

// leaves sends a request whose browser does not wait for the answer.
func (g *guarded) leaves(r *http.Request) (status int) {
	gone, leave := context.WithCancel(ctx)
	leave()
	status, _, _ = g.answers(r.WithContext(gone))
	return status
}

// A wrong password keeps its place, also if its browser leaves: else the right one would be told by
// how fast its answer comes. Without a place, no password is compared.
func TestAPlaceIsTakenBeforeAPasswordIsCompared(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, g.leaves(login("203.0.113.9:1", "coffee")))
	}
	for range 1000 {
		require.Equal(t, http.StatusTooManyRequests, g.leaves(login("203.0.113.9:2", "guess")))
	}
	require.EqualValues(t, 10, g.compared.Load(), "a guess without a place was compared")
	status, body, h := g.answers(login("203.0.113.9:3", "tea"))
	require.Equal(t, http.StatusTooManyRequests, status, "the right one is told apart: %s", body)
	require.Equal(t, "1", h.Get("Retry-After"))
}

func TestWrongPasswordsOfOneAddressLockOutNobodyElse(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	for range 20 {
		g.leaves(login("203.0.113.9:1", "coffee"))
	}
	for range 30 {
		status, _, _ := g.answers(login("203.0.113.10:1", "tea"))
		require.Equal(t, 200, status, "the right password keeps a place")
	}
}

// A browser that has no password is asked for it at once, whatever others do at its address.
func TestARequestWithoutCredentialsCostsNoPlace(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	for range 20 {
		g.leaves(login("203.0.113.9:1", "coffee"))
	}
	began := time.Now()
	for range 100 {
		r := login("203.0.113.9:1", "")
		r.Header.Set("Authorization", "")
		status, _, h := g.answers(r)
		require.Equal(t, http.StatusUnauthorized, status)
		require.NotEmpty(t, h.Get("WWW-Authenticate"))
	}
	require.Less(t, time.Since(began), testkit.Soon)
	status, _, _ := g.answers(login("203.0.113.8:1", "tea"))
	require.Equal(t, 200, status)
}

// One customer has 2^64 addresses of IPv6, so they count as one.
func TestAnIPv6NetworkIsOneAddress(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	for i := range 10 {
		require.Equal(t, http.StatusUnauthorized, g.leaves(login(fmt.Sprintf("[2001:db8:0:1::%x]:1", i+1), "coffee")))
	}
	require.Equal(t, http.StatusTooManyRequests, g.leaves(login("[2001:db8:0:1:ffff::9]:1", "tea")))
	status, _, _ := g.answers(login("[2001:db8:0:2::1]:1", "tea"))
	require.Equal(t, 200, status)
	require.Equal(t, http.StatusUnauthorized, g.leaves(login("[::ffff:203.0.113.9]:1", "coffee")))
	for range 9 {
		g.leaves(login("203.0.113.9:1", "coffee"))
	}
	require.Equal(t, http.StatusTooManyRequests, g.leaves(login("203.0.113.9:1", "tea")), "an IPv4 address in IPv6 is another")
}

// Behind a trusted proxy, the place is that of the address which the proxy forwards. What a client
// writes before that counts for nothing.
func TestBehindAProxyThePlaceIsThatOfTheForwardedAddress(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, netip.MustParsePrefix("10.0.0.0/24"))
	via := func(password, header string, values ...string) *http.Request {
		r := login("10.0.0.5:1", password)
		r.Header[http.CanonicalHeaderKey(header)] = values
		return r
	}
	for i := range 10 {
		require.Equal(t, http.StatusUnauthorized, g.leaves(via("coffee", "X-Forwarded-For", fmt.Sprintf("198.51.100.%d, 203.0.113.9, 10.0.0.6", i))))
	}
	for _, r := range []*http.Request{
		via("tea", "X-Forwarded-For", "203.0.113.9"), via("tea", "X-Forwarded-For", "192.0.2.1", "203.0.113.9:4711"),
		via("tea", "Forwarded", `for="192.0.2.1", for=203.0.113.9;proto=https`), via("tea", "X-Real-Ip", "203.0.113.9"),
	} {
		require.Equal(t, http.StatusTooManyRequests, g.leaves(r), "%v", r.Header)
	}
	for _, r := range []*http.Request{
		via("tea", "X-Forwarded-For", "203.0.113.9, 203.0.113.10"), via("tea", "X-Forwarded-For", "unknown"), via("tea", "Forwarded", `for="[2001:db8::1]:9"`),
		login("10.0.0.5:1", "tea"),
	} {
		status, _, _ := g.answers(r)
		require.Equal(t, 200, status, "%v", r.Header)
	}
}

// A login that panics has failed.
func TestAPanicOfAuthenticateKeepsThePlaceOfTheLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(*http.Request) (dashboard.User, error) { panic("broken") }
	})
	s.page.KeepFailedLogins(time.Hour)
	for i := range 11 {
		status, _, _ := s.answers(login("203.0.113.9:1", "tea"))
		require.Equal(t, map[bool]int{true: http.StatusTooManyRequests, false: http.StatusInternalServerError}[i == 10], status)
	}
}

// A wrong password is answered after a second, and then its place is free.
func TestAFailedLoginTakesASecond(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = dashboard.BasicAuth(map[string]dashboard.Login{"ann": {Password: "tea", User: operator}})
	})
	began := time.Now()
	answers := make(chan int, 10)
	for range cap(answers) {
		go func() {
			status, _, _ := s.answers(login("203.0.113.9:1", "coffee"))
			answers <- status
		}()
	}
	for range cap(answers) {
		require.Equal(t, http.StatusUnauthorized, <-answers)
	}
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	require.Eventually(t, func() bool {
		status, _, _ := s.answers(login("203.0.113.9:1", "tea"))
		return status == 200
	}, testkit.Soon, time.Millisecond)
}

// One login cannot take all connections for news, and gives them back.
func TestStreamsAreLimitedPerUser(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator, func(c *dashboard.Config) {
		c.Authenticate = func(r *http.Request) (dashboard.User, error) {
			return dashboard.User{Name: r.Header.Get("X-User"), Role: dashboard.Viewer}, nil
		}
	})
	server := httptest.NewServer(s.page)
	t.Cleanup(server.Close)
	connect := func(user string) (status int, leave func()) {
		asks, leave := context.WithCancel(ctx)
		t.Cleanup(leave)
		r, err := http.NewRequestWithContext(asks, http.MethodGet, server.URL+"/", nil)
		require.NoError(t, err)
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("X-User", user)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer.StatusCode, leave
	}
	var leave func()
	for range 50 {
		status, l := connect("ann")
		require.Equal(t, 200, status)
		leave = l
	}
	for range 160 {
		status, _ := connect("ann")
		require.Equal(t, http.StatusTooManyRequests, status)
	}
	status, _ := connect("bob")
	require.Equal(t, 200, status)
	leave()
	require.Eventually(t, func() bool {
		status, _ := connect("ann")
		return status == 200
	}, testkit.Soon, 10*time.Millisecond)
	for _, user := range []string{"cid", "dora", "eve"} {
		for range 49 {
			connect(user)
		}
	}
	connect("eve")
	for range 2 {
		status, _ = connect("fay")
	}
	require.Equal(t, http.StatusServiceUnavailable, status, "all together have a limit too")
}
