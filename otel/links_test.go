package otelredisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// group is the group of the tests.
const group = redisdelay.DefaultConsumerGroup

// A traced Publisher publishes recurring messages, also if the providers do nothing.
func TestRecurringMessagesAreTraced(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("off=", off), func(t *testing.T) {
			w := newWorld(t, func(c *otelredisdelay.Config) {
				if off {
					c.TracerProvider, c.MeterProvider = noop.NewTracerProvider(), metricnoop.NewMeterProvider()
				}
			})
			p, err := periodic.New(periodic.Config{Publisher: w.publisher}, nil)
			require.NoError(t, err)
			require.NoError(t, p.Add(periodic.Schedule{Name: "report", Topic: "reports", Spec: "@every 2400h",
				Message: func(periodic.Occurrence) (*message.Message, error) { return order("a"), nil }}))
			running, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- p.Run(running) }()
			waiting := w.server.AwaitScheduled(t, "reports", 1)
			stop()
			require.NoError(t, testkit.Wait(t, ended, "Run"))
			if off {
				require.NotContains(t, waiting[0].Metadata, "traceparent")
				return
			}
			w.handle("reports", succeed)
			w.server.AdvanceToNext()
			publish, process := w.span("publish reports"), w.span("process reports")
			require.False(t, sameTrace(publish, process), "it was delayed")
			require.Equal(t, map[string]trace.SpanID{"producer": id(publish)}, linked(process))
		})
	}
}

func TestAMessageWithoutDelayContinuesTheTrace(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", succeed)
	request, span := w.tracer.Start(ctx, "request")
	msg := order("a")
	msg.SetContext(request)
	before := msg.CopyWithContext()
	w.publish("orders", msg)
	require.Equal(t, before.Metadata, msg.Metadata, "the message of the caller was changed")
	require.Equal(t, before.Context(), msg.Context())
	span.End()

	publish, process := w.span("publish orders"), w.span("process orders")
	require.Equal(t, span.SpanContext().SpanID(), publish.Parent.SpanID())
	require.Empty(t, publish.Links)
	require.Equal(t, id(publish), process.Parent.SpanID())
	require.True(t, sameTrace(publish, process))
	require.Equal(t, map[string]trace.SpanID{"producer": id(publish)}, linked(process))
}

func TestADelayedMessageStartsANewTrace(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", succeed)
	w.publish("orders", delayed(order("a"), 7*24*time.Hour))
	w.server.Advance(7 * 24 * time.Hour)
	publish, process := w.span("publish orders"), w.span("process orders")
	require.False(t, process.Parent.IsValid())
	require.False(t, sameTrace(publish, process))
	require.Equal(t, map[string]trace.SpanID{"producer": id(publish)}, linked(process))
}

// Each way to give a delay counts.
func TestADelayInAContextStartsANewTrace(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", succeed)
	msg := order("a")
	msg.SetContext(delay.WithContext(ctx, delay.For(time.Hour)))
	w.publish("orders", msg, order("b"))
	w.server.Advance(time.Hour)
	publish, created, processed := w.span("publish orders"), w.spans("create orders", 2), w.spans("process orders", 2)
	require.Equal(t, id(created[0]), publish.Links[0].SpanContext.SpanID())
	require.Equal(t, map[string]any{"messaging.message.id": "a"}, values(publish.Links[0].Attributes))
	require.Equal(t, id(created[1]), publish.Links[1].SpanContext.SpanID())
	require.Equal(t, id(created[1]), processed[0].Parent.SpanID())
	require.False(t, processed[1].Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"producer": id(created[0])}, linked(processed[1]))
}

func TestContinue(t *testing.T) {
	for mode, want := range map[otelredisdelay.Continue]struct{ undelayed, delayed bool }{
		otelredisdelay.ContinueUndelayed: {true, false},
		otelredisdelay.ContinueAlways:    {true, true},
		otelredisdelay.ContinueNever:     {false, false},
	} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t, func(c *otelredisdelay.Config) { c.Continue = mode })
			w.handle("orders", succeed)
			w.publish("orders", order("a"))
			undelayed := w.span("process orders")
			require.Equal(t, want.undelayed, sameTrace(w.span("publish orders"), undelayed))
			require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(undelayed))
			w.exported.Reset()

			w.publish("orders", delayed(order("b"), time.Hour))
			w.server.Advance(time.Hour)
			require.Equal(t, want.delayed, sameTrace(w.span("publish orders"), w.span("process orders")))
		})
	}
}

