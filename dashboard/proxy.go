package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// passage is how a request came.
type passage struct {
	trusted bool   // its peer is one of Config.Proxies
	proxied bool   // it shows a proxy
	client  string // the address of the browser, for IPv6 its network of 64 bits
	prefix  string // the path that the proxy stripped, or would
}

// proxyHeaders are headers that only proxies add, in lower case. One that ends with a hyphen is the
// beginning of several.
var proxyHeaders = []string{
	"via", "forwarded", "forwarded-", "x-forwarded", "x-forwarded-", "x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "x-cluster-client-ip",
	"x-original-", "x-rewrite-url", "x-proxy-", "x-proxyuser-ip", "proxy-", "x-nginx-proxy", "x-scheme", "x-url-scheme", "x-host", "front-end-https",
	"x-remote-", "remote-", "x-originating-ip", "x-envoy-", "x-arr-", "x-azure-", "x-ms-client-principal", "x-ms-client-principal-", "x-amzn-", "x-amz-cf-",
	"x-cloud-trace-context", "x-goog-", "x-appengine-", "cf-", "cdn-", "fastly-", "fly-", "x-vercel-", "x-nf-", "x-akamai-", "akamai-", "incap-",
	"x-sucuri-", "x-varnish", "tailscale-", "x-auth-request-", "x-pomerium-", "x-webauth-", "wl-proxy-", "x-http-destinationurl",
}

// proxyShown returns what of a request shows a proxy, "" if nothing does. Some proxies ask by
// HTTP/1.0, which no browser does.
func proxyShown(r *http.Request) string {
	for name := range r.Header {
		plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if slices.ContainsFunc(proxyHeaders, func(shows string) bool {
			return plain == shows || strings.HasSuffix(shows, "-") && strings.HasPrefix(plain, shows)
		}) {
			return "the header " + name
		}
	}
	if !r.ProtoAtLeast(1, 1) {
		return r.Proto
	}
	return ""
}

// passageOf returns how a request came. It refuses one that shows a proxy which is not trusted.
func (d *Dashboard) passageOf(r *http.Request) (passage, error) {
	peer := addressIn(r.RemoteAddr)
	p := passage{trusted: d.trusts(peer), client: networkOf(peer)}
	shown := proxyShown(r)
	p.proxied = shown != ""
	switch {
	case !p.proxied:
		return p, nil
	case !p.trusted:
		return p, &refusal{http.StatusForbidden,
			fmt.Sprintf("The request came through a proxy, which %s shows. The page answers it only if Proxies names the proxy's network.", shown)}
	}
	p.client = networkOf(d.browserOf(r, peer))
	p.prefix = d.stripped
	if prefixes := r.Header.Values("X-Forwarded-Prefix"); len(prefixes) > 0 {
		p.prefix = strings.TrimSuffix(prefixes[0], "/")
		if len(prefixes) > 1 || p.prefix != "" && !plainPath(p.prefix) {
			return p, &refusal{http.StatusBadRequest, "X-Forwarded-Prefix is no plain path."}
		}
	}
	return p, nil
}

// trusts returns whether an address is one of Config.Proxies.
func (d *Dashboard) trusts(address netip.Addr) bool {
	return slices.ContainsFunc(d.config.Proxies, func(p netip.Prefix) bool { return p.Contains(address) })
}

// browserOf returns the address that trusted proxies forward: the last one that is not their own.
// What stands before it may be made up.
func (d *Dashboard) browserOf(r *http.Request, peer netip.Addr) netip.Addr {
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	if r.Header.Get("X-Forwarded-For") == "" {
		hops = []string{r.Header.Get("X-Real-Ip")}
		if forwarded := r.Header.Values("Forwarded"); len(forwarded) > 0 {
			hops = forwardedFor(strings.Join(forwarded, ","))
		}
	}
	from := peer
	for _, hop := range slices.Backward(hops) {
		address := addressIn(strings.TrimSpace(hop))
		if !address.IsValid() {
			return from // the last hop that is known
		}
		if from = address; !d.trusts(address) {
			return from
		}
	}
	return from
}

// forwardedFor returns the addresses of the header Forwarded, in their order.
func forwardedFor(header string) (hops []string) {
	for element := range strings.SplitSeq(header, ",") {
		hop := ""
		for pair := range strings.SplitSeq(element, ";") {
			if name, value, _ := strings.Cut(strings.TrimSpace(pair), "="); strings.EqualFold(name, "for") {
				hop = strings.Trim(value, `"`)
			}
		}
		hops = append(hops, hop)
	}
	return hops
}

// addressIn returns the IP address in a text such as 192.0.2.1, 192.0.2.1:80, [2001:db8::1]:80 or
// 2001:db8::1. It is invalid if there is none.
func addressIn(text string) netip.Addr {
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(text)
		address = withPort.Addr()
	}
	return address.Unmap().WithZone("")
}

// networkOf returns the name of the network that counts as one client: an IPv4 address, or the 64
// bits of IPv6 that one customer has.
func networkOf(address netip.Addr) string {
	if address.Is6() {
		network, _ := address.Prefix(64)
		return network.String()
	}
	return address.String()
}

// locate returns the path at which the browser sees the page, and the path below it. forwarded is
// what a trusted proxy stripped from the path, or would.
func (d *Dashboard) locate(path, forwarded string) (base, inner string, ok bool) {
	own := d.config.Prefix
	if forwarded != "" {
		if rest, under := below(path, forwarded); under { // the proxy did not strip it
			path = rest
		}
		if own == forwarded {
			own = ""
		}
	}
	inner, ok = below(path, own)
	return forwarded + own, inner, ok
}

// below returns the rest of a path behind a prefix, and whether it is below that.
func below(path, prefix string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, prefix)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// plainPath returns whether a path begins with a slash, does not end with one, and has nothing that
// a URL or a browser could read in another way.
func plainPath(path string) bool {
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if strings.Trim(part, ".") == "" {
			return false
		}
	}
	return path[0] == '/' && !strings.ContainsFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._~-", r))
	})
}

type trustedKey struct{}

// FromTrustedProxy returns whether a request comes from one of Config.Proxies. It is for an
// Authenticate that believes a header of the proxy.
func FromTrustedProxy(r *http.Request) bool {
	trusted, _ := r.Context().Value(trustedKey{}).(bool)
	return trusted
}

func (p passage) on(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), trustedKey{}, p.trusted))
}
