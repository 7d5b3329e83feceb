package otelredisdelay

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.38.0"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// Publisher returns a Publisher that traces and measures the calls of another one, and has messages
// carry their contexts. It changes no message that it is given. It is a message.PublisherDecorator:
//
//	router.AddPublisherDecorators(telemetry.Publisher)
//
// It may decorate any Publisher. Let it be the outermost one of a relay.Publisher or of Watermill's
// forwarder, so that the message itself carries the context. It may be periodic.Config.Publisher if
// it decorates a *redisdelay.Publisher. The error is about a nil Publisher, and wraps
// redisdelay.ErrInvalidConfig.
func (t *Telemetry) Publisher(inner message.Publisher) (message.Publisher, error) {
	if inner == nil {
		return nil, &redisdelay.FieldError{Field: "Publisher", Fault: "is nil, and there is nothing to decorate"}
	}
	if t.off {
		return inner, nil
	}
	return &publisher{inner, t}, nil
}

type publisher struct {
	message.Publisher
	telemetry *Telemetry
}

// Unwrap returns the decorated Publisher. With it, periodic.Config.Publisher takes a traced one.
func (p *publisher) Unwrap() message.Publisher { return p.Publisher }

// Publish implements message.Publisher. A call without messages, or with a nil one, has no span.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 || slices.Contains(messages, nil) {
		return p.Publisher.Publish(topic, messages...)
	}
	t := p.telemetry
	to := t.target(topic)
	carried, links := t.create(to, messages)
	options := to.produce
	if carried != nil && !slices.ContainsFunc(carried, origin.missing) {
		options = to.send // no message will carry the context of this span
	}
	if len(links) > 0 {
		options = append(slices.Clip(options), trace.WithLinks(links...))
	}
	ctx, span := t.tracer.Start(withParent(messages[0].Context()), to.publishName, options...)
	err := errPanicked
	start := time.Now()
	defer func() {
		defer span.End()
		t.metrics.published(ctx, to, len(messages), time.Since(start), err)
		fail(span, err)
	}()
	if span.IsRecording() {
		if len(messages) == 1 {
			describe(span, messages[0])
			span.SetAttributes(DelayedAttribute.Bool(delayed(messages[0])))
		} else {
			span.SetAttributes(semconv.MessagingBatchMessageCount(len(messages)))
		}
	}
	err = p.Publisher.Publish(topic, t.stamp(span, carried, messages)...)
	return err
}

// origin is the creation context of a message.
type origin struct {
	trace.SpanContext
	own bool // the message carried it before this call
}

// missing tells that the message is to carry the context of the send span.
func (o origin) missing() bool { return !o.IsValid() }

// create returns the origins of messages, of create spans or their own. It returns nil if all are
// missing. The links of the send span lead to the others.
func (t *Telemetry) create(to *target, messages []*message.Message) (carried []origin, links []trace.Link) {
	creates := len(messages) > 1 && !t.config.NoCreateSpans
	for i, msg := range messages {
		var o origin
		if t.carries(msg) {
			o = origin{trace.SpanContextFromContext(t.extract(context.Background(), msg)), true}
		}
		if !o.IsValid() && creates {
			span := t.createSpan(to, msg)
			o = origin{span.SpanContext(), false}
			creates = o.IsValid() || span.IsRecording() // else the TracerProvider does nothing
		}
		if o.IsValid() {
			if carried == nil {
				carried = make([]origin, len(messages))
			}
			carried[i] = o
			links = append(links, trace.Link{SpanContext: o.SpanContext, Attributes: idOf(msg)})
		}
	}
	return carried, links
}

func (t *Telemetry) createSpan(to *target, msg *message.Message) trace.Span {
	_, span := t.tracer.Start(withParent(msg.Context()), to.createName, to.create...)
	if span.IsRecording() {
		describe(span, msg)
		span.SetAttributes(DelayedAttribute.Bool(delayed(msg)))
	}
	span.End()
	return span
}

// stamp returns copies of the messages that carry their contexts. If there are none, as without a
// TracerProvider, it returns the messages.
func (t *Telemetry) stamp(send trace.Span, carried []origin, messages []*message.Message) []*message.Message {
	if carried == nil {
		if !send.SpanContext().IsValid() {
			return messages
		}
		carried = make([]origin, len(messages))
	}
	copies := make([]*message.Message, len(messages))
	for i, msg := range messages {
		c := msg.Copy()
		ctx := trace.ContextWithSpan(msg.Context(), send)
		c.SetContext(ctx)
		o := carried[i]
		if !o.own {
			if o.IsValid() {
				ctx = trace.ContextWithSpanContext(ctx, o.SpanContext)
			}
			t.config.Propagator.Inject(ctx, propagation.MapCarrier(c.Metadata))
			delete(c.Metadata, DelayedKey)
		}
		if delayed(msg) || o.own && redelivered(msg) {
			c.Metadata[DelayedKey] = "1"
		}
		copies[i] = c
	}
	return copies
}

// carries tells whether the message may carry a context. It is cheaper than extract.
func (t *Telemetry) carries(msg *message.Message) bool {
	return !t.plain || msg.Metadata["traceparent"] != ""
}

// extract returns ctx with the context that the message carries, if it does.
func (t *Telemetry) extract(ctx context.Context, msg *message.Message) context.Context {
	return t.config.Propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata))
}

// delayed tells whether the message has a delay. Publish returns the error of one that cannot be
// read.
func delayed(msg *message.Message) bool {
	yes, err := redisdelay.Delayed(msg)
	return yes && err == nil
}

// redelivered tells whether the message is published again, by its handler or a middleware, at a
// delivery that was not its first.
func redelivered(msg *message.Message) bool {
	d, _ := redisdelay.DeliveryFromContext(msg.Context())
	return d.Redelivered
}

// fail gives a span the outcome of its operation.
func fail(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetAttributes(errorType(err))
		span.SetStatus(codes.Error, err.Error())
	}
}
