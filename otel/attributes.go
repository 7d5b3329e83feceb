package otelredisdelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.38.0"
	"go.opentelemetry.io/otel/trace"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// Attributes of this library.
const (
	// DelayedAttribute tells, on a create or send span of one message, that it has a delay.
	DelayedAttribute = attribute.Key("redisdelay.delayed")
	// MessageIDAttribute is the message's ID in Redis: Delivery.ID.
	MessageIDAttribute = attribute.Key("redisdelay.message.id")
	// GroupAttribute is the consumer group, as messaging.consumer.group.name is.
	GroupAttribute = attribute.Key("redisdelay.group")
	// DueTimeAttribute is when the message was due, by the clock of the Redis server: RFC 3339.
	DueTimeAttribute = attribute.Key("redisdelay.due_time")
	// LatenessAttribute is how long after that the handler began, in seconds. It compares the clock
	// of the Redis server with that of the process, and so may be negative.
	LatenessAttribute = attribute.Key("redisdelay.lateness")
	// DeliveryNumberAttribute is Delivery.Number.
	DeliveryNumberAttribute = attribute.Key("redisdelay.delivery.number")
	// RedeliveredAttribute is Delivery.Redelivered.
	RedeliveredAttribute = attribute.Key("redisdelay.redelivered")
	// PostponedAttribute is for how many seconds the handler postponed the message.
	PostponedAttribute = attribute.Key("redisdelay.postponed")
	// LinkAttribute says what a link of a process span leads to: "producer", "attempt" for the
	// attempt before, or "ambient" for the span in the message's context.
	LinkAttribute = attribute.Key("redisdelay.link")
)

// The names of operations, messaging.operation.name.
const (
	createName  = "create"
	publishName = "publish"
	processName = "process"
)

// target has what does not change between the calls of Publish to a topic.
type target struct {
	createName, publishName string
	create, produce, send   []trace.SpanStartOption // produce has kind PRODUCER, send CLIENT
	calls                   measured                // for messaging.client.operation.duration
	messages                measured                // for messaging.client.sent.messages
}

func (t *Telemetry) target(topic string) *target {
	if found, ok := t.targets.Load(topic); ok {
		return found.(*target)
	}
	common := t.attributes(topic)
	create := append(slices.Clip(common), semconv.MessagingOperationName(createName), semconv.MessagingOperationTypeCreate)
	messages := append(slices.Clip(common), semconv.MessagingOperationName(publishName))
	calls := append(slices.Clip(messages), semconv.MessagingOperationTypeSend)
	made, _ := t.targets.LoadOrStore(topic, &target{
		createName:  spanName(createName, topic),
		publishName: spanName(publishName, topic),
		create:      startOptions(trace.SpanKindProducer, create),
		produce:     startOptions(trace.SpanKindProducer, calls),
		send:        startOptions(trace.SpanKindClient, calls),
		calls:       newMeasured(calls),
		messages:    newMeasured(messages),
	})
	return made.(*target)
}

// source has what does not change between the messages of a topic and group.
type source struct {
	name     string
	start    []trace.SpanStartOption
	measured measured
}

type sourceKey struct{ topic, group string }

func (t *Telemetry) source(topic, group string) *source {
	key := sourceKey{topic, group}
	if found, ok := t.sources.Load(key); ok {
		return found.(*source)
	}
	common := append(t.attributes(topic), semconv.MessagingOperationName(processName))
	span, series := append(slices.Clip(common), semconv.MessagingOperationTypeProcess), slices.Clip(common)
	if group != "" {
		name := valid(group)
		span = append(span, semconv.MessagingConsumerGroupName(name), GroupAttribute.String(name))
		series = append(series, semconv.MessagingConsumerGroupName(family(name)))
	}
	made, _ := t.sources.LoadOrStore(key, &source{
		name:     spanName(processName, topic),
		start:    startOptions(trace.SpanKindConsumer, span),
		measured: newMeasured(series),
	})
	return made.(*source)
}

