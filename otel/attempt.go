package otelredisdelay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// attemptKey is the key of a context under which a message has the span context of the last call of
// its handler in this process.
type attemptKey struct{}

// withParent returns a context to start a span of Publish in. A message that is published when its
// process span has ended, such as by a PoisonQueue before the Middleware, is a child of that.
func withParent(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		if attempt, ok := ctx.Value(attemptKey{}).(trace.SpanContext); ok {
			return trace.ContextWithSpanContext(ctx, attempt)
		}
	}
	return ctx
}

// lookup is how long a redelivery waits for Redis to tell the attempt before.
const lookup = time.Second

// attemptBefore returns the span context of the attempt before this one, if Redis has it. An error
// of Redis goes to OpenTelemetry's error handler, and the message is handled without the link.
func (t *Telemetry) attemptBefore(ctx context.Context, d *redisdelay.Delivery) trace.SpanContext {
	if t.config.Admin == nil || !d.Redelivered {
		return trace.SpanContext{}
	}
	ctx, cancel := context.WithTimeout(ctx, lookup)
	defer cancel()
	found, err := t.config.Admin.Get(ctx, d.Topic, admin.ByID(d.ID))
	if err != nil {
		otel.Handle(fmt.Errorf("look for the attempt before of message %s: %w", d.ID, err))
		return trace.SpanContext{}
	}
	for _, place := range found.Places {
		if place.Group == d.Group {
			return attemptIn(place.Reason)
		}
	}
	return trace.SpanContext{}
}

// Redis keeps the first 1,024 bytes of a handler's error. The context of the attempt follows the
// error, in the form of W3C, so that operators find the trace in the reason of a dead letter.
const (
	attemptStart = " [traceparent "
	attemptEnd   = "]"
	maxError     = 1024 - len(attemptStart) - 55 - len(attemptEnd)
)

// keepAttempt has a nack of msg store the context of this attempt behind the handler's error.
func (t *Telemetry) keepAttempt(msg *message.Message, attempt trace.SpanContext, outcome error) {
	if t.config.Admin == nil {
		return
	}
	text := "nacked after its handler had succeeded"
	if outcome != nil {
		text = outcome.Error()
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxError)], "")
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), attempt), carrier)
	kept := errors.New(text + attemptStart + carrier["traceparent"] + attemptEnd)
	_, _ = redisdelay.KeepError(func(*message.Message) ([]*message.Message, error) { return nil, kept })(msg)
}

// attemptIn returns the context that keepAttempt wrote at the end of a reason.
func attemptIn(reason string) trace.SpanContext {
	rest, ok := strings.CutSuffix(reason, attemptEnd)
	i := strings.LastIndex(rest, attemptStart)
	if !ok || i < 0 {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": rest[i+len(attemptStart):]}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
