package otelredisdelay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.38.0"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// errPanicked is the outcome of a call that did not return.
var errPanicked = errors.New("it panicked, or called runtime.Goexit")

// Middleware is a router middleware that traces and measures each call of the handler. Add it
// before the others, so that the span has the final outcome. Watermill's Retry may stand before it:
// each try is then a span, linked to the one before.
//
//	router.AddMiddleware(telemetry.Middleware)
//
// The handler finds the span in the message's context. Messages that it returns, and whose context
// has no span, are published as children of it. An error sets the status, but for one that wraps a
// *redisdelay.PostponeError. A panic sets the status too, and goes on.
//
// It works with any Subscriber. The attributes of the delivery are only there with one of this
// library.
func (t *Telemetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	if t.off {
		return h
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		before := msg.Context()
		delivery, ours := redisdelay.DeliveryFromContext(before)
		from := t.sourceOf(before, &delivery, ours)
		ctx, options := before, from.start
		ambient := trace.SpanContextFromContext(before).IsValid()
		attempt, _ := before.Value(attemptKey{}).(trace.SpanContext)
		if ambient || attempt.IsValid() || t.carries(msg) || delivery.Redelivered {
			ctx, options = t.origins(msg, &delivery, attempt, options)
		}
		ctx, span := t.tracer.Start(ctx, from.name, options...)
		c := call{t, from, ctx, span, msg, before, time.Now(), errPanicked}
		traced := span.SpanContext().IsValid()
		if traced {
			c.begin(&delivery, ours)
		}
		defer c.end()
		produced, err := h(msg)
		c.outcome = err
		if traced {
			adopt(produced, span.SpanContext())
		}
		return produced, err
	}
}

// call is one call of a handler.
type call struct {
	*Telemetry
	from    *source
	ctx     context.Context // that has span
	span    trace.Span
	msg     *message.Message
	before  context.Context // of the message
	start   time.Time
	outcome error
}

// begin describes the span, and gives it to the handler.
func (c *call) begin(d *redisdelay.Delivery, ours bool) {
	if c.span.IsRecording() {
		describe(c.span, c.msg)
		if ours {
			describeDelivery(c.span, d, c.start)
		}
	}
	c.msg.SetContext(c.ctx)
}

// end tells how the call ended.
func (c *call) end() {
	defer c.span.End() // also if a method of the handler's error panics
	if spanContext := c.span.SpanContext(); spanContext.IsValid() {
		c.msg.SetContext(context.WithValue(c.before, attemptKey{}, spanContext))
		c.keepAttempt(c.msg, spanContext, c.outcome)
	}
	var postponed *redisdelay.PostponeError
	if c.outcome != nil && errors.As(c.outcome, &postponed) {
		c.span.SetAttributes(PostponedAttribute.Float64(postponed.Delay.Seconds()))
		c.outcome = nil
	}
	c.metrics.processed(c.ctx, c.from, time.Since(c.start), c.outcome)
	fail(c.span, c.outcome)
}

// sourceOf returns the source of a message with this context.
func (t *Telemetry) sourceOf(ctx context.Context, d *redisdelay.Delivery, ours bool) *source {
	if !ours {
		return t.source(message.SubscribeTopicFromCtx(ctx), "")
	}
	return t.source(d.Topic, d.Group)
}

// origins returns the context to start a process span in, and the options to start it with.
func (t *Telemetry) origins(msg *message.Message, d *redisdelay.Delivery, attempt trace.SpanContext, options []trace.SpanStartOption) (context.Context, []trace.SpanStartOption) {
	before := msg.Context()
	ambient := trace.SpanContextFromContext(before)
	ctx := t.extract(before, msg)
	creation := trace.SpanContextFromContext(ctx)
	if creation.Equal(ambient) { // the message carries none
		creation = trace.SpanContext{}
	}
	if !attempt.IsValid() {
		attempt = t.attemptBefore(before, d)
	}
	var links []trace.Link
	link := func(c trace.SpanContext, what string) {
		if c.IsValid() {
			links = append(links, trace.Link{SpanContext: c, Attributes: []attribute.KeyValue{LinkAttribute.String(what)}})
		}
	}
	link(creation, "producer")
	link(attempt, "attempt")
	options = slices.Clip(options)
	if t.continues(msg, d) {
		if creation.IsValid() {
			link(ambient, "ambient")
		}
	} else {
		link(ambient, "ambient")
		options = append(options, trace.WithNewRoot())
	}
	if len(links) > 0 {
		options = append(options, trace.WithLinks(links...))
	}
	return ctx, options
}

// continues tells whether the process span is in the trace of the producer.
func (t *Telemetry) continues(msg *message.Message, d *redisdelay.Delivery) bool {
	switch t.config.Continue {
	case ContinueAlways:
		return true
	case ContinueNever:
		return false
	}
	return !d.Redelivered && msg.Metadata[DelayedKey] == ""
}

func describeDelivery(span trace.Span, d *redisdelay.Delivery, start time.Time) {
	span.SetAttributes(
		MessageIDAttribute.String(d.ID),
		DueTimeAttribute.String(d.DueAt.UTC().Format(time.RFC3339Nano)),
		LatenessAttribute.Float64(start.Sub(d.DueAt).Seconds()),
		DeliveryNumberAttribute.Int(d.Number),
		RedeliveredAttribute.Bool(d.Redelivered),
	)
}

// adopt has the messages that a handler returned be published as children of its span.
func adopt(produced []*message.Message, span trace.SpanContext) {
	for _, msg := range produced {
		if msg != nil && !trace.SpanContextFromContext(msg.Context()).IsValid() {
			msg.SetContext(trace.ContextWithSpanContext(msg.Context(), span))
		}
	}
}

// idOf are the attributes of a link to a message.
func idOf(msg *message.Message) []attribute.KeyValue {
	if msg.UUID == "" {
		return nil
	}
	return []attribute.KeyValue{semconv.MessagingMessageID(msg.UUID)}
}
