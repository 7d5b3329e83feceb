package otelredisdelay

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.38.0"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// scope is the name of the tracer and of the meter.
const scope = "github.com/redisdelay/watermill-redisdelay/otel"

// DelayedKey, "redisdelay_delayed", is the metadata key of messages whose context is from before a
// delay or a redelivery. The value is "1". Consumers do not see the delay itself. A message that is
// published again with the same context keeps it.
const DelayedKey = "redisdelay_delayed"

// Continue says when a process span is a child of the message's creation context. Otherwise it
// starts a new trace. It has a link to the creation context in any case.
type Continue string

const (
	// ContinueUndelayed continues the trace of a message that was published without delay, at its
	// first delivery. A trace then does not stay open for the time of a delay or of a retry.
	ContinueUndelayed Continue = ""
	// ContinueAlways continues the trace of each message at each delivery.
	ContinueAlways Continue = "always"
	// ContinueNever starts a new trace for each process span.
	ContinueNever Continue = "never"
)

// Config configures a Telemetry. The zero value works.
type Config struct {
	// TracerProvider creates the spans. Default otel.GetTracerProvider(). If this and MeterProvider
	// are those of OpenTelemetry's noop packages, Publisher and Middleware return their arguments.
	// They then cost nothing, and new messages carry no context.
	TracerProvider trace.TracerProvider

	// MeterProvider creates the instruments. Default otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Propagator writes contexts into metadata and reads them. All processes of a topic need the
	// same. Default propagation.TraceContext{}, the keys "traceparent" and "tracestate". The global
	// propagator is not the default, because it propagates nothing until a program sets it.
	Propagator propagation.TextMapPropagator

	// System is the attribute messaging.system. Default "redisdelay". Set it for a process that
	// publishes to or consumes from another message queue, such as "kafka" behind a relay.
	System string

	// Attributes are added to all spans and measurements. The conventions ask for server.address
	// and server.port, which a decorator of any Publisher cannot know. Use few values. Default
	// none.
	Attributes []attribute.KeyValue

	// Continue says when a process span continues the producer's trace. Default ContinueUndelayed.
	Continue Continue

	// NoCreateSpans has the messages of a call with several carry the context of the send span. So
	// a call has one span, and consumers cannot tell its messages apart by their links. Default
	// false.
	NoCreateSpans bool

	// Admin reads the context of the attempt before, when a message is redelivered, with
	// Admin.Get. The Middleware then stores the context of each attempt with the nack, behind the
	// handler's error, as redisdelay.KeepError would. Default nil: nothing is stored or read, and
	// only retries within a process are linked to the attempt before.
	Admin *admin.Admin
}

// Validate reports what is wrong with the configuration. Errors wrap redisdelay.ErrInvalidConfig.
// New calls it.
func (c Config) Validate() error {
	switch c.Continue {
	case ContinueUndelayed, ContinueAlways, ContinueNever:
		return nil
	}
	return &redisdelay.FieldError{Field: "Continue",
		Fault: fmt.Sprintf("is %.64q: want ContinueUndelayed, ContinueAlways or ContinueNever", string(c.Continue))}
}

// Telemetry traces and measures publishers and handlers. It is safe for concurrent use, and needs
// no Close. It remembers every topic that it has seen, in about a kilobyte each.
type Telemetry struct {
	config  Config
	tracer  trace.Tracer
	metrics metrics
	off     bool     // the providers do nothing
	plain   bool     // the Propagator is propagation.TraceContext
	targets sync.Map // topic -> *target
	sources sync.Map // sourceKey -> *source
}

// New returns a Telemetry. Errors wrap redisdelay.ErrInvalidConfig or come from the MeterProvider.
func New(config Config) (*Telemetry, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.TracerProvider == nil {
		config.TracerProvider = otel.GetTracerProvider()
	}
	if config.MeterProvider == nil {
		config.MeterProvider = otel.GetMeterProvider()
	}
	if config.Propagator == nil {
		config.Propagator = propagation.TraceContext{}
	}
	config.System = cmp.Or(config.System, "redisdelay")
	config.Attributes = slices.Clone(config.Attributes)
	instruments, err := newMetrics(config.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)))
	if err != nil {
		return nil, err
	}
	_, noTraces := config.TracerProvider.(nooptrace.TracerProvider)
	_, noMetrics := config.MeterProvider.(noopmetric.MeterProvider)
	_, plain := config.Propagator.(propagation.TraceContext)
	return &Telemetry{
		off:     noTraces && noMetrics,
		plain:   plain,
		config:  config,
		tracer:  config.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		metrics: instruments,
	}, nil
}
