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

// healthSettings are of the endpoint for probes.
type healthSettings struct {
	address *string
	maxLag  *time.Duration
}

func declareHealth(s *settings) *healthSettings {
	return &healthSettings{
		address: s.text("health", "", "`host:port` of an HTTP server for probes, `/healthz` and `/readyz`; `:8080` is all the machine's addresses. "+
			"Without it there is none"),
		maxLag: s.duration("ready-max-lag", 10*time.Second, "how far behind the scheduling of a topic may be for `/readyz`"),
	}
}

// check tells what cannot be.
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
		errs = append(errs, refuse("--ready-max-lag is %v; it has to be 0 or more", *h.maxLag))
	}
	return errors.Join(errs...)
}

// ready asks Redis whether messages become ready when they are due. With --all there may be any number of topics,
// so only Redis itself is asked then.
func (h *healthSettings) ready(ctx context.Context, looker *admin.Admin, topics []string) error {
	readiness, err := looker.Ready(ctx, topics...)
	if err != nil {
		return err
	}
	return readiness.Err(*h.maxLag)
}

// healthServer answers probes; nil answers none.
type healthServer struct {
	server *http.Server
	logger *slog.Logger
	ends   atomic.Bool
	served chan struct{}
}

// listen opens the endpoint, if there is to be one.
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
			answer(w, errors.New("it is about to end"))
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
			logger.Error("Probes are answered no more", "error", err)
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

// stopping says that nothing more is relayed.
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
