//go:build unix

package otelredisdelay_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
)

// costMessages returns how many messages one measurement publishes and handles.
func costMessages() int64 {
	if testing.Short() {
		return 100
	}
	return 10_000
}

// BenchmarkCost tells how much CPU telemetry adds, to Redis and to the client, in percent of what
// they use without it. An op is a measurement of each variant, one after the other:
//
//   - noop: with noop providers, which shows how exact the figures are
//   - carried: without telemetry, but each message has a traceparent in its metadata
//   - unset: with the global providers, where no SDK is set
//   - sdk: with an SDK that samples every span, and exports to nowhere
//
// The figures are medians over the ops. One caller publishes at a steady rate, so that calls have
// the same messages in all variants. The handler does nothing. The command is make bench-otel.
func BenchmarkCost(b *testing.B) {
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discard{}))
	defer func() { _ = tracers.Shutdown(ctx) }()
	variants := []struct {
		name     string
		config   *otelredisdelay.Config
		metadata message.Metadata
	}{
		{"none", nil, nil},
		{"carried", nil, message.Metadata{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		{"noop", &otelredisdelay.Config{TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()}, nil},
		{"unset", &otelredisdelay.Config{}, nil},
		{"sdk", &otelredisdelay.Config{TracerProvider: tracers, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))}, nil},
	}
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr()})
			b.Cleanup(func() { _ = client.Close() })
			took := make([][]cost, len(variants))
			for _, v := range variants {
				measureCost(b, client, v.config, v.metadata, size) // warm up
			}
			for round := 0; b.Loop(); round++ {
				for i := range variants {
					n := (i + round) % len(variants)
					took[n] = append(took[n], measureCost(b, client, variants[n].config, variants[n].metadata, size))
				}
			}
			b.ReportMetric(0, "ns/op")
			for side, where := range []string{"redis", "client"} {
				b.ReportMetric(median(took[0], func(i int) float64 { return took[0][i][side] }), "µs-"+where)
				for n, v := range variants[1:] {
					more := func(i int) float64 { return 100 * (took[n+1][i][side]/took[0][i][side] - 1) }
					b.ReportMetric(median(took[0], more), "%-"+where+"-"+v.name)
				}
			}
		})
	}
}

// cost is the CPU time of a message in microseconds, of Redis and of the client.
type cost [2]float64

// discard exports spans to nowhere.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                             { return nil }

// measureCost publishes and handles messages, with telemetry unless config is nil.
func measureCost(b *testing.B, client *redis.Client, config *otelredisdelay.Config, metadata message.Metadata, size int) cost {
	own, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(b, err)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
	require.NoError(b, err)
	router := testkit.NewRouter(b)
	publisher := message.Publisher(own)
	if config != nil {
		telemetry, err := otelredisdelay.New(*config)
		require.NoError(b, err)
		router.AddMiddleware(telemetry.Middleware)
		publisher, err = telemetry.Publisher(own)
		require.NoError(b, err)
	}
	n := costMessages()
	var handled atomic.Int64
	all := make(chan struct{})
	router.AddConsumerHandler("work", "topic", sub, func(*message.Message) error {
		if handled.Add(1) == n {
			close(all)
		}
		return nil
	})
	ran := testkit.Begin(func() error { return router.Run(ctx) })
	<-router.Running()
	runtime.GC()

	redisBefore, clientBefore := redisCPU(b, client), clientCPU()
	rate := time.NewTicker(10 * time.Millisecond)
	defer rate.Stop()
	for range n / 100 {
		<-rate.C
		for range 100 / size {
			publishCost(b, publisher, metadata, size)
		}
	}
	testkit.Wait(b, all, "all messages")
	used := cost{
		(redisCPU(b, client) - redisBefore).Seconds() * 1e6 / float64(n),
		(clientCPU() - clientBefore).Seconds() * 1e6 / float64(n),
	}
	require.NoError(b, router.Close())
	require.NoError(b, <-ran)
	require.NoError(b, own.Close())
	require.NoError(b, client.FlushAll(ctx).Err())
	return used
}

func publishCost(b *testing.B, p message.Publisher, metadata message.Metadata, size int) {
	messages := make([]*message.Message, size)
	for i := range messages {
		messages[i] = message.NewMessage(watermill.NewUUID(), message.Payload(strings.Repeat("x", 100)))
		messages[i].Metadata.Set("kind", "order")
		maps.Copy(messages[i].Metadata, metadata)
	}
	if err := p.Publish("topic", messages...); err != nil {
		b.Error(err)
	}
}

func clientCPU() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func redisCPU(b *testing.B, client *redis.Client) (total time.Duration) {
	info, err := client.Info(ctx, "cpu").Result()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			total += time.Duration(seconds * float64(time.Second))
		}
	}
	return total
}

// median returns the median of f over the measurements.
func median(of []cost, f func(i int) float64) float64 {
	values := make([]float64, len(of))
	for i := range of {
		values[i] = f(i)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
