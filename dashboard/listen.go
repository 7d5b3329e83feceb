package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// ErrNeedsAuthentication means that without Config.Authenticate the page may not listen on an
// address that other machines reach.
var ErrNeedsAuthentication = errors.New("without Authenticate the page may only listen on a loopback address, such as localhost:8080")

// ListenAndServe serves the page alone, on an address such as "localhost:8080", until ctx ends. It
// returns nil then. Without Config.Authenticate it refuses an address that other machines reach:
// ErrNeedsAuthentication. It serves no TLS: beyond this machine, and without Config.Proxies, it
// logs a warning. listening, if not nil, is called with the address, once the page can be opened.
func (d *Dashboard) ListenAndServe(ctx context.Context, address string, listening func(net.Addr)) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	bound, isTCP := listener.Addr().(*net.TCPAddr)
	local := isTCP && bound.IP.IsLoopback()
	switch {
	case !local && d.config.Authenticate == nil:
		_ = listener.Close()
		return fmt.Errorf("dashboard: %q: %w", address, ErrNeedsAuthentication)
	case !local && len(d.config.Proxies) == 0:
		d.config.Logger.Warn("The page has no TLS, and other machines reach it: passwords and contents cross the network unencrypted. "+
			"Have a proxy end TLS before it, and name the proxy in Proxies", "address", bound)
	}
	server := &http.Server{Handler: d, ReadHeaderTimeout: d.limits.read, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	if listening != nil {
		listening(listener.Addr())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err = <-served:
		return fmt.Errorf("dashboard: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if server.Shutdown(stopping) != nil {
		_ = server.Close()
	}
	<-served
	return nil
}
