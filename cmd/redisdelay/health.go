package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// healthSettings are the settings of the HTTP server for probes.
type healthSettings struct {
	address *string
	maxLag  *time.Duration
}

func declareHealth(s *settings) *healthSettings {
	return &healthSettings{
		address: s.text("health", "", "`host:port` of an HTTP server for probes, `/healthz` and `/readyz`; `:8080` listens on all addresses. "+
			"Without it there is none"),
		maxLag: s.duration("ready-max-lag", 10*time.Second, "how far the scheduling of a topic may be behind for `/readyz`"),
	}
}

// check returns an error for each invalid setting.
func (h *healthSettings) check() error {
	var errs []error
	if *h.address != "" {
		_, port, err := net.SplitHostPort(*h.address)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			errs = append(errs, refuse("--health is %.100q, which is not a host:port", *h.address))
		}
	}
	if *h.maxLag < 0 {
		errs = append(errs, refuse("--ready-max-lag is %v; it must be 0 or more", *h.maxLag))
	}
	return errors.Join(errs...)
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

// healthServer answers probes. A nil healthServer does nothing.
type healthServer struct {
	server *http.Server
	logger *slog.Logger
	ends   atomic.Bool
	served chan struct{}
}

// listen starts the HTTP server, or returns nil if none is configured.
func (h *healthSettings) listen(logger *slog.Logger, check func(context.Context) error) (*healthServer, error) {
	if *h.address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", *h.address)
	if err != nil {
		return nil, fmt.Errorf("--health: %w", err)
	}
	s := &healthServer{logger: logger, served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s.ends.Load() {
			answer(w, errors.New("the relay is stopping"))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		answer(w, check(ctx))
	})
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second}
	logger.Info("Answering probes", "address", listener.Addr().String())
	go func() {
		defer close(s.served)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("The server for probes has failed", "error", err)
		}
	}()
	return s, nil
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
func (s *healthServer) stopping() {
	if s != nil {
		s.ends.Store(true)
	}
}

func (s *healthServer) close() {
	if s != nil {
		_ = s.server.Close()
		<-s.served
	}
}
