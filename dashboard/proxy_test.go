package dashboard_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/dashboard"
)

// shownProxies are requests of proxies of all kinds.
var shownProxies = []string{
	"Via: 1.1 proxy", "Via:", "Forwarded: for=127.0.0.1", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost", "X-Forwarded-Proto: https",
	"X-Forwarded-Port: 80", "X-Forwarded-Prefix: /a", "X-Forwarded-Server: a", "X-Forwarded-User: ann", "X-Forwarded-Something-New: 1", "X-Forwarded: 1",
	"X_Forwarded_For: 127.0.0.1", "x-forwarded-for: 1.2.3.4", "X-Real-IP: 127.0.0.1", "X-Client-IP: 1", "True-Client-IP: 1", "CF-Connecting-IP: 1", "CF-Ray: 1",
	"CDN-Loop: cloudflare", "X-Cluster-Client-Ip: 1", "X-Original-URL: /", "X-Original-Host: a", "Proxy-Connection: keep-alive", "X-Envoy-External-Address: 1",
	"X-Amzn-Trace-Id: 1", "X-Azure-ClientIP: 1", "Fastly-Client-IP: 1", "Fly-Client-IP: 1", "Tailscale-User-Login: a", "X-Auth-Request-User: a",
	"Remote-User: a", "X-Goog-Authenticated-User-Email: a", "X-Cloud-Trace-Context: 1", "Front-End-Https: on", "X-Scheme: https",
}

// with adds a header such as "Via: 1.1 proxy" as a proxy writes it.
func with(r *http.Request, header string) *http.Request {
	name, value, _ := strings.Cut(header, ":")
	r.Header[http.CanonicalHeaderKey(name)] = []string{strings.TrimSpace(value)}
	return r
}

func TestWhatShowsAProxyIsRefusedUnlessItIsTrusted(t *testing.T) {
	t.Parallel()
	login := func(*http.Request) (dashboard.User, error) { return operator, nil }
	for name, authenticate := range map[string]func(*http.Request) (dashboard.User, error){"without a login": nil, "with one": login} {
		s := newSite(t, operator, func(c *dashboard.Config) { c.Authenticate = authenticate })
		trusting := newSite(t, operator, func(c *dashboard.Config) {
			c.Authenticate, c.Proxies = authenticate, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		})
		elsewhere := newSite(t, operator, func(c *dashboard.Config) {
			c.Authenticate, c.Proxies = authenticate, []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")}
		})
		for _, header := range shownProxies {
			for _, refusing := range []*site{s, elsewhere} {
				status, body, _ := refusing.answers(with(request(http.MethodGet, "/"), header))
				require.Equal(t, http.StatusForbidden, status, "%s, %s", name, header)
				require.Contains(t, body, "came through a proxy")
				require.Contains(t, body, "Proxies")
			}
			status, body, _ := trusting.answers(with(request(http.MethodGet, "/"), header))
			require.Equal(t, 200, status, "%s, %s: %s", name, header, body)
		}
		r := request(http.MethodGet, "/")
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0
		status, _, _ := s.answers(r)
		require.Equal(t, http.StatusForbidden, status, "proxies ask by HTTP/1.0, browsers do not")
		for _, usual := range []string{"Accept-Language: en", "Cookie: a=b", "Sec-Ch-Ua: x", "Dnt: 1", "Upgrade-Insecure-Requests: 1", "X-Requested-With: a", "Traceparent: 1"} {
			status, body, _ := s.answers(with(request(http.MethodGet, "/"), usual))
			require.Equal(t, 200, status, "%s: %s", usual, body)
		}
	}
}

