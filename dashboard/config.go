package dashboard

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
)

// Config configures a Dashboard.
type Config struct {
	// Admin reads and changes the topics. Required.
	Admin *admin.Admin

	// Prefix is the path under which the program mounts the page, such as "/redisdelay". Default
	// "", the root. The handler expects it in the URL: do not use http.StripPrefix. A proxy of
	// Proxies may strip it, if it says so in X-Forwarded-Prefix.
	Prefix string

	// Hosts are the names by which browsers reach the page, without port, such as
	// "ops.example.com". "localhost" and loopback addresses are always allowed, and so is the host
	// of PublicURL. A request for another host is refused, because it may come from a hostile page
	// (DNS rebinding).
	Hosts []string

	// PublicURL is the address at which browsers outside open the page, such as
	// "https://ops.example.com/redisdelay", if a proxy is between. A change is refused unless its
	// Origin is that of PublicURL, or is the request's own Host. Its path is the prefix that a
	// proxy of Proxies strips, unless the proxy names one in X-Forwarded-Prefix. Default "": a
	// change is refused unless its Origin is its own Host.
	PublicURL string

	// Proxies are the networks of the reverse proxies that may forward requests, such as
	// netip.MustParsePrefix("10.0.0.5/32"). A request that shows a proxy is refused unless it comes
	// from one of them. Each has to set X-Forwarded-For. Default none.
	Proxies []netip.Prefix

	// Authenticate returns who makes a request. An error refuses the request, and a User without
	// Role may do nothing. BasicAuth and TrustedProxy make one. It is called concurrently, also
	// every few minutes for a page that is open. If it is nil, every request is by Anonymous, and
	// requests from other machines are refused.
	//
	// At most ten requests with the header Authorization are under way for one address, which for
	// IPv6 is its network of 64 bits. One that fails counts for a second. An Authenticate that
	// takes secrets from elsewhere, such as a cookie, has to limit guesses itself.
	Authenticate func(*http.Request) (User, error)

	// Anonymous is the user without Authenticate. Default a Viewer without Contents.
	Anonymous User

	// Redact are names whose values are never shown: as keys of metadata, and as keys of objects in
	// JSON, also in JSON within a text of JSON, and in a value of metadata. A name counts word by
	// word: "token" also hides "accessToken" and "X-Auth-Token", and "api_key" hides "apikey". A
	// name of five letters or more also hides words that begin or end with it. Nil means
	// DefaultRedact; an empty slice redacts nothing. Text that looks like JSON and cannot be read
	// is hidden whole. Other payloads cannot be redacted.
	Redact []string

	// UTC has the page show times in UTC, and read in it what users type. Default false: in the
	// zone of the browser.
	UTC bool

	// Logger gets changes by users, and errors. Default slog.Default().
	Logger *slog.Logger
}

// DefaultRedact are the names that are redacted by default.
var DefaultRedact = []string{
	"password", "passwd", "passphrase", "passcode", "pass", "pwd", "pin", "secret", "token", "credential", "authorization", "authentication",
	"auth", "bearer", "jwt", "otp", "totp", "api_key", "access_key", "account_key", "private_key", "shared_key", "master_key", "signing_key",
	"encryption_key", "ssh_key", "license_key", "cookie", "session", "credit_card", "card_number", "cvv", "cvc", "iban", "ssn",
}

// Role is what a User may do.
type Role int

const (
	// NoRole may do nothing.
	NoRole Role = iota
	// Viewer may see topics, groups, counts, states, names and reasons.
	Viewer
	// Operator may change things, too.
	Operator
)

// String returns the role in a word.
func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case Operator:
		return "operator"
	default:
		return "no role"
	}
}

// User is somebody who uses the page.
type User struct {
	// Name is in the audit log, and in pauses. At most 256 bytes count. Default "anonymous".
	Name string
	Role Role

	// Contents allows to see metadata and payloads, except those of Config.Redact.
	Contents bool
}

// nobody is the name of a user without a name.
const nobody = "anonymous"

