package otelredisdelay_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
)

// Each group has attempts of its own.
func TestARetryIsLinkedToTheAttemptOfItsGroup(t *testing.T) {
	w := newWorld(t)
	tries := map[string][]trace.SpanID{}
	for _, name := range []string{"a", "b", "c"} {
		sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.server.Client(), ConsumerGroup: name,
			Backoff: func(int) time.Duration { return time.Minute }}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = sub.Close() })
		require.NoError(t, sub.SubscribeInitialize("orders"))
		router := testkit.NewRouter(t)
		router.AddMiddleware(w.telemetry.Middleware)
		router.AddConsumerHandler(name, "orders", sub, failOnce(errOften))
		testkit.StartRouter(t, router)
	}
	w.publish("orders", order("a"))
	for _, name := range []string{"a", "b", "c"} {
		w.server.AwaitRetrying(t, "orders", name, 1)
	}
	w.server.Advance(time.Minute)
	for _, span := range w.spans("process orders", 6) {
		name, _ := values(span.Attributes)["redisdelay.group"].(string)
		tries[name] = append(tries[name], id(span))
		if len(tries[name]) == 2 {
			require.Equal(t, tries[name][0], linked(span)["attempt"], name)
		}
	}
	require.Len(t, tries, 3)
}

// The text of an error may look like a context. The one behind it counts.
func TestAnErrorWithAContextInItsText(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", failOnce(errors.New("upstream [traceparent 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01] failed")))
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	tries := w.spans("process orders", 2)
	require.Equal(t, id(tries[0]), linked(tries[1])["attempt"])
}

// A Redis that hangs holds a handler up for a second at most.
func TestTheLookForTheAttemptBeforeHasALimit(t *testing.T) {
	asked := make(limits, 100)
	w := newWorld(t)
	client := redis.NewClient(&redis.Options{Addr: w.server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(asked)
	operator, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	telemetry, err := otelredisdelay.New(otelredisdelay.Config{TracerProvider: noop.NewTracerProvider(), Admin: operator})
	require.NoError(t, err)
	w.handle("orders", failOnce(errOften), w.telemetry.Middleware, telemetry.Middleware)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	require.Empty(t, asked, "a first delivery asks Redis nothing")
	w.server.Advance(time.Minute)
	w.spans("process orders", 2)
	require.NotEmpty(t, asked)
	for range len(asked) {
		limit := <-asked
		require.Positive(t, limit)
		require.LessOrEqual(t, limit, time.Second)
	}
}

// limits get how long each call of a client may take.
type limits chan time.Duration

func (l limits) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l limits) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, call redis.Cmder) error {
		until, _ := ctx.Deadline()
		if strings.HasPrefix(call.Name(), "evalsha") {
			l <- time.Until(until)
		}
		return next(ctx, call)
	}
}
func (l limits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, calls []redis.Cmder) error {
		until, _ := ctx.Deadline()
		if strings.HasPrefix(calls[0].Name(), "evalsha") {
			l <- time.Until(until)
		}
		return next(ctx, calls)
	}
}

// A new message does not have the mark of the one whose metadata it took over.
func TestANewMessageHasNoOldMark(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", succeed)
	msg := order("a")
	msg.Metadata.Set(otelredisdelay.DelayedKey, "1")
	w.publish("orders", msg)
	require.Equal(t, id(w.span("publish orders")), w.span("process orders").Parent.SpanID())
}

// The create spans of a call are children of the span in the contexts of its messages.
func TestCreateSpansAreChildrenOfTheirMessages(t *testing.T) {
	w := newWorld(t)
	var parents []trace.SpanID
	var messages []*message.Message
	for _, name := range []string{"a", "b"} {
		request, span := w.tracer.Start(ctx, "request")
		msg := order(name)
		msg.SetContext(request)
		span.End()
		parents, messages = append(parents, span.SpanContext().SpanID()), append(messages, msg)
	}
	w.publish("orders", messages...)
	for i, span := range w.spans("create orders", 2) {
		require.Equal(t, parents[i], span.Parent.SpanID())
		require.Equal(t, messages[i].UUID, values(span.Attributes)["messaging.message.id"])
	}
	require.Equal(t, parents[0], w.span("publish orders").Parent.SpanID())
}

// Without an SDK, messages are published as they are.
func TestWithoutSDKMessagesAreNotCopied(t *testing.T) {
	t.Parallel()
	unset, err := otelredisdelay.New(otelredisdelay.Config{TracerProvider: noop.NewTracerProvider()})
	require.NoError(t, err)
	passed := make(passedOn, 2)
	publisher, err := unset.Publisher(passed)
	require.NoError(t, err)
	msg := delayed(order("a"), time.Hour)
	require.NoError(t, publisher.Publish("orders", msg))
	require.Same(t, msg, <-passed)
	require.NotContains(t, msg.Metadata, otelredisdelay.DelayedKey)
}

