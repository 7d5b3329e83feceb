package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
)

func (a *app) metricsCommand() *cobra.Command {
	address, groups, schedules := "", 0, 0
	c := &cobra.Command{Use: "metrics [TOPIC...]", Short: "export the state of topics to Prometheus",
		Long: `Serves the state of the given topics, by default of all, as metrics for Prometheus, until SIGTERM or SIGINT.
One process exports the figures of all publishers, subscribers and schedulers. /metrics has the
metrics. /healthz is 200 while the program runs, and /readyz if Redis answers.`,
		ValidArgsFunction: a.completeTopic,
		Example:           "  redisdelay metrics --redis localhost:6379 --listen :9847",
		RunE: a.runs(func(ctx context.Context, topics []string) error {
			return a.metrics(ctx, address, promredisdelay.Config{Topics: topics, MaxGroups: groups, MaxSchedules: schedules})
		})}
	c.Flags().StringVar(&address, "listen", "localhost:9847", "host:port of the HTTP server; :9847 listens on all addresses")
	c.Flags().IntVar(&groups, "max-groups", 2000, "how many topics and groups together are exported at most")
	c.Flags().IntVar(&schedules, "max-schedules", 1000, "how many recurring schedules are exported at most; negative for none")
	return c
}

// metrics serves until ctx ends.
func (a *app) metrics(ctx context.Context, address string, config promredisdelay.Config) error {
	if err := checkAddress("listen", address); err != nil {
		return err
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	if len(config.Topics) == 0 {
		config.Topics = nil // all
	}
	config.Admin, config.Client = operator, a.client
	handler, err := exporter(a.logger, config)
	if err != nil {
		return err
	}
	server := &healthServer{logger: a.logger, check: func(ctx context.Context) error {
		_, err := operator.Ready(ctx)
		return err
	}}
	if err := server.listen("listen", address, handler); err != nil {
		return err
	}
	defer server.close()
	<-ctx.Done()
	return nil
}

// exporter returns what answers /metrics.
func exporter(logger *slog.Logger, config promredisdelay.Config) (http.Handler, error) {
	config.OnError = func(err error) { logger.Error("Cannot export all metrics", "error", err) }
	collector, err := promredisdelay.New(config)
	if err != nil {
		return nil, refuse("%w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelError)}), nil
}
