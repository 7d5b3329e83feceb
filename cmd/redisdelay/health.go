package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// healthSettings are the settings of the HTTP servers for probes and metrics.
type healthSettings struct {
	address *string
	metrics *string
	maxLag  *time.Duration
}

func declareHealth(s *settings) *healthSettings {
	return &healthSettings{
		address: s.text("health", "", "`host:port` of an HTTP server for probes, `/healthz` and `/readyz`; `:8080` listens on all addresses. "+
			"Without it there is none"),
		metrics: s.text("metrics", "", "`host:port` of an HTTP server with `/metrics` for Prometheus and the probes; may be that of --health. "+
			"Without it there is none"),
		maxLag: s.duration("ready-max-lag", 10*time.Second, "how far the scheduling of a topic may be behind for `/readyz`"),
	}
}

// check returns an error for each invalid setting.
func (h *healthSettings) check() error {
	var errs []error
	errs = append(errs, checkAddress("health", *h.address), checkAddress("metrics", *h.metrics))
	if *h.maxLag < 0 {
		errs = append(errs, refuse("--ready-max-lag is %v; it must be 0 or more", *h.maxLag))
	}
	return errors.Join(errs...)
}

// checkAddress returns an error if a setting is not the address of a server. "" is none.
func checkAddress(name, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return refuse("--%s is %.100q, which is not a host:port", name, address)
	}
	return nil
}

// ready returns an error if messages do not become ready when they are due. With --all it only
// checks that Redis answers, because there may be any number of topics.
func (h *healthSettings) ready(ctx context.Context, operator *admin.Admin, topics []string) error {
	readiness, err := operator.Ready(ctx, topics...)
	if err != nil {
		return err
	}
	return readiness.Err(*h.maxLag)
}

// listen starts the configured HTTP servers. metrics has the answers of /metrics.
func (h *healthSettings) listen(logger *slog.Logger, check func(context.Context) error, metrics http.Handler) (*healthServer, error) {
	s := &healthServer{logger: logger, check: check}
	var err error
	if *h.address != "" && *h.address != *h.metrics {
		err = s.listen("health", *h.address, nil)
	}
	if *h.metrics != "" && err == nil {
		err = s.listen("metrics", *h.metrics, metrics)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// healthServer answers probes, and serves metrics.
type healthServer struct {
	logger  *slog.Logger
	check   func(context.Context) error
	ends    atomic.Bool
	servers []*http.Server
	served  sync.WaitGroup
}

// listen starts the server of a setting. Without metrics it answers only probes.
func (s *healthServer) listen(setting, address string, metrics http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--%s: %w", setting, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s.ends.Load() {
			answer(w, errors.New("the program is stopping"))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		answer(w, s.check(ctx))
	})
	what := "probes"
	if metrics != nil {
		what = "metrics"
		mux.Handle("GET /metrics", metrics)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second}
	s.servers = append(s.servers, server)
	s.logger.Info("Answering "+what, "address", listener.Addr().String())
	s.served.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.logger.Error("The server for "+what+" has failed", "error", err)
		}
	})
	return nil
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// stopping makes /readyz fail from now on.
func (s *healthServer) stopping() { s.ends.Store(true) }

func (s *healthServer) close() {
	for _, server := range s.servers {
		_ = server.Close()
	}
	s.served.Wait()
}