// The messages of a call without create spans carry the context of the send span.
func TestMessagesWithoutCreateSpansAreLinkedToTheCall(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.NoCreateSpans = true })
	w.handle("orders", succeed)
	w.publish("orders", order("a"), order("b"))
	for _, process := range w.spans("process orders", 2) {
		require.Equal(t, id(w.span("publish orders")), process.Parent.SpanID())
	}
}

// A retry that Redis keeps is a new trace, linked to the producer and to the attempt before, also
// in another process. DelayOnError sets the delay of the retry.
func TestARetryIsLinkedToTheAttemptBefore(t *testing.T) {
	w := newWorld(t)
	slow := middleware.DelayOnError{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 1}
	w.handle("orders", failOnce(errOften), w.telemetry.Middleware, slow.Middleware, redisdelay.KeepError)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Hour)

	publish, tries := w.span("publish orders"), w.spans("process orders", 2)
	require.True(t, sameTrace(publish, tries[0]))
	require.False(t, tries[1].Parent.IsValid())
	require.False(t, sameTrace(tries[0], tries[1]))
	require.Equal(t, map[string]trace.SpanID{"producer": id(publish), "attempt": id(tries[0])}, linked(tries[1]))
	require.True(t, tries[1].Links[1].SpanContext.IsSampled())
}

func TestAPostponedMessageIsLinkedToTheAttemptBefore(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", failOnce(&redisdelay.PostponeError{Delay: time.Hour}), w.telemetry.Middleware, redisdelay.PostponeOnError)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Hour)
	tries := w.spans("process orders", 2)
	require.Equal(t, id(tries[0]), linked(tries[1])["attempt"])
}

// The router nacks a message if what its handler returned cannot be published.
func TestAMessageWhoseResultsCouldNotBePublishedIsLinkedToTheAttemptBefore(t *testing.T) {
	w := newWorld(t)
	router := testkit.NewRouter(t)
	router.AddMiddleware(w.telemetry.Middleware)
	var calls atomic.Int32
	router.AddHandler("work", "orders", w.subscriber(), "invoices", w.publisher, func(*message.Message) ([]*message.Message, error) {
		invoice := message.NewMessage("invoice", nil)
		if calls.Add(1) == 1 {
			invoice.Metadata.Set(redisdelay.DelayKey, "soon")
		}
		return []*message.Message{invoice}, nil
	})
	testkit.StartRouter(t, router)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	tries, published := w.spans("process orders", 2), w.spans("publish invoices", 2)
	require.Equal(t, id(tries[0]), linked(tries[1])["attempt"])
	for i := range tries {
		require.Equal(t, id(tries[i]), published[i].Parent.SpanID(), "a message of the handler is published as a child of its span")
	}
}

// The producer of a message may have no telemetry.
func TestARetryOfAnUntracedMessageIsLinkedToTheAttemptBefore(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", failOnce(errOften))
	require.NoError(t, w.newPublisher().Publish("orders", order("a")))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	tries := w.spans("process orders", 2)
	require.Empty(t, tries[0].Links)
	require.False(t, sameTrace(tries[0], tries[1]))
	require.Equal(t, map[string]trace.SpanID{"attempt": id(tries[0])}, linked(tries[1]))
}

// Redis cuts a handler's error, but not the context behind it.
func TestALongErrorDoesNotCostTheLink(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", failOnce(errors.New(strings.Repeat("é", 5000))))
	w.publish("orders", order("a"))
	require.Contains(t, w.server.AwaitRetrying(t, "orders", group, 1)[0].Places[0].Reason, "ééé [traceparent 00-")
	w.server.Advance(time.Minute)
	tries := w.spans("process orders", 2)
	require.Equal(t, id(tries[0]), linked(tries[1])["attempt"])
}

// If Redis cannot tell the attempt before, the handler runs all the same.
func TestAnAttemptThatCannotBeReadIsReported(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Admin = redisdelaytest.Start(t).Admin() })
	w.handle("orders", failOnce(errOften))
	w.publish("orders", order("a"))
	waiting := w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	tries := w.spans("process orders", 2)
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(tries[1]))
	err := reported(t, waiting[0].ID)
	if !errors.Is(err, context.DeadlineExceeded) { // on a busy machine
		require.ErrorIs(t, err, admin.ErrNotFound)
	}
}

