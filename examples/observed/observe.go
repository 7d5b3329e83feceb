package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
)

// questions are what a program, a board or an alert asks. The last two are alerts, which have no
// answer while all is well.
var questions = []struct{ text, query string }{
	{"published", `redisdelay_published_messages_total`},
	{"delivered", `redisdelay_delivered_messages_total`},
	{"acked", `redisdelay_acked_messages_total`},
	{"retried", `redisdelay_retried_messages_total`},
	{"died, by cause", `redisdelay_dead_messages_total > 0`},
	{"waiting, by state", `redisdelay_messages`},
	{"at most a second late", `redisdelay_lateness_seconds_bucket{le=~"1|1.0"} / ignoring (le) redisdelay_lateness_seconds_count`},
	{"99 % are at most so late", `histogram_quantile(0.99, redisdelay_lateness_seconds_bucket)`},
	{"scheduled", `redisdelay_scheduled`},
	{"subscribed", `redisdelay_subscribed`},
	{"the exporter is not up", `redisdelay_up == 0 or absent(redisdelay_up)`},
	{"a scheduler fails", `redisdelay_scheduler_failing == 1`},
}

// observe exports the metrics, lets a Prometheus scrape them until all messages are handled, and
// prints the answers.
func observe(ctx context.Context, redis *example.Redis) error {
	exporter, err := export(redis)
	if err != nil {
		return err
	}
	defer exporter.Close()
	prom, err := startPrometheus(ctx, exporter.Listener.Addr().String())
	if err != nil {
		return err
	}
	defer prom.stop()

	handled := fmt.Sprintf(`redisdelay_acked_messages_total + ignoring (cause) redisdelay_dead_messages_total{cause="asked"} == %d
		and redisdelay_delivered_messages_total == redisdelay_acked_messages_total + redisdelay_nacked_messages_total`, orders)
	for {
		answer, err := prom.query(ctx, handled)
		if err == nil && len(answer) > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Prometheus to count all messages: %w", context.Cause(ctx))
		case <-time.After(250 * time.Millisecond):
		}
	}
	for _, q := range questions {
		answers, err := prom.query(ctx, q.query)
		if err != nil {
			return err
		}
		if len(answers) == 0 {
			answers = []string{"no"}
		}
		fmt.Printf("%-25s %s\n    %s\n", q.text+":", strings.Join(answers, ", "), q.query)
	}
	return nil
}

// export serves what Prometheus scrapes. In production, that is `redisdelay metrics`.
func export(redis *example.Redis) (*httptest.Server, error) {
	operator, err := admin.New(admin.Config{Client: redis.Client, KeyPrefix: redis.KeyPrefix})
	if err != nil {
		return nil, err
	}
	collector, err := promredisdelay.New(promredisdelay.Config{Admin: operator, Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return httptest.NewServer(mux), nil
}
