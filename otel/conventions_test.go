package otelredisdelay_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
)

type attributes map[string]any

// with returns attributes with others.
func (a attributes) with(others attributes) attributes {
	sum := attributes{}
	for _, set := range []attributes{a, others} {
		for key, value := range set {
			sum[key] = value
		}
	}
	return sum
}

// TestSpansAreThoseOfTheConventions has a row for each span of the conventions that this library
// has. A row has all attributes that the conventions require or recommend here, and those of the
// library.
func TestSpansAreThoseOfTheConventions(t *testing.T) {
	server := []attribute.KeyValue{attribute.String("server.address", "redis.local"), attribute.Int("server.port", 6379)}
	common := attributes{
		"messaging.system": "redisdelay", "messaging.destination.name": "orders",
		"server.address": "redis.local", "server.port": int64(6379),
	}
	create := common.with(attributes{"messaging.operation.name": "create", "messaging.operation.type": "create"})
	publish := common.with(attributes{"messaging.operation.name": "publish", "messaging.operation.type": "send"})
	process := common.with(attributes{
		"messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.consumer.group.name": "default", "redisdelay.group": "default",
	})
	one := func(id string, delayed bool) attributes {
		return attributes{"messaging.message.id": id, "messaging.message.conversation_id": "customer-7", "redisdelay.delayed": delayed}
	}
	got := func(id string, number int64, redelivered bool) attributes {
		return attributes{"messaging.message.id": id, "messaging.message.conversation_id": "customer-7",
			"redisdelay.delivery.number": number, "redisdelay.redelivered": redelivered,
			// The test gives these their values.
			"redisdelay.due_time": nil, "redisdelay.lateness": nil, "redisdelay.message.id": nil}
	}
	type row struct {
		name       string
		kind       trace.SpanKind
		attributes attributes
		status     codes.Code
	}
	cases := map[string]struct {
		messages []*message.Message
		handler  message.NoPublishHandlerFunc
		config   func(*otelredisdelay.Config)
		want     []row
	}{
		"one message": {
			messages: []*message.Message{order("a")},
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(one("a", false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)), codes.Unset},
			},
		},
		"one delayed message": {
			messages: []*message.Message{delayed(order("a"), time.Hour)},
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(one("a", true)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)), codes.Unset},
			},
		},
		"several messages": {
			messages: []*message.Message{order("a"), delayed(order("b"), time.Hour)},
			want: []row{
				{"create orders", trace.SpanKindProducer, create.with(one("a", false)), codes.Unset},
				{"create orders", trace.SpanKindProducer, create.with(one("b", true)), codes.Unset},
				{"publish orders", trace.SpanKindClient, publish.with(attributes{"messaging.batch.message_count": int64(2)}), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("b", 1, false)), codes.Unset},
			},
		},
		"several messages without create spans": {
			messages: []*message.Message{order("a"), delayed(order("b"), time.Hour)},
			config:   func(c *otelredisdelay.Config) { c.NoCreateSpans = true },
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(attributes{"messaging.batch.message_count": int64(2)}), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("b", 1, false)), codes.Unset},
			},
		},
		"a handler that fails": {
			messages: []*message.Message{order("a")},
			handler:  failOnce(fmt.Errorf("ship: %w", errOften)),
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(one("a", false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)).with(attributes{"error.type": "*errors.errorString"}), codes.Error},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 2, true)), codes.Unset},
			},
		},
		"a handler that panics": {
			messages: []*message.Message{order("a")},
			handler:  failOnce(nil),
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(one("a", false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)).with(attributes{"error.type": "panic"}), codes.Error},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 2, true)), codes.Unset},
			},
		},
		"a handler that postpones": {
			messages: []*message.Message{order("a")},
			handler:  failOnce(&redisdelay.PostponeError{Delay: time.Minute}),
			want: []row{
				{"publish orders", trace.SpanKindProducer, publish.with(one("a", false)), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, false)).with(attributes{"redisdelay.postponed": 60.0}), codes.Unset},
				{"process orders", trace.SpanKindConsumer, process.with(got("a", 1, true)), codes.Unset},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(config *otelredisdelay.Config) {
				config.Attributes = server
				if c.config != nil {
					c.config(config)
				}
			})
			if c.handler == nil {
				c.handler = succeed
			}
			w.handle("orders", c.handler, w.telemetry.Middleware, redisdelay.PostponeOnError)
			w.publish("orders", c.messages...)
			w.exhaust(len(c.want))
			w.server.AwaitDrained(t, "orders")

			spans := w.exported.GetSpans()
			require.Len(t, spans, len(c.want))
			slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
			for i, want := range c.want {
				span := spans[i]
				require.Equal(t, want.name, span.Name)
				require.Equal(t, want.kind, span.SpanKind, want.name)
				require.Equal(t, want.status, span.Status.Code, want.name)
				require.Equal(t, "https://opentelemetry.io/schemas/1.38.0", span.InstrumentationScope.SchemaURL)
				got := attributes(values(span.Attributes))
				for key, value := range want.attributes {
					if value == nil {
						require.Contains(t, got, key, want.name)
						want.attributes[key] = got[key]
					}
				}
				require.Equal(t, want.attributes, got, want.name)
			}
		})
	}
}