// Only a message that carries its context from before is from before the redelivery.
func TestANewMessageOfARedeliveryContinuesTheTrace(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", func(msg *message.Message) error {
		if err := failOnce(errOften)(msg); err != nil {
			return err
		}
		return w.publisher.Publish("invoices", message.NewMessageWithContext(msg.Context(), "invoice", nil))
	})
	w.handle("invoices", succeed)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	invoice := w.span("process invoices")
	require.Equal(t, id(w.span("publish invoices")), invoice.Parent.SpanID())
	require.True(t, sameTrace(w.spans("process orders", 2)[1], invoice))
}

// A program whose SDK is not set passes on the contexts that it gets.
func TestWithoutSDKContextsArePassedOn(t *testing.T) {
	w := newWorld(t)
	unset, err := otelredisdelay.New(otelredisdelay.Config{TracerProvider: noop.NewTracerProvider()})
	require.NoError(t, err)
	passed := make(passedOn, 2)
	publisher, err := unset.Publisher(passed)
	require.NoError(t, err)
	w.handle("orders", func(msg *message.Message) error {
		return publisher.Publish("invoices", message.NewMessageWithContext(msg.Context(), "1", nil), message.NewMessageWithContext(msg.Context(), "2", nil))
	}, unset.Middleware)
	w.publish("orders", order("a"))
	for range 2 {
		msg := testkit.Wait(t, passed, "a message")
		carried := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(msg.Metadata))
		require.Equal(t, id(w.span("publish orders")), trace.SpanContextFromContext(carried).SpanID())
	}
}

// passedOn is a Publisher that keeps what it is given.
type passedOn chan *message.Message

func (p passedOn) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		p <- msg
	}
	return nil
}
func (passedOn) Close() error { return nil }

func TestNoopProvidersCostNothing(t *testing.T) {
	t.Parallel()
	off, err := otelredisdelay.New(otelredisdelay.Config{TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	require.NoError(t, err)
	inner := passedOn(nil)
	publisher, err := off.Publisher(inner)
	require.NoError(t, err)
	require.Equal(t, message.Publisher(inner), publisher)
	h := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	require.Equal(t, reflect.ValueOf(h).Pointer(), reflect.ValueOf(off.Middleware(h)).Pointer())
}

// Without Admin nothing is stored, so the retry is linked to the producer only.
func TestWithoutAdminNothingIsStored(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Admin = nil })
	w.handle("orders", failOnce(errOften))
	w.publish("orders", order("a"))
	waiting := w.server.AwaitRetrying(t, "orders", group, 1)
	require.Empty(t, waiting[0].Places[0].Reason)
	w.server.Advance(time.Minute)
	tries := w.spans("process orders", 2)
	require.False(t, sameTrace(tries[0], tries[1]))
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(tries[1]))
}

// An attempt whose lease expired has told Redis nothing.
func TestAnAttemptThatTellsNothingHasNoLink(t *testing.T) {
	w := newWorld(t)
	lost := make(chan struct{})
	w.handle("orders", func(msg *message.Message) error {
		if d, _ := redisdelay.DeliveryFromContext(msg.Context()); !d.Redelivered {
			close(lost)
			<-msg.Context().Done()
			return context.Cause(msg.Context())
		}
		return nil
	})
	w.publish("orders", order("a"))
	<-lost
	w.server.ExpireLeases("orders")
	for _, span := range w.spans("process orders", 2) {
		if values(span.Attributes)["redisdelay.redelivered"] == true {
			require.False(t, span.Parent.IsValid())
			require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(span))
		}
	}
}

// Watermill's Retry calls the handler again at the same delivery. So the trace goes on.
func TestARetryInTheProcessIsLinkedToTheTryBefore(t *testing.T) {
	w := newWorld(t, func(c *otelredisdelay.Config) { c.Admin = nil })
	var calls atomic.Int32
	w.handle("orders", func(*message.Message) error {
		if calls.Add(1) == 1 {
			return errOften
		}
		return nil
	}, middleware.Retry{MaxRetries: 1}.Middleware, w.telemetry.Middleware)
	w.publish("orders", order("a"))
	publish, tries := w.span("publish orders"), w.spans("process orders", 2)
	require.Equal(t, id(publish), tries[1].Parent.SpanID())
	require.Equal(t, map[string]trace.SpanID{"producer": id(publish), "attempt": id(tries[0])}, linked(tries[1]))
}

