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

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Limits of a request.
const (
	maxBody   = 64 << 10         // of a form
	maxQuery  = 8 << 10          // of a URL
	workFor   = 15 * time.Second // how long Redis may take
	streamFor = 5 * time.Minute  // after that a browser connects again, and is authenticated again
)

// limits are how long the page waits for browsers, they for it, and how much it reads. Only tests
// change them.
type limits struct {
	read     time.Duration // how long a request may take to arrive
	upload   time.Duration // how long one with a file may take
	write    time.Duration // how long a browser may take to accept an answer
	login    time.Duration // how long a failed login takes, and keeps its place
	dead     int           // dead letters that are examined for their reasons
	problems int           // lines of each sort on the page of problems
}

var usualLimits = limits{read: 10 * time.Second, upload: 2 * time.Minute, write: 20 * time.Second, login: time.Second, dead: 20_000, problems: 500}

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
	body := r.Body
	r.Body = http.MaxBytesReader(w, body, maxBody)
	came, err := d.passageOf(r)
	if err == nil {
		err = d.check(r)
	}
	if err != nil {
		d.refuse(w, err)
		return
	}
	r = came.on(r)
	base, path, ok := d.locate(r.URL.Path, came.prefix)
	if !ok {
		d.refuse(w, &refusal{http.StatusNotFound, "The page is at " + base + "/."})
		return
	}
	if path == "" {
		http.Redirect(w, r, base+"/", http.StatusFound)
		return
	}
	if path == importPath { // it may be long, and is read once it is known who sends it
		r.Body = http.NoBody
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
	}
	user, face := User{}, d
	if !strings.HasPrefix(path, "/assets/") {
		if user, err = d.authenticate(came, r); err != nil {
			d.unknown(w, r, err)
			return
		}
		face = d.at(base)
	}
	inner := r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	address := *r.URL
	address.Path, address.RawPath = path, ""
	inner.URL = &address
	face.mux.ServeHTTP(w, inner)
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
	if err := d.foreign(r); err != nil {
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
	return host == "localhost" || isLoopback(host) || host != "" && host == d.outside ||
		slices.ContainsFunc(d.config.Hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// isLoopback returns whether an address is of this machine only.
func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Unmap().IsLoopback()
}

// failure is why somebody is not signed in.
type failure struct {
	error
	wrong bool // with credentials, rather than without
}

// authenticate returns who makes a request. One with credentials has a place before they are
// compared. One that fails keeps its place for a while, also if the browser does not wait: else the
// right password could be told by how fast its answer comes.
func (d *Dashboard) authenticate(came passage, r *http.Request) (User, error) {
	if d.config.Authenticate == nil {
		if !addressIn(r.RemoteAddr).IsLoopback() {
			return User{}, &refusal{http.StatusForbidden, "Without Authenticate, the page answers requests from its own machine only."}
		}
		return d.config.Anonymous, nil
	}
	credentials := slices.ContainsFunc(r.Header.Values("Authorization"), func(value string) bool { return value != "" })
	if credentials {
		switch d.logins.take(came.client) {
		case granted:
		case refusedFirst:
			d.config.Logger.Warn("Too many logins at the same time, refusing those of an address", "address", came.client, "most", maxLogins)
			fallthrough
		default:
			return User{}, &refusal{http.StatusTooManyRequests, "Too many logins from your address at the same time. Try again in a moment."}
		}
	}
	known := false
	defer func() { // also if Authenticate panics
		give := func() { d.logins.give(came.client) }
		switch {
		case credentials && known:
			give()
		case credentials && !known:
			time.AfterFunc(d.limits.login, give)
		}
	}()
	user, err := d.config.Authenticate(r) // it may read the form
	if err != nil {
		return User{}, &failure{err, credentials}
	}
	known = true
	if user.Role != Viewer && user.Role != Operator {
		return User{}, &refusal{http.StatusForbidden, "You may not see this page."}
	}
	user.Name = cmp.Or(texts.Clip(user.Name, 256), nobody) // the audit log takes no act without a name
	return user, nil
}

// unknown refuses a request whose user is not known. Wrong credentials take their time, so that
// passwords cannot be tried out fast. A browser without any is asked for them at once.
func (d *Dashboard) unknown(w http.ResponseWriter, r *http.Request, err error) {
	said, failed, asks := (*refusal)(nil), (*failure)(nil), (*challenge)(nil)
	if errors.As(err, &said) {
		if said.status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		d.refuse(w, said)
		return
	}
	wrong := errors.As(err, &failed) && failed.wrong
	if errors.As(failed.error, &asks) {
		w.Header().Set("WWW-Authenticate", asks.scheme)
	}
	if wrong || asks == nil {
		d.config.Logger.Warn("Refused a request to the dashboard", "remote", r.RemoteAddr, "error", err)
	}
	if wrong {
		select {
		case <-time.After(d.limits.login):
		case <-r.Context().Done():
		case <-d.running.Done():
		}
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