// Without traces there are still metrics, and the other way round.
func TestEitherProviderMayBeANoop(t *testing.T) {
	untraced := newWorld(t, func(c *otelredisdelay.Config) { c.TracerProvider = noop.NewTracerProvider() })
	untraced.publish("orders", order("a"))
	require.NotEmpty(t, untraced.metric("messaging.client.sent.messages").Data.(metricdata.Sum[int64]).DataPoints)
	t.Run("no metrics", func(t *testing.T) {
		unmeasured := newWorld(t, func(c *otelredisdelay.Config) { c.MeterProvider = metricnoop.NewMeterProvider() })
		unmeasured.publish("orders", order("a"))
		unmeasured.span("publish orders")
	})
}

// brokenError is an error that panics when it is asked what it is.
type brokenError struct{}

func (brokenError) Error() string { panic("the error is broken") }

// The span of a call ends, whatever the user's code does.
func TestSpansEndIfUsersCodePanics(t *testing.T) {
	w := newWorld(t)
	h := w.telemetry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, brokenError{} })
	require.Panics(t, func() { _, _ = h(order("a")) })
	w.span("process")
	broken, err := otelredisdelay.New(otelredisdelay.Config{TracerProvider: w.tracers, Propagator: brokenPropagator{}})
	require.NoError(t, err)
	publisher, err := broken.Publisher(w.newPublisher())
	require.NoError(t, err)
	require.Panics(t, func() { _ = publisher.Publish("orders", order("a")) })
	span := w.span("publish orders")
	require.Equal(t, "panic", values(span.Attributes)["error.type"])
	page, _, err := w.server.Admin().Topics(ctx, "", 10)
	require.NoError(t, err)
	require.Empty(t, page, "nothing was published")
}

// brokenPropagator panics when it writes.
type brokenPropagator struct{ propagation.TraceContext }

func (brokenPropagator) Inject(context.Context, propagation.TextMapCarrier) {
	panic("the propagator is broken")
}

// A handler may return nil, or a message with a span of its own.
func TestMessagesOfAHandlerKeepTheirSpans(t *testing.T) {
	w := newWorld(t)
	own, span := w.tracer.Start(ctx, "own")
	span.End()
	h := w.telemetry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		with := order("with")
		with.SetContext(own)
		return []*message.Message{nil, with, order("without")}, nil
	})
	produced, err := h(order("a"))
	require.NoError(t, err)
	require.Nil(t, produced[0])
	require.Equal(t, span.SpanContext(), trace.SpanContextFromContext(produced[1].Context()))
	require.Equal(t, id(w.span("process")), trace.SpanContextFromContext(produced[2].Context()).SpanID())
}

// A new trace is linked to the span of the subscription, too.
func TestANewTraceIsLinkedToTheSpanOfASubscription(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Continue = otelredisdelay.ContinueNever })
	subscribed, span := w.tracer.Start(ctx, "subscription")
	span.End()
	msg := order("a")
	msg.SetContext(subscribed)
	_, err := w.telemetry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	require.NoError(t, err)
	process := w.span("process")
	require.False(t, process.Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"ambient": span.SpanContext().SpanID()}, linked(process))
}

// A propagator may use other keys than those of W3C.
func TestAPropagatorWithItsOwnKeys(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Propagator = renamed{} })
	w.handle("orders", succeed)
	w.publish("orders", order("a"))
	require.Equal(t, id(w.span("publish orders")), w.span("process orders").Parent.SpanID())
}

// renamed is propagation.TraceContext with another key.
type renamed struct{ propagation.TraceContext }

func (renamed) Fields() []string { return []string{"x-trace"} }
func (r renamed) Inject(ctx context.Context, into propagation.TextMapCarrier) {
	w3c := propagation.MapCarrier{}
	r.TraceContext.Inject(ctx, w3c)
	into.Set("x-trace", w3c["traceparent"])
}
func (r renamed) Extract(ctx context.Context, from propagation.TextMapCarrier) context.Context {
	return r.TraceContext.Extract(ctx, propagation.MapCarrier{"traceparent": from.Get("x-trace")})
}

// The attributes of the configuration are those that New was given.
func TestAttributesMayBeChangedAfterNew(t *testing.T) {
	given := []attribute.KeyValue{attribute.String("server.address", "redis.local")}
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Attributes = given })
	given[0] = attribute.String("server.address", "other")
	w.publish("orders", order("a"))
	require.Equal(t, "redis.local", values(w.span("publish orders").Attributes)["server.address"])
}