// A proxy that has browsers call the page by another name must not let other sites change anything.
func TestTheOriginOfAChangeIsThePagesOwn(t *testing.T) {
	t.Parallel()
	plain := newSite(t, operator)
	public := newSite(t, operator, func(c *dashboard.Config) {
		c.PublicURL, c.Proxies = "https://Ops.example.com:443/", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	for _, s := range []*site{plain, public} {
		s.publish("orders", time.Hour, nil, "x")
	}
	try := func(s *site, host string, headers ...string) int {
		r := request(http.MethodPost, "/pause", "t", "orders")
		r.Header.Del("Sec-Fetch-Site")
		r.Host = host
		for _, header := range headers {
			with(r, header)
		}
		status, _, _ := s.answers(r)
		return status
	}
	const same, via = "Sec-Fetch-Site: same-origin", "X-Forwarded-For: 203.0.113.9"
	for _, c := range []struct {
		site    *site
		host    string
		headers []string
		want    int
	}{
		{plain, "localhost:8080", []string{same, "Origin: https://evil.example.com"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: http://localhost:8081"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: null"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: http://localhost:8080.evil.example.com"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: http://localhost:8080@evil.example.com"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: ftp://localhost:8080"}, 403},
		{plain, "localhost:8080", []string{"Origin: https://evil.example.com"}, 403},
		{plain, "localhost:8080", []string{"Sec-Fetch-Site: cross-site", "Origin: http://localhost:8080"}, 403},
		{plain, "localhost:8080", []string{"Sec-Fetch-Site: same-site", "Origin: http://localhost:8080"}, 403},
		{plain, "localhost:8080", []string{same, "Origin: http://localhost:8080"}, 303},
		{plain, "localhost", []string{same, "Origin: http://localhost:80"}, 303},
		{plain, "localhost:8080", []string{"Origin: http://LOCALHOST:8080"}, 303},
		{plain, "localhost:8080", nil, 303}, // no browser
		{public, "ops.example.com", []string{same, via, "Origin: https://ops.example.com"}, 303},
		{public, "localhost:8080", []string{same, via, "Origin: https://ops.example.com"}, 303},
		{public, "localhost:8080", []string{same, "Origin: http://localhost:8080"}, 303},
		{public, "ops.example.com", []string{same, via, "Origin: https://evil.example.com"}, 403},
		{public, "localhost:8080", []string{same, via, "Origin: https://ops.example.com:8443"}, 403},
		{public, "localhost:8080", []string{same, via, "Origin: http://ops.example.com"}, 403},
	} {
		require.Equal(t, c.want, try(c.site, c.host, c.headers...), "%s %q", c.host, c.headers)
	}
	r := request(http.MethodPost, "/pause", "t", "orders")
	r.Header["Origin"] = []string{"http://localhost:8080", "https://evil.example.com"}
	status, _, _ := plain.answers(r)
	require.Equal(t, http.StatusForbidden, status)

	// Another site could take all places for news.
	r = with(with(request(http.MethodGet, "/"), "Accept: text/event-stream"), "Sec-Fetch-Site: cross-site")
	status, _, _ = plain.answers(r)
	require.Equal(t, http.StatusForbidden, status)
}

func TestPublicURLsAreChecked(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"ops.example.com", "//ops.example.com", "ftp://ops.example.com", "https://", "https://a:b@ops.example.com", "https://ops.example.com?a",
		"https://ops.example.com/#a", "https://ops.example.com/a b", "https://ops.example.com//a", "https://ops.example.com/../a", "https://ops.example.com/%2e", "*"} {
		_, err := dashboard.New(dashboard.Config{PublicURL: wrong})
		require.ErrorContains(t, err, "invalid configuration: PublicURL ", wrong)
	}
}

// A trusted proxy may strip the prefix under which browsers see the page.
func TestAProxyMayStripThePrefix(t *testing.T) {
	t.Parallel()
	trust := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	at := func(prefix, public string) *site {
		s := newSite(t, operator, func(c *dashboard.Config) { c.Prefix, c.PublicURL, c.Proxies = prefix, public, trust })
		s.publish("orders", time.Hour, nil, "x")
		return s
	}
	root, mounted, public, both := at("", ""), at("/page", ""), at("", "https://localhost/ops"), at("/ops", "https://localhost/ops")
	for _, c := range []struct {
		site         *site
		path, header string
		base         string // at which browsers see it; "-": it is refused
	}{
		{root, "", "X-Forwarded-Prefix: /ops/delays", "/ops/delays"},
		{root, "", "X-Forwarded-Prefix: /ops/", "/ops"},
		{root, "/ops", "X-Forwarded-Prefix: /ops", "/ops"}, // it is not stripped
		{root, "", "X-Forwarded-Prefix: /", ""},
		{root, "", "Via: 1.1 proxy", ""},
		{mounted, "/page", "Via: 1.1 proxy", "/page"},
		{mounted, "", "X-Forwarded-Prefix: /page", "/page"},
		{mounted, "/page", "X-Forwarded-Prefix: /page", "/page"},
		{mounted, "/page", "X-Forwarded-Prefix: /ops", "/ops/page"},
		{public, "", "Via: 1.1 proxy", "/ops"},
		{public, "/ops", "Via: 1.1 proxy", "/ops"},
		{public, "", "Accept-Language: en", ""}, // from this machine
		{both, "/ops", "Via: 1.1 proxy", "/ops"},
		{both, "/ops", "Accept-Language: en", "/ops"},
		{root, "", "X-Forwarded-Prefix: //evil.example.com", "-"},
		{root, "", "X-Forwarded-Prefix: evil", "-"},
		{root, "", "X-Forwarded-Prefix: /a\"b", "-"},
		{root, "", "X-Forwarded-Prefix: /a/../b", "-"},
		{root, "", "X-Forwarded-Prefix: /a\\b", "-"},
	} {
		status, body, _ := c.site.answers(with(request(http.MethodGet, c.path+"/topic?t=orders"), c.header))
		if c.base == "-" {
			require.Equal(t, http.StatusBadRequest, status, c.header)
			require.NotContains(t, body, "evil")
			continue
		}
		require.Equal(t, 200, status, "%s %s: %s", c.path, c.header, body)
		require.Equal(t, strings.Count(body, `="/`), strings.Count(body, `="`+c.base+`/`), "%s %s: an address is not under %q", c.path, c.header, c.base)
		require.Greater(t, strings.Count(body, `="`+c.base+`/`), 10)
		status, _, h := c.site.answers(with(request(http.MethodPost, c.path+"/pause", "t", "orders"), c.header))
		require.Equal(t, http.StatusSeeOther, status)
		require.True(t, strings.HasPrefix(h.Get("Location"), c.base+"/topic?"), h.Get("Location"))
		status, _, _ = c.site.answers(with(request(http.MethodGet, c.path+"/assets/app.css"), c.header))
		require.Equal(t, 200, status)
	}
	// The list of topics is kept for a moment, but not for browsers that see the page elsewhere.
	_, body, _ := root.answers(with(request(http.MethodGet, "/"), "X-Forwarded-Prefix: /ops"))
	require.Contains(t, body, `="/ops/topic?`)
	_, body = root.get("/")
	require.NotContains(t, body, `="/ops/`)
}
