package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// foreign returns why a request is not one of the page itself, nil if it is. Requests that only
// read pass, except for streams, which take a place.
func (d *Dashboard) foreign(r *http.Request) error {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if reads && !wantsNews(r) {
		return nil
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return fmt.Errorf("Sec-Fetch-Site is %q", texts.Clip(site, 40))
		}
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil // every browser sends it with a POST; a GET from elsewhere has Sec-Fetch-Site
	}
	if len(origins) > 1 {
		return errors.New("it has several Origins")
	}
	origin, host, err := normalOrigin(origins[0])
	if err == nil && (d.public != "" && origin == d.public || host == normalHost(r.Host, strings.HasPrefix(origin, "https:"))) {
		return nil
	}
	if d.public != "" {
		return fmt.Errorf("its Origin is %q, and not %s", texts.Clip(origins[0], 100), d.public)
	}
	return fmt.Errorf("its Origin is %q, and its Host %q; if a proxy is between, say by PublicURL how the page is called from outside",
		texts.Clip(origins[0], 100), texts.Clip(r.Host, 100))
}

// normalOrigin returns an origin in the one form that can be compared, and its host.
func normalOrigin(text string) (origin, host string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", "", errors.New("it is no origin")
	}
	host = normalHost(u.Host, u.Scheme == "https")
	return u.Scheme + "://" + host, host, nil
}

// normalHost returns a host and port in the one form that can be compared.
func normalHost(host string, secure bool) string {
	usual := ":80"
	if secure {
		usual = ":443"
	}
	return strings.TrimSuffix(strings.ToLower(host), usual)
}

// splitPublic returns the parts of a PublicURL: its origin, the host without its port, and its path
// without a slash at the end. All are "" if there is none.
func splitPublic(address string) (origin, host, path string, err error) {
	if address == "" {
		return "", "", "", nil
	}
	u, err := url.Parse(address)
	if err == nil {
		path = strings.TrimSuffix(u.EscapedPath(), "/")
		u.Path, u.RawPath = "", ""
		if origin, _, err = normalOrigin(u.String()); err == nil && (path == "" || plainPath(path)) {
			return origin, strings.ToLower(u.Hostname()), path, nil
		}
	}
	return "", "", "", fmt.Errorf("is %q: it must be an address such as \"https://ops.example.com\", with a plain path if any", address)
}