// The reason of a dead letter names the trace of its last attempt. A requeued one is linked to its
// producer.
func TestDeadLettersKeepTheLink(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int32
	w.handle("orders", func(msg *message.Message) error {
		if calls.Add(1) == 1 {
			redisdelay.DeadOnNack(msg, errors.New("no such flower"))
			return errOften
		}
		return nil
	})
	w.publish("orders", order("a"))
	w.server.AwaitDrained(t, "orders")
	dead := w.dead("orders")
	first := w.span("process orders")
	require.Contains(t, dead.Places[0].Reason, fmt.Sprintf("%s [traceparent 00-%s-%s-01]", errOften, first.SpanContext.TraceID(), id(first)))
	carried := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(dead.Metadata))
	require.Equal(t, id(w.span("publish orders")), trace.SpanContextFromContext(carried).SpanID())

	require.NoError(t, w.server.Admin().Requeue(ctx, "orders", admin.GroupMessage{Group: group, ID: dead.ID}))
	w.server.Advance(time.Millisecond)
	again := w.spans("process orders", 2)[1]
	require.False(t, again.Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(again))
}

// The contexts in the reasons of dead letters do not make these differ.
func TestDeadLettersOfOneCauseHaveOneReason(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", func(msg *message.Message) error {
		redisdelay.DeadOnNack(msg, nil)
		return errOften
	})
	w.publish("orders", order("a"), order("b"))
	w.spans("process orders", 2)
	w.server.AwaitDrained(t, "orders")
	reasons, err := w.server.Admin().DeadReasons(ctx, "orders", admin.Bulk{Group: group})
	require.NoError(t, err)
	require.Len(t, reasons.Reasons, 1)
	require.Equal(t, 2, reasons.Reasons[0].Count)
}

// dead returns the only dead letter of a topic.
func (w *world) dead(topic string) (dead admin.Message) {
	w.Helper()
	testkit.Eventually(w.T, func() bool {
		page, err := w.server.Admin().List(ctx, topic, admin.Query{State: admin.Dead, Group: group})
		require.NoError(w, err)
		for _, dead = range page.Messages {
			return true
		}
		return false
	}, "a dead letter")
	return dead
}

func TestMovedDeadLettersKeepTheLink(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", func(msg *message.Message) error {
		redisdelay.DeadOnNack(msg, nil)
		return errOften
	})
	w.handle("second chance", succeed)
	w.publish("orders", order("a"))
	w.dead("orders")
	moved, err := w.server.Admin().MoveDead(ctx, "orders", admin.Bulk{Group: group, To: "second chance"})
	require.NoError(t, err)
	require.Equal(t, 1, moved)
	w.server.Advance(time.Millisecond)
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(w.span("process second chance")))
}

// A poison queue publishes the message with the context that it has. PoisonQueue may stand before
// the telemetry, where the span has ended, or behind it.
func TestThePoisonQueueKeepsTheLink(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "behind": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			poison, err := middleware.PoisonQueue(w.publisher, "poison")
			require.NoError(t, err)
			middlewares := []message.HandlerMiddleware{w.telemetry.Middleware, poison}
			if before {
				middlewares = []message.HandlerMiddleware{poison, w.telemetry.Middleware}
			}
			w.handle("orders", func(*message.Message) error { return errOften }, middlewares...)
			w.handle("poison", succeed)
			w.publish("orders", delayed(order("a"), time.Hour))
			w.server.Advance(time.Hour)

			publish, process := w.span("publish orders"), w.span("process orders")
			send, poisoned := w.span("publish poison"), w.span("process poison")
			require.Equal(t, trace.SpanKindClient, send.SpanKind, "the message does not carry the context of this span")
			require.Equal(t, id(process), send.Parent.SpanID())
			require.Equal(t, id(publish), send.Links[0].SpanContext.SpanID())
			require.Equal(t, map[string]trace.SpanID{"producer": id(publish)}, linked(poisoned))
			require.False(t, poisoned.Parent.IsValid(), "the context is from before the delay")
		})
	}
}

// A message that is published again at a redelivery has an old context too.
func TestAMessagePoisonedAtARetryStartsANewTrace(t *testing.T) {
	w := newWorld(t)
	poison, err := middleware.PoisonQueueWithFilter(w.publisher, "poison", func(err error) bool { return err.Error() == "second" })
	require.NoError(t, err)
	var calls atomic.Int32
	w.handle("orders", func(*message.Message) error {
		if calls.Add(1) == 1 {
			return errOften
		}
		return errors.New("second")
	}, w.telemetry.Middleware, poison)
	w.handle("poison", succeed)
	w.publish("orders", order("a"))
	w.server.AwaitRetrying(t, "orders", group, 1)
	w.server.Advance(time.Minute)
	poisoned := w.span("process poison")
	require.False(t, poisoned.Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(poisoned))
}

