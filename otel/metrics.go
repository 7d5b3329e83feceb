package otelredisdelay

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/semconv/v1.38.0/messagingconv"
)

// metrics are the instruments.
type metrics struct {
	callDuration    messagingconv.ClientOperationDuration
	sent            messagingconv.ClientSentMessages
	processDuration messagingconv.ProcessDuration
	consumed        messagingconv.ClientConsumedMessages
}

// bounds are the buckets that the conventions give for both durations, in seconds.
var bounds = metric.WithExplicitBucketBoundaries(
	0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

func newMetrics(meter metric.Meter) (m metrics, err error) {
	var errs [4]error
	m.callDuration, errs[0] = messagingconv.NewClientOperationDuration(meter, bounds)
	m.sent, errs[1] = messagingconv.NewClientSentMessages(meter)
	m.processDuration, errs[2] = messagingconv.NewProcessDuration(meter, bounds)
	m.consumed, errs[3] = messagingconv.NewClientConsumedMessages(meter)
	return m, errors.Join(errs[:]...)
}

// measured are the attributes of measurements, as options that are made once.
type measured struct {
	attributes []attribute.KeyValue
	record     []metric.RecordOption
	add        []metric.AddOption
}

func newMeasured(attributes []attribute.KeyValue) measured {
	set := metric.WithAttributeSet(attribute.NewSet(attributes...))
	return measured{attributes, []metric.RecordOption{set}, []metric.AddOption{set}}
}

// failed returns the attributes of measurements of what ended with an error, or else m.
func (m measured) failed(err error) measured {
	if err == nil {
		return m
	}
	return newMeasured(append(m.attributes[:len(m.attributes):len(m.attributes)], errorType(err)))
}

// published measures a call of Publish.
func (m *metrics) published(ctx context.Context, to *target, messages int, took time.Duration, err error) {
	m.callDuration.Inst().Record(ctx, took.Seconds(), to.calls.failed(err).record...)
	m.sent.Inst().Add(ctx, int64(messages), to.messages.failed(err).add...)
}

// processed measures a call of the handler.
func (m *metrics) processed(ctx context.Context, from *source, took time.Duration, err error) {
	with := from.measured.failed(err)
	m.processDuration.Inst().Record(ctx, took.Seconds(), with.record...)
	m.consumed.Inst().Add(ctx, 1, with.add...)
}