// exhaust moves the clock until there are n spans.
func (w *world) exhaust(n int) {
	w.Helper()
	require.Eventually(w, func() bool {
		w.server.AdvanceToNext()
		return len(w.exported.GetSpans()) >= n
	}, 30*time.Second, 5*time.Millisecond)
}

// failOnce returns a handler that fails at the first delivery only. It panics if err is nil.
func failOnce(err error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		d, _ := redisdelay.DeliveryFromContext(msg.Context())
		if d.Redelivered {
			return nil
		}
		if err == nil {
			panic("the handler is broken")
		}
		return err
	}
}

func TestDueTimeAndLatenessAreThoseOfTheDelivery(t *testing.T) {
	w := newWorld(t)
	deliveries := make(chan redisdelay.Delivery, 1)
	w.handle("orders", func(msg *message.Message) error {
		d, _ := redisdelay.DeliveryFromContext(msg.Context())
		deliveries <- d
		return nil
	})
	w.publish("orders", delayed(order("a"), time.Second))
	w.server.Advance(time.Second)
	d := <-deliveries
	span := w.span("process orders")
	got := values(span.Attributes)
	require.Equal(t, d.ID, got["redisdelay.message.id"])
	require.Equal(t, d.DueAt.UTC().Format(time.RFC3339Nano), got["redisdelay.due_time"])
	require.InDelta(t, span.StartTime.Sub(d.DueAt).Seconds(), got["redisdelay.lateness"], 0.1)
}

// Errors of Publish set the status of the send span, and their names are in error.type.
func TestAPublishThatFails(t *testing.T) {
	w := newWorld(t)
	err := w.publisher.Publish("", order("a"))
	require.ErrorIs(t, err, redisdelay.ErrInvalidTopic)
	odd := order("b")
	odd.Metadata.Set(redisdelay.DelayKey, "15 minutes")
	require.ErrorIs(t, w.publisher.Publish("orders", odd), redisdelay.ErrInvalidDelay)
	require.ErrorIs(t, w.publisher.Publish("orders", nil), redisdelay.ErrNilMessage)
	require.ErrorIs(t, w.publisher.Publish(""), redisdelay.ErrInvalidTopic)
	broken := w.traced(brokenPublisher{})
	require.Panics(t, func() { _ = broken.Publish("orders", order("c")) })
	unknown := w.traced(failingPublisher{fmt.Errorf("publish: %w: %w", redisdelay.ErrMaybePublished, io.EOF)})
	require.ErrorIs(t, unknown.Publish("orders", order("d")), io.EOF)

	spans := w.exported.GetSpans()
	require.Len(t, spans, 4)
	for i, want := range []struct{ name, errorType, text string }{
		{"publish", "redisdelay.ErrInvalidTopic", "invalid topic"},
		{"publish orders", "redisdelay.ErrInvalidDelay", "15 minutes"},
		{"publish orders", "panic", "panicked"},
		{"publish orders", "redisdelay.ErrMaybePublished", "EOF"},
	} {
		require.Equal(t, want.name, spans[i].Name)
		require.Equal(t, want.errorType, values(spans[i].Attributes)["error.type"])
		require.Equal(t, codes.Error, spans[i].Status.Code)
		require.Contains(t, spans[i].Status.Description, want.text)
	}
	points := w.metric("messaging.client.sent.messages").Data.(metricdata.Sum[int64]).DataPoints
	require.Len(t, points, 4)
}

type failingPublisher struct{ err error }

func (p failingPublisher) Publish(string, ...*message.Message) error { return p.err }
func (failingPublisher) Close() error                                { return nil }

type brokenPublisher struct{}

func (brokenPublisher) Publish(string, ...*message.Message) error { panic("the publisher is broken") }
func (brokenPublisher) Close() error                              { return nil }

