package dashboard

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// Config configures a Dashboard.
type Config struct {
	// Admin reads and changes the topics. Required.
	Admin *admin.Admin

	// Prefix is the path under which the program mounts the page, such as "/redisdelay". Default
	// "", the root. The handler expects it in the URL: do not use http.StripPrefix.
	Prefix string

	// Hosts are the names by which browsers reach the page, without port, such as
	// "ops.example.com". "localhost" and loopback addresses are always allowed. A request for
	// another host is refused, because it may come from a hostile page (DNS rebinding).
	Hosts []string

	// Authenticate returns who makes a request. An error refuses the request, and a User without
	// Role may do nothing. BasicAuth and TrustedProxy make one. It is called concurrently, also
	// every few minutes for a page that is open. If it is nil, every request is by Anonymous, and
	// requests from other machines are refused.
	Authenticate func(*http.Request) (User, error)

	// Anonymous is the user without Authenticate. Default a Viewer without Contents.
	Anonymous User

	// Redact are the keys of metadata, and of objects in JSON payloads, whose values are never
	// shown. Upper and lower case do not matter. Default DefaultRedact; an empty slice redacts
	// nothing. A payload that is not JSON cannot be redacted.
	Redact []string

	// Logger gets changes by users, and errors. Default slog.Default().
	Logger *slog.Logger
}

// DefaultRedact are the keys that are redacted by default.
var DefaultRedact = []string{"authorization", "password", "passwd", "secret", "token", "access_token", "refresh_token", "api_key", "apikey",
	"cookie", "set-cookie", "credit_card", "card_number", "cvv", "iban", "ssn"}

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
		errs = append(errs, fmt.Errorf("%w: field Admin is nil: use admin.New", admin.ErrInvalidConfig))
	}
	if p := c.Prefix; p != "" && (!strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.ContainsAny(p, "?#%{} ")) {
		errs = append(errs, fmt.Errorf("%w: field Prefix is %q: it must begin with a slash, not end with one, and be plain, such as \"/redisdelay\"", admin.ErrInvalidConfig, p))
	}
	for _, host := range c.Hosts {
		if _, _, err := net.SplitHostPort(host); err == nil || host == "" || strings.ContainsAny(host, "/*") {
			errs = append(errs, fmt.Errorf("%w: field Hosts has %q: it must be a name without port, such as \"ops.example.com\"", admin.ErrInvalidConfig, host))
		}
	}
	return errors.Join(errs...)
}

// Dashboard is the page, an http.Handler. It is safe for concurrent use.
type Dashboard struct {
	config  Config
	admin   *admin.Admin
	mux     *http.ServeMux
	routes  []route
	pages   map[string]*template.Template
	cross   *http.CrossOriginProtection
	limits  limits
	hidden  map[string]bool // keys to redact, in lower case
	reads   cache
	sweep   *sweep
	jobs    jobs
	flashes flashes
	streams chan struct{} // a place for each browser that is connected for news
	failing chan struct{} // a place for each failed login that waits
	running context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup // the sweep and the jobs
}

// New returns a Dashboard, which begins to read the topics. Close it. The error names every invalid
// field, and wraps redisdelay.ErrInvalidConfig.
func New(config Config) (*Dashboard, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	config.setDefaults()
	d := &Dashboard{config: config, admin: config.Admin, cross: http.NewCrossOriginProtection(), limits: usualLimits, hidden: map[string]bool{},
		streams: make(chan struct{}, maxStreams), failing: make(chan struct{}, 10)}
	for _, key := range config.Redact {
		d.hidden[strings.ToLower(key)] = true
	}
	d.running, d.stop = context.WithCancel(context.Background())
	d.sweep = newSweep(d.admin)
	d.pages = d.parse()
	d.route()
	d.workers.Go(func() { d.sweep.run(d.running) })
	return d, nil
}

// Close ends the bulk operations, and waits for them. Requests are refused from then on. The
// connections of browsers end by themselves, within a moment. It returns nil.
func (d *Dashboard) Close() error {
	d.jobs.mu.Lock() // so that none begins after this
	d.stop()
	d.jobs.mu.Unlock()
	d.workers.Wait()
	return nil
}
