package otelredisdelay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

func TestMain(m *testing.M) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { errs <- err }))
	redistest.Main(m)
}

// errs are the errors that went to OpenTelemetry's error handler.
var errs = make(chan error, 100)

// reported waits for an error about a message. Only one test may.
func reported(t *testing.T, id string) error {
	t.Helper()
	err := testkit.Wait(t, errs, "an error")
	require.ErrorContains(t, err, id)
	return err
}

var (
	ctx      = context.Background()
	errOften = errors.New("the shop is closed")
)

// world is a server with a clock that stands still, and the telemetry of one program.
type world struct {
	*testing.T
	server    *redisdelaytest.Server
	telemetry *otelredisdelay.Telemetry
	tracers   trace.TracerProvider
	tracer    trace.Tracer
	exported  *tracetest.InMemoryExporter
	reader    *sdkmetric.ManualReader
	publisher message.Publisher // with telemetry
}

func newWorld(t *testing.T, change ...func(*otelredisdelay.Config)) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, server: redisdelaytest.Start(t), exported: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.exported))
	config := otelredisdelay.Config{
		TracerProvider: tracers,
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)),
		Admin:          w.server.Admin(),
	}
	for _, f := range change {
		f(&config)
	}
	var err error
	w.telemetry, err = otelredisdelay.New(config)
	require.NoError(t, err)
	w.tracers, w.tracer = tracers, tracers.Tracer("test")
	w.publisher = w.traced(w.newPublisher())
	return w
}

// newPublisher returns a Publisher without telemetry.
func (w *world) newPublisher() *redisdelay.Publisher {
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.server.Client()}, nil)
	require.NoError(w, err)
	w.Cleanup(func() { _ = p.Close() })
	return p
}

func (w *world) traced(p message.Publisher) message.Publisher {
	decorated, err := w.telemetry.Publisher(p)
	require.NoError(w, err)
	return decorated
}

// subscriber returns a Subscriber whose retries wait for a minute, and which gives up after three.
func (w *world) subscriber() *redisdelay.Subscriber {
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client: w.server.Client(), MaxDeliveries: 3, Backoff: func(int) time.Duration { return time.Minute },
	}, nil)
	require.NoError(w, err)
	w.Cleanup(func() { _ = sub.Close() })
	return sub
}

// handle runs a handler in a router with middlewares, which are the telemetry's by default.
func (w *world) handle(topic string, h message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) {
	w.Helper()
	if middlewares == nil {
		middlewares = []message.HandlerMiddleware{w.telemetry.Middleware}
	}
	router := testkit.NewRouter(w.T)
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("handler of "+topic, topic, w.subscriber(), h)
	testkit.StartRouter(w.T, router)
}

// publish publishes with telemetry, within a span "request" if within is true.
func (w *world) publish(topic string, messages ...*message.Message) {
	w.Helper()
	require.NoError(w, w.publisher.Publish(topic, messages...))
}

// spans waits until there are n spans of a name, and returns them in the order of their ends.
func (w *world) spans(name string, n int) (found tracetest.SpanStubs) {
	w.Helper()
	testkit.Eventually(w.T, func() bool {
		found = nil
		for _, span := range w.exported.GetSpans() {
			if span.Name == name {
				found = append(found, span)
			}
		}
		return len(found) >= n
	}, name)
	require.Len(w, found, n, name)
	return found
}

func (w *world) span(name string) tracetest.SpanStub { return w.spans(name, 1)[0] }

// metric returns what was measured with an instrument.
func (w *world) metric(name string) metricdata.Metrics {
	w.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(w, w.reader.Collect(ctx, &all))
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				return m
			}
		}
	}
	require.Fail(w, "no such metric", name)
	return metricdata.Metrics{}
}

// values are attributes as a map.
func values(attributes []attribute.KeyValue) map[string]any {
	found := map[string]any{}
	for _, a := range attributes {
		found[string(a.Key)] = a.Value.AsInterface()
	}
	return found
}

// linked are the kinds of links of a process span, and what they lead to.
func linked(span tracetest.SpanStub) map[string]trace.SpanID {
	found := map[string]trace.SpanID{}
	for _, link := range span.Links {
		kind, _ := values(link.Attributes)[string(otelredisdelay.LinkAttribute)].(string)
		found[kind] = link.SpanContext.SpanID()
	}
	return found
}

// id is the ID of a span.
func id(span tracetest.SpanStub) trace.SpanID { return span.SpanContext.SpanID() }

func sameTrace(a, b tracetest.SpanStub) bool {
	return a.SpanContext.TraceID() == b.SpanContext.TraceID()
}

func order(id string) *message.Message {
	msg := message.NewMessage(id, []byte("3 roses"))
	msg.Metadata.Set("correlation_id", "customer-7")
	return msg
}

func delayed(msg *message.Message, d time.Duration) *message.Message {
	redisdelay.DelayFor(msg, d)
	return msg
}

func succeed(*message.Message) error { return nil }