func TestMetricsAreThoseOfTheConventions(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", failOnce(errOften))
	w.publish("orders", order("a"), order("b"))
	w.exhaust(7)
	w.server.AwaitDrained(t, "orders")
	odd := order("c")
	odd.Metadata.Set(redisdelay.DelayKey, "soon")
	require.Error(t, w.publisher.Publish("orders", odd))

	common := attributes{"messaging.system": "redisdelay", "messaging.destination.name": "orders"}
	publish := common.with(attributes{"messaging.operation.name": "publish"})
	call := publish.with(attributes{"messaging.operation.type": "send"})
	process := common.with(attributes{"messaging.operation.name": "process", "messaging.consumer.group.name": "default"})
	invalid, failed := attributes{"error.type": "redisdelay.ErrInvalidDelay"}, attributes{"error.type": "*errors.errorString"}
	type row struct {
		attributes attributes
		count      uint64
	}
	for name, want := range map[string]struct {
		unit string
		rows []row
	}{
		"messaging.client.operation.duration": {"s", []row{{call, 1}, {call.with(invalid), 1}}},
		"messaging.client.sent.messages":      {"{message}", []row{{publish, 2}, {publish.with(invalid), 1}}},
		"messaging.process.duration":          {"s", []row{{process, 2}, {process.with(failed), 2}}},
		"messaging.client.consumed.messages":  {"{message}", []row{{process, 2}, {process.with(failed), 2}}},
	} {
		m := w.metric(name)
		require.Equal(t, want.unit, m.Unit, name)
		var rows []row
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			require.True(t, data.IsMonotonic, name)
			for _, p := range data.DataPoints {
				rows = append(rows, row{values(p.Attributes.ToSlice()), uint64(p.Value)})
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				require.Equal(t, []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}, p.Bounds, name)
				rows = append(rows, row{values(p.Attributes.ToSlice()), p.Count})
			}
		}
		require.ElementsMatch(t, want.rows, rows, name)
	}
}

// OTLP refuses a whole batch with a text that is not UTF-8. Different texts stay different.
func TestTextsThatAreNotUTF8(t *testing.T) {
	w := newWorld(t)
	seen := map[string]bool{}
	for _, topic := range []string{"a\xff", "a\xfe", "a\ufffd", "a\ufffdff"} {
		odd := message.NewMessage("\xff", nil)
		odd.Metadata.Set(middleware.CorrelationIDMetadataKey, "\xfe")
		w.publish(topic, odd)
	}
	for _, span := range w.exported.GetSpans() {
		require.True(t, utf8.ValidString(span.Name), "%q", span.Name)
		for _, a := range span.Attributes {
			require.True(t, utf8.ValidString(a.Value.String()), "%s: %q", a.Key, a.Value.String())
		}
		seen[span.Name] = true
	}
	require.Len(t, seen, 4)
}

// Each Broadcast subscription has a group with a random name, which would be a time series.
func TestBroadcastGroupsAreOneSeries(t *testing.T) {
	w := newWorld(t)
	h := w.telemetry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.server.Client(), Broadcast: true}, nil)
	require.NoError(t, err)
	defer sub.Close()
	var subscriptions []<-chan *message.Message
	for range 2 {
		messages, err := sub.Subscribe(ctx, "orders")
		require.NoError(t, err)
		subscriptions = append(subscriptions, messages)
	}
	w.publish("orders", order("a"))
	for _, messages := range subscriptions {
		msg := w.server.Receive(t, messages)
		_, err := h(msg)
		require.NoError(t, err)
		msg.Ack()
	}
	points := w.metric("messaging.client.consumed.messages").Data.(metricdata.Sum[int64]).DataPoints
	require.Len(t, points, 1)
	group, _ := points[0].Attributes.Value("messaging.consumer.group.name")
	require.Equal(t, "broadcast", group.AsString())
	groups := map[any]bool{}
	for _, span := range w.spans("process orders", 2) {
		groups[values(span.Attributes)["messaging.consumer.group.name"]] = true
	}
	require.Len(t, groups, 2)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := otelredisdelay.New(otelredisdelay.Config{Continue: "sometimes"})
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, `"sometimes"`)
	var fault *redisdelay.FieldError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, "Continue", fault.Field)
	telemetry, err := otelredisdelay.New(otelredisdelay.Config{})
	require.NoError(t, err)
	_, err = telemetry.Publisher(nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorAs(t, err, &fault)
	require.Equal(t, "Publisher", fault.Field)
}

// An error of the user's may say its type itself.
func TestErrorsMaySayTheirType(t *testing.T) {
	w := newWorld(t)
	h := w.telemetry.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, fmt.Errorf("wrapped: %w", typedError{errors.New("inner")})
	})
	_, err := h(order("a"))
	require.Error(t, err)
	require.Equal(t, "out_of_roses", values(w.only().Attributes)["error.type"])
}

type typedError struct{ error }

func (typedError) ErrorType() string { return "out_of_roses" }

// only returns the only span there is.
func (w *world) only() tracetest.SpanStub {
	w.Helper()
	spans := w.exported.GetSpans()
	require.Len(w, spans, 1)
	return spans[0]
}