// family is the group's name in metrics. The groups of Broadcast subscriptions have random names,
// and would each begin new time series.
func family(group string) string {
	if strings.HasPrefix(group, "broadcast:") {
		return "broadcast"
	}
	return group
}

// attributes returns what all spans and measurements of a topic have.
func (t *Telemetry) attributes(topic string) []attribute.KeyValue {
	common := append(slices.Clone(t.config.Attributes), semconv.MessagingSystemKey.String(t.config.System))
	if topic != "" {
		common = append(common, semconv.MessagingDestinationName(valid(topic)))
	}
	return common
}

func spanName(operation, topic string) string {
	return strings.TrimSuffix(operation+" "+valid(topic), " ")
}

// valid returns a text in UTF-8, because OTLP refuses a batch with any other text. A byte that is
// not UTF-8 becomes the replacement character and its number. So do the three bytes of a
// replacement character, so that different texts stay different.
func valid(text string) string {
	if utf8.ValidString(text) && !strings.ContainsRune(text, utf8.RuneError) {
		return text
	}
	var b strings.Builder
	for at, size := 0, 0; at < len(text); at += size {
		r, n := utf8.DecodeRuneInString(text[at:])
		if size = n; r != utf8.RuneError {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(text[at : at+n]) {
			fmt.Fprintf(&b, "%c%02x", utf8.RuneError, c)
		}
	}
	return b.String()
}

func startOptions(kind trace.SpanKind, attributes []attribute.KeyValue) []trace.SpanStartOption {
	return []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(attributes...)}
}

// describe adds the attributes of one message.
func describe(span trace.Span, msg *message.Message) {
	if msg.UUID != "" {
		span.SetAttributes(semconv.MessagingMessageID(valid(msg.UUID)))
	}
	if id := msg.Metadata[middleware.CorrelationIDMetadataKey]; id != "" {
		span.SetAttributes(semconv.MessagingMessageConversationID(valid(id)))
	}
}

// known are the errors whose type in error.type is their name.
var known = []struct {
	err  error
	name string
}{
	{errPanicked, "panic"},
	{context.Canceled, "context.Canceled"},
	{context.DeadlineExceeded, "context.DeadlineExceeded"},
	{redisdelay.ErrClosed, "redisdelay.ErrClosed"},
	{redisdelay.ErrInvalidTopic, "redisdelay.ErrInvalidTopic"},
	{redisdelay.ErrInvalidDelay, "redisdelay.ErrInvalidDelay"},
	{redisdelay.ErrInvalidMetadata, "redisdelay.ErrInvalidMetadata"},
	{redisdelay.ErrNilMessage, "redisdelay.ErrNilMessage"},
	{redisdelay.ErrMessageTooLarge, "redisdelay.ErrMessageTooLarge"},
	{redisdelay.ErrPublishTooLarge, "redisdelay.ErrPublishTooLarge"},
	{redisdelay.ErrExists, "redisdelay.ErrExists"},
	{redisdelay.ErrTopicFull, "redisdelay.ErrTopicFull"},
	{redisdelay.ErrServerFull, "redisdelay.ErrServerFull"},
	{redisdelay.ErrTopicMode, "redisdelay.ErrTopicMode"},
	{redisdelay.ErrNotReplicated, "redisdelay.ErrNotReplicated"},
	{redisdelay.ErrLayout, "redisdelay.ErrLayout"},
	{redisdelay.ErrForbidden, "redisdelay.ErrForbidden"},
	{redisdelay.ErrMaybePublished, "redisdelay.ErrMaybePublished"},
}

// errorType is error.type: the name of a known error, else the type of the innermost error, or what
// the method ErrorType of an error says.
func errorType(err error) attribute.KeyValue {
	for _, k := range known {
		if errors.Is(err, k.err) {
			return semconv.ErrorTypeKey.String(k.name)
		}
	}
	for {
		if _, says := err.(interface{ ErrorType() string }); says {
			break
		}
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	return semconv.ErrorType(err)
}