func (c *Config) setDefaults() {
	if c.Anonymous == (User{}) {
		c.Anonymous.Role = Viewer
	}
	if c.Anonymous.Name == "" {
		c.Anonymous.Name = nobody
	}
	if c.Redact == nil {
		c.Redact = DefaultRedact
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate reports all faults of the configuration at once, in one error that names each field. It
// wraps redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error {
	var errs []error
	if c.Admin == nil {
		errs = append(errs, field.Invalid("Admin", "is required: use admin.New"))
	}
	if p := c.Prefix; p != "" && (!strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.ContainsAny(p, "?#%{} ")) {
		errs = append(errs, field.Invalid("Prefix", "is %q: it must begin with a slash, not end with one, and be plain, such as \"/redisdelay\"", p))
	}
	for _, host := range c.Hosts {
		if _, _, err := net.SplitHostPort(host); err == nil || host == "" || strings.ContainsAny(host, "/*") {
			errs = append(errs, field.Invalid("Hosts", "has %q: it must be a name without port, such as \"ops.example.com\"", host))
		}
	}
	_, _, _, err := splitPublic(c.PublicURL)
	errs = append(errs, field.Check("PublicURL", err))
	for _, proxy := range c.Proxies {
		if !proxy.IsValid() {
			errs = append(errs, field.Invalid("Proxies", "has an invalid network: use netip.ParsePrefix"))
		}
	}
	for _, name := range c.Redact {
		if len(wordsOf(name)) == 0 {
			errs = append(errs, field.Invalid("Redact", "has %q: a name needs a letter or a digit", name))
		}
	}
	return errors.Join(errs...)
}

// Dashboard is the page, an http.Handler. It is safe for concurrent use.
type Dashboard struct {
	*state
	base   string // the path at which browsers see this face
	mux    *http.ServeMux
	routes []route
	pages  map[string]*template.Template
}

// state is what all faces of a Dashboard share. A face is the page at one path: a proxy may have
// browsers see it at another path than the program.
type state struct {
	config    Config
	admin     *admin.Admin
	public    string // origin of Config.PublicURL, "" if there is none
	outside   string // its host without the port
	stripped  string // path of Config.PublicURL, "" if there is none
	limits    limits
	names     hiddenNames
	reads     cache
	contents  contents
	sweep     *sweep
	jobs      jobs
	flashes   flashes
	uploads   uploads
	uploading places // of the users who send files
	logins    places // of the addresses that sign in
	finds     places // of the users who search
	streams   places // of the users whose browsers are connected for news
	running   context.Context
	stop      context.CancelFunc
	workers   sync.WaitGroup // the sweep and the jobs
	faces     faces
}

// New returns a Dashboard, which begins to read the topics. Close it. The error names every invalid
// field, and wraps redisdelay.ErrInvalidConfig.
func New(config Config) (*Dashboard, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	config.setDefaults()
	s := &state{config: config, admin: config.Admin, limits: usualLimits, names: hiddenNamesOf(config.Redact),
		logins: places{each: maxLogins}, streams: places{each: maxStreamsOfUser, all: maxStreams},
		finds: places{each: maxFindsOfUser, all: maxFinds}, uploading: places{each: 1, all: 2}}
	s.public, s.outside, s.stripped, _ = splitPublic(config.PublicURL)
	s.running, s.stop = context.WithCancel(context.Background())
	s.sweep = newSweep(s.admin)
	d := newFace(s, config.Prefix)
	s.workers.Go(func() { s.sweep.run(s.running) })
	return d, nil
}

// newFace returns the page at a path.
func newFace(s *state, base string) *Dashboard {
	d := &Dashboard{state: s, base: base}
	d.pages = d.parse()
	d.route()
	return d
}

// mostFaces is how many paths besides Config.Prefix are kept. A proxy has one.
const mostFaces = 16

// faces are the faces at other paths than Config.Prefix.
type faces struct {
	mu  sync.Mutex
	all map[string]*Dashboard
}

// at returns the page at a path, which is "" or begins with a slash.
func (d *Dashboard) at(base string) *Dashboard {
	if base == d.base {
		return d
	}
	d.faces.mu.Lock()
	defer d.faces.mu.Unlock()
	face := d.faces.all[base]
	if face == nil {
		if d.faces.all == nil || len(d.faces.all) >= mostFaces {
			d.faces.all = map[string]*Dashboard{}
		}
		face = newFace(d.state, base)
		d.faces.all[base] = face
	}
	return face
}

// Close ends the bulk operations, and waits for them. Requests are refused from then on. The
// connections of browsers end by themselves, within a moment. It returns nil.
func (d *Dashboard) Close() error {
	d.jobs.mu.Lock() // so that none begins after this
	d.stop()
	d.jobs.mu.Unlock()
	d.workers.Wait()
	d.uploads.drop()
	return nil
}
