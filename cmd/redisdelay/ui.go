package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/demo"
)

// uiSettings are the settings of the command ui.
type uiSettings struct {
	listen, path    *string
	publicURL       *string
	hosts, redact   *list
	write, contents *bool
	demo            *bool

	user        *string
	password    *secret
	proxyHeader *string
	proxies     *list
}

func declareUI(s *settings) *uiSettings {
	return &uiSettings{
		listen:      s.text("listen", "localhost:8080", "address of the page; one that other machines reach needs --ui-user or --proxy-header"),
		hosts:       s.list("hosts", "names by which browsers reach the page, such as `ops.example.com`; localhost always does, and the host of --public-url"),
		path:        s.text("path", "", "path of the page, such as `/redisdelay`, behind a proxy that does not strip it"),
		publicURL:   s.text("public-url", "", "how the page is called from outside, behind a proxy, such as `https://ops.example.com/redisdelay`; other sites may change nothing"),
		write:       s.yes("write", false, "allow changes"),
		contents:    s.yes("contents", false, "show metadata and payloads"),
		redact:      s.list("redact", "keys of metadata and of JSON whose values are hidden, in place of password, token and the like; `--redact=` hides none"),
		user:        s.text("ui-user", "", "name with which browsers sign in"),
		password:    s.secret("ui-password", "the password with which browsers sign in"),
		proxyHeader: s.text("proxy-header", "", "header in which a trusted proxy names the user, such as `X-Forwarded-User`"),
		proxies:     s.list("proxies", "networks of the proxies that may forward requests, such as `10.0.0.5/32`; others are refused"),
		demo:        s.yes("demo", false, "show sample traffic on a server in this program, which can be changed"),
	}
}

func (a *app) uiCommand() *cobra.Command {
	a.ui = &cobra.Command{Use: "ui [flags]", Short: "serve a web page: what waits, what is wrong, and what to do", Args: cobra.NoArgs,
		DisableFlagsInUseLine: true,
		Long: `Serves a web page until Ctrl-C. By default it is for this machine only, changes nothing, and hides metadata and
payloads. Each setting is a flag, an environment variable, or a line of the configuration file.`,
		Example: "  redisdelay ui --demo\n  redisdelay ui --redis localhost:6379 --write --contents"}
	a.settings.flags = a.ui.Flags()
	ui := declareUI(a.settings)
	a.ui.RunE = a.runs(func(ctx context.Context, _ []string) error { return a.serve(ctx, ui) })
	return a.ui
}

// serve serves the page until ctx ends.
func (a *app) serve(ctx context.Context, ui *uiSettings) (err error) {
	if err := a.refuseEmptySettings("listen", "hosts", "public-url", "ui-user", "ui-password-file", "proxy-header", "proxies"); err != nil {
		return err
	}
	config := dashboard.Config{Prefix: *ui.path, Hosts: *ui.hosts, PublicURL: *ui.publicURL, UTC: a.utc, Logger: a.logger}
	if a.settings.find("redact").given != byDefault { // without it, the page has a list of its own
		config.Redact = slices.DeleteFunc(append([]string{}, *ui.redact...), func(name string) bool { return name == "" })
	}
	config.Anonymous = dashboard.User{Name: a.who(), Role: dashboard.Viewer, Contents: *ui.contents || *ui.demo}
	if *ui.write || *ui.demo {
		config.Anonymous.Role = dashboard.Operator
	}
	if err := ui.authenticate(&config); err != nil {
		return err
	}
	if *ui.demo {
		stop, err := a.startDemo(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if config.Admin, err = a.admin(); err != nil {
		return err
	}
	page, err := dashboard.New(config)
	if err != nil {
		return refuse("%w", err)
	}
	defer func() { _ = page.Close() }()
	err = page.ListenAndServe(ctx, *ui.listen, func(at net.Addr) {
		a.out.note("The page is at http://%s%s/, until Ctrl-C.", at, *ui.path)
	})
	if errors.Is(err, dashboard.ErrNeedsAuthentication) {
		return refuse("--listen: %w; set --ui-user and its password, or --proxy-header and --proxies", err)
	}
	return err
}

// refuseEmptySettings refuses settings that are there and empty, such as one whose variable in a
// shell is unset. Without a login, the page would be open to whom it is not meant for.
func (a *app) refuseEmptySettings(names ...string) error {
	var errs []error
	for _, name := range names {
		if one := a.settings.find(name); one.given != byDefault && strings.Trim(one.flag.Value.String(), ", ") == "" {
			errs = append(errs, refuse("--%s is empty: give it a value, or leave it out", name))
		}
	}
	return errors.Join(errs...)
}

// authenticate sets how users are known, and which proxies may forward their requests.
func (ui *uiSettings) authenticate(config *dashboard.Config) error {
	allowed := config.Anonymous
	for _, text := range *ui.proxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return refuse("--proxies: %q is no network, such as 10.0.0.5/32", text)
		}
		config.Proxies = append(config.Proxies, network)
	}
	switch {
	case *ui.user != "" && *ui.proxyHeader != "":
		return refuse("--ui-user and --proxy-header: use one of them")
	case *ui.user != "" && ui.password.value == "":
		return refuse("--ui-user needs a password: %s, or --ui-password-file", variable("ui-password"))
	case *ui.user == "" && ui.password.value != "":
		return refuse("there is a password, but no --ui-user")
	case *ui.proxyHeader != "" && len(*ui.proxies) == 0:
		return refuse("--proxy-header needs --proxies: the networks of the proxies that are believed")
	case *ui.user != "":
		config.Authenticate = dashboard.BasicAuth(map[string]dashboard.Login{*ui.user: {Password: ui.password.value, User: allowed}})
	case *ui.proxyHeader != "":
		config.Authenticate = dashboard.TrustedProxy(*ui.proxyHeader, func(string) dashboard.User { return allowed })
	case len(config.Proxies) > 0:
		config.Logger.Warn("Whoever reaches the proxy may use the page: have the proxy ask for a login, or set --ui-user or --proxy-header")
	}
	return nil
}

// startDemo starts a server in this program with sample traffic, and has the commands use it.
func (a *app) startDemo(ctx context.Context) (stop func() error, err error) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return nil, err
	}
	a.client = redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: 30 * time.Second}) // it shares the processor
	running, cancel := context.WithCancel(ctx)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- demo.Run(running, a.client, *a.keyPrefix, func() { close(began) }) }()
	stop = func() error {
		cancel()
		err := <-ended
		server.Close()
		return err
	}
	select {
	case <-began:
		if err := a.acceptDemo(ctx); err != nil {
			return nil, errors.Join(err, stop())
		}
		return stop, nil
	case err := <-ended:
		cancel()
		server.Close()
		return nil, errors.Join(err, ctx.Err())
	}
}

// acceptDemo has the page ignore what is wrong with the server of the demo, which only the demo
// uses.
func (a *app) acceptDemo(ctx context.Context) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	found, err := operator.Diagnose(ctx, admin.DiagnoseOptions{})
	for _, p := range found.Problems {
		if err == nil && p.Topic == "" {
			_, err = operator.Ignore(ctx, admin.Ignored{Kind: p.Kind, Severity: p.Severity, By: "demo", Why: "the server of the demo is in the memory of this program, and ends with it"})
		}
	}
	return err
}
