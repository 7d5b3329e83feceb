package otelredisdelay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	otelredisdelay "github.com/redisdelay/watermill-redisdelay/otel"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// A message waits for a week, its first delivery fails, and the second one succeeds. Each span
// names the spans that it is linked to.
func Example() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	defer server.Close()
	exporter := tracetest.NewInMemoryExporter() // in production: that of the OTLP
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: server.Client()}, nil)
	check(err)

	telemetry, err := otelredisdelay.New(otelredisdelay.Config{
		TracerProvider: tracers,
		Admin:          server.Admin(),
		Attributes:     []attribute.KeyValue{attribute.String("server.address", "redis.local")},
	})
	check(err)
	traced, err := telemetry.Publisher(publisher)
	check(err)

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(telemetry.Middleware) // before all others
	router.AddConsumerHandler("remind", "reminders", subscriber, func(msg *message.Message) error {
		if d, _ := redisdelay.DeliveryFromContext(msg.Context()); d.Number == 1 {
			return fmt.Errorf("no answer from the mail server")
		}
		return nil
	})
	go func() { check(router.Run(context.Background())) }()
	<-router.Running()

	ctx, request := tracers.Tracer("shop").Start(context.Background(), "POST /orders")
	reminder := message.NewMessageWithContext(ctx, "reminder-1", []byte("water the roses"))
	redisdelay.DelayFor(reminder, 7*24*time.Hour)
	check(traced.Publish("reminders", reminder))
	request.End()
	for spans := 2; spans < 4; spans++ { // POST and publish are there
		server.AdvanceToNext()
		for len(exporter.GetSpans()) == spans {
			server.AdvanceToNext()
			time.Sleep(time.Millisecond)
		}
	}
	check(router.Close())
	printTraces(exporter.GetSpans())

	// Output:
	// trace 1
	//   POST /orders
	//     publish reminders, redisdelay.delayed=true
	// trace 2
	//   process reminders, redisdelay.delivery.number=1, error.type=*errors.errorString
	//     <- producer: publish reminders
	// trace 3
	//   process reminders, redisdelay.delivery.number=2
	//     <- producer: publish reminders
	//     <- attempt: process reminders of delivery 1
}

// printTraces prints spans as trees, with their links.
func printTraces(spans tracetest.SpanStubs) {
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	depth := map[string]int{}
	name := map[string]string{}
	traces := map[string]bool{}
	for _, span := range spans {
		if trace := span.SpanContext.TraceID().String(); !traces[trace] {
			traces[trace] = true
			fmt.Println("trace", len(traces))
		}
		id := span.SpanContext.SpanID().String()
		depth[id] = depth[span.Parent.SpanID().String()] + 1
		line, number := span.Name, ""
		for _, a := range span.Attributes {
			switch a.Key {
			case otelredisdelay.DeliveryNumberAttribute:
				number = " of delivery " + a.Value.String()
				fallthrough
			case otelredisdelay.DelayedAttribute, "error.type":
				line += fmt.Sprintf(", %s=%s", a.Key, a.Value.String())
			}
		}
		name[id] = span.Name + number
		fmt.Println(strings.Repeat("  ", depth[id]) + line)
		for _, link := range span.Links {
			fmt.Printf("%s<- %s: %s\n", strings.Repeat("  ", depth[id]+1), link.Attributes[0].Value.String(), name[link.SpanContext.SpanID().String()])
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