func TestTheForwarderKeepsTheLink(t *testing.T) {
	w := newWorld(t)
	f, err := forwarder.NewForwarder(w.subscriber(), w.newPublisher(), watermill.NopLogger{}, forwarder.Config{})
	require.NoError(t, err)
	testkit.StartRouter(t, f)
	w.handle("orders", succeed)
	outbox := w.traced(forwarder.NewPublisher(w.newPublisher(), forwarder.PublisherConfig{}))
	require.NoError(t, outbox.Publish("orders", delayed(order("a"), time.Hour)))
	w.server.AwaitScheduled(t, "orders", 1)
	w.server.Advance(time.Hour)
	process := w.span("process orders")
	require.False(t, process.Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"producer": id(w.span("publish orders"))}, linked(process))
}

// A relay publishes the message with its metadata. The consumer is that of another message queue.
func TestTheRelayKeepsTheLink(t *testing.T) {
	w := newWorld(t)
	broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	defer broker.Close()
	router := testkit.NewRouter(t)
	router.AddMiddleware(w.telemetry.Middleware)
	router.AddConsumerHandler("work", "orders", broker, succeed)
	testkit.StartRouter(t, router)
	sender, err := relay.NewPublisher(relay.PublisherConfig{Delayed: w.newPublisher(), Destination: broker})
	require.NoError(t, err)
	r, err := relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{Client: w.server.Client()}, Destination: w.traced(broker), Topics: []string{"orders"},
	}, nil)
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	ended := testkit.Begin(func() error { return r.Run(running) })
	defer func() { stop(); <-ended }()

	require.NoError(t, w.traced(sender).Publish("orders", delayed(order("a"), time.Hour)))
	w.server.Advance(time.Hour)
	process, sent := w.span("process orders"), w.spans("publish orders", 2)
	require.False(t, process.Parent.IsValid())
	require.Equal(t, map[string]trace.SpanID{"producer": id(sent[0])}, linked(process))
	require.Equal(t, id(sent[0]), sent[1].Links[0].SpanContext.SpanID(), "the relay's own span")
	require.Equal(t, "orders", values(process.Attributes)["messaging.destination.name"])
	require.NotContains(t, values(process.Attributes), "redisdelay.due_time")

	require.NoError(t, w.traced(sender).Publish("orders", order("b")))
	undelayed := w.spans("process orders", 2)[1]
	require.Equal(t, id(w.spans("publish orders", 3)[2]), undelayed.Parent.SpanID())
}

// A context that a message already has is the creation context, and no create span is made.
func TestAMessageKeepsTheContextThatItHas(t *testing.T) {
	w := newWorld(t)
	w.handle("orders", succeed)
	created, span := w.tracer.Start(ctx, "in the outbox")
	own := order("a")
	propagation.TraceContext{}.Inject(created, propagation.MapCarrier(own.Metadata))
	span.End()
	w.publish("orders", own, order("b"))
	publish, create, processed := w.span("publish orders"), w.span("create orders"), w.spans("process orders", 2)
	require.Equal(t, span.SpanContext().SpanID(), publish.Links[0].SpanContext.SpanID())
	require.Equal(t, id(create), publish.Links[1].SpanContext.SpanID())
	require.Equal(t, span.SpanContext().SpanID(), processed[0].Parent.SpanID())
	require.Equal(t, id(create), processed[1].Parent.SpanID())
}

// A span that is in the context of a subscription is not the parent, but linked.
func TestTheSpanOfASubscriptionIsLinked(t *testing.T) {
	w := newWorld(t)
	subscribed, span := w.tracer.Start(ctx, "subscription")
	messages, err := w.subscriber().Subscribe(subscribed, "orders")
	require.NoError(t, err)
	h := w.telemetry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		require.NotEqual(t, span.SpanContext(), trace.SpanContextFromContext(msg.Context()))
		return nil, nil
	})
	w.publish("orders", order("a"))
	msg := w.server.Receive(t, messages)
	_, err = h(msg)
	require.NoError(t, err)
	require.Equal(t, span.SpanContext(), trace.SpanContextFromContext(msg.Context()), "the context of the message is as it was")
	msg.Ack()
	publish, process := w.span("publish orders"), w.span("process orders")
	require.Equal(t, id(publish), process.Parent.SpanID())
	require.Equal(t, map[string]trace.SpanID{"producer": id(publish), "ambient": span.SpanContext().SpanID()}, linked(process))
}
