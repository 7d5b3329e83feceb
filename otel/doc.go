// Package otelredisdelay adds OpenTelemetry traces and metrics to programs that publish and handle
// messages of watermill-redisdelay. It follows the semantic conventions for messaging, version
// 1.38.
//
//	telemetry, err := otelredisdelay.New(otelredisdelay.Config{})
//	publisher, err := telemetry.Publisher(redisdelayPublisher)
//	router.AddMiddleware(telemetry.Middleware) // before all others
//
// # Spans
//
//   - "create <topic>", PRODUCER: one message of a call of Publish with several.
//   - "publish <topic>", a send span: one call of Publish. It is PRODUCER if a message carries its
//     context, else CLIENT.
//   - "process <topic>", CONSUMER: one call of the handler.
//
// Publish puts the context of the create span into the metadata of each message, on a copy. A
// message without a create span gets the context of the send span. A message that already has a
// context keeps it. So a message that a poison queue, a forwarder or a relay publishes again stays
// linked to its first producer.
//
// # Links
//
// The process span always has a link to the creation context. By default, a message without delay
// continues the producer's trace at its first delivery. A message that was delayed, or that may
// have been delivered before, starts a new trace. [Continue] chooses otherwise.
//
// At a retry, the process span also has a link to the attempt before. Three cases differ:
//
//   - A middleware calls the handler again, such as Watermill's Retry, which was added before this
//     one. The context is in the memory of the process.
//   - The message was nacked. With Config.Admin, Redis keeps the context of the attempt with the
//     retry, and the next delivery reads it, in any process. Without it, there is no such link.
//   - The lease expired, or the process ended. That attempt told Redis nothing, so the link leads
//     to the last attempt that was nacked, or there is none.
//
// An operator's requeue or MoveDead begins a new record in Redis. So the next attempt has a link to
// the producer only. The reason of a dead letter still names the trace of its last attempt.
//
// # Metrics
//
// messaging.client.operation.duration and messaging.client.sent.messages count calls of Publish.
// messaging.process.duration and messaging.client.consumed.messages count calls of the handler.
package otelredisdelay
