package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Limits of a request.
const (
	maxBody     = 64 << 10         // of a form
	maxQuery    = 8 << 10          // of a URL
	workFor     = 15 * time.Second // how long Redis may take
	maxStreams  = 200              // browsers that are connected for news
	streamFor   = 5 * time.Minute  // after that a browser connects again, and is authenticated again
	failedLogin = time.Second      // how long a failed login takes
)

// limits are how long the page waits for browsers. Only tests change them.
type limits struct {
	read  time.Duration // how long a request may take to arrive
	write time.Duration // how long a browser may take to accept an answer
}

var usualLimits = limits{read: 10 * time.Second, write: 20 * time.Second}

// policy is the Content-Security-Policy. It allows no inline script and no inline style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP serves the page. Every request passes all checks before anything is read.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.running.Err() != nil {
		http.Error(w, "The page is closed.", http.StatusServiceUnavailable)
		return
	}
	defer d.recover(w, r)
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, forms would have no origin
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")

	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(d.limits.read)) // an error means that the server has none
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := d.check(r); err != nil {
		d.refuse(w, err)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, d.config.Prefix)
	if !ok || path != "" && path[0] != '/' {
		d.refuse(w, &refusal{http.StatusNotFound, "The page is at " + d.config.Prefix + "/."})
		return
	}
	if path == "" {
		http.Redirect(w, r, d.config.Prefix+"/", http.StatusFound)
		return
	}
	user := User{}
	if !strings.HasPrefix(path, "/assets/") {
		var err error
		if user, err = d.authenticate(r); err != nil {
			d.unknown(w, r, err)
			return
		}
	}
	inner := r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	address := *r.URL
	address.Path, address.RawPath = path, ""
	inner.URL = &address
	d.mux.ServeHTTP(w, inner)
}

type userKey struct{}

// refusal is why a request is refused.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// check returns why a request is refused, whoever makes it.
func (d *Dashboard) check(r *http.Request) error {
	if !d.known(r.Host) {
		return &refusal{http.StatusMisdirectedRequest, fmt.Sprintf("The page does not know the host %q. If it is right, add its name to Hosts.", r.Host)}
	}
	if err := d.cross.Check(r); err != nil {
		return &refusal{http.StatusForbidden, "The request comes from another site: " + err.Error() + "."}
	}
	if len(r.URL.RawQuery) > maxQuery {
		return &refusal{http.StatusRequestURITooLong, "The address is too long."}
	}
	return nil
}

// known returns whether browsers may reach the page by a host.
func (d *Dashboard) known(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return host == "localhost" || isLoopback(host) ||
		slices.ContainsFunc(d.config.Hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// isLoopback returns whether an address is of this machine only.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Unmap().IsLoopback()
}

// authenticate returns who makes a request.
func (d *Dashboard) authenticate(r *http.Request) (User, error) {
	if d.config.Authenticate == nil {
		remote, _, _ := net.SplitHostPort(r.RemoteAddr)
		if !isLoopback(remote) {
			return User{}, &refusal{http.StatusForbidden, "Without Authenticate, the page answers requests from its own machine only."}
		}
		for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
			if r.Header.Get(header) != "" {
				return User{}, &refusal{http.StatusForbidden, "Without Authenticate, the page answers no requests that come through a proxy."}
			}
		}
		return d.config.Anonymous, nil
	}
	user, err := d.config.Authenticate(r)
	if err != nil {
		return User{}, err
	}
	if user.Role != Viewer && user.Role != Operator {
		return User{}, &refusal{http.StatusForbidden, "You may not see this page."}
	}
	user.Name = cmp.Or(clip(user.Name, 256), nobody) // the audit log takes no act without a name
	return user, nil
}

// unknown refuses a request whose user is not known. It takes its time, so that passwords cannot be
// tried out fast.
func (d *Dashboard) unknown(w http.ResponseWriter, r *http.Request, err error) {
	said := (*refusal)(nil)
	if errors.As(err, &said) {
		d.refuse(w, said)
		return
	}
	d.config.Logger.Warn("Refused a request to the dashboard", "remote", r.RemoteAddr, "error", err)
	select {
	case d.failing <- struct{}{}:
		defer func() { <-d.failing }()
	default:
		d.refuse(w, &refusal{http.StatusTooManyRequests, "Too many failed logins. Try again in a moment."})
		return
	}
	select {
	case <-time.After(failedLogin):
	case <-r.Context().Done():
	case <-d.running.Done():
	}
	asks := (*challenge)(nil)
	if errors.As(err, &asks) {
		w.Header().Set("WWW-Authenticate", asks.scheme)
	}
	d.refuse(w, &refusal{http.StatusUnauthorized, "You are not signed in."})
}

// refuse answers with a line of plain text.
func (d *Dashboard) refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if said := (*refusal)(nil); errors.As(err, &said) {
		status = said.status
	}
	http.Error(w, err.Error(), status)
}

// recover ends a request whose handler panics, and nothing else.
func (d *Dashboard) recover(w http.ResponseWriter, r *http.Request) {
	panicked := recover()
	if panicked == nil {
		return
	}
	if panicked == http.ErrAbortHandler {
		panic(panicked)
	}
	d.config.Logger.Error("A request to the dashboard panicked", "path", r.URL.Path, "panic", fmt.Sprint(panicked))
	http.Error(w, "Something went wrong in the page. The program's log has more.", http.StatusInternalServerError)
}
