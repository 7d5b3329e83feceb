// Package redisdelay is a Watermill Pub/Sub on Redis with delayed messages:
//
//	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, logger)
//	...
//	msg := message.NewMessage(watermill.NewUUID(), []byte("order 123"))
//	redisdelay.DelayFor(msg, 15*time.Minute)
//	err = publisher.Publish("unpaid-orders", msg)
//
//	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, logger)
//	...
//	router.AddConsumerHandler("cancel", "unpaid-orders", subscriber, cancelOrder)
//
// A [Publisher] stores each message in Redis, and a [Subscriber] delivers it when it is due. So
// routers, middleware and CQRS buses of Watermill get delays by a metadata key, [DelayKey] or
// [DelayUntilKey]. The delays of Watermill's own components/delay work too.
//
// # Guarantees
//
//   - Durable once published. Redis keeps the message until it is acked, expires, or is removed.
//   - Never early, not by a millisecond, by the clock of the Redis server.
//   - On time: events trigger deliveries, not polling.
//   - At least once. A message comes again if its handler nacks it, crashes, or loses its lease.
//   - Publish is all or nothing, and takes effect once.
//   - In order, with MaxInFlight 1 and one subscriber in the group, or one active of many.
//   - Every group gets every message that becomes due after the group was created. Groups that are
//     created within ten seconds of the topic's first one get what that one got.
//
// # What to look for
//
//   - Names, to replace or cancel a message that waits: [SetDelayID], and ByDelayID of package
//     admin.
//   - Retries: [SubscriberConfig].Backoff, [SetBackoff], a delay on a message that is nacked, and
//     [Postpone], which uses up no delivery.
//   - Dead letters: [SubscriberConfig].MaxDeliveries, [DeadOnNack], [KeepError], and package admin.
//   - Expiry: [ExpireAt], [ExpireAfter].
//   - What a handler can know: [DeliveryFromContext]. When its context ends: [Subscriber.Subscribe].
//   - Shutdown: [Subscriber.Close].
//   - Redis Streams: [StreamConfig]. Other message queues: package relay.
//   - So many messages a second, or at once, over all processes: [SubscriberConfig].Limit and AtOnce.
//     So many with one key: [KeyLimit].
//   - Order over many processes: [SubscriberConfig].SingleActive. A whole Cluster for one topic:
//     package partition.
//   - Recurring messages: package periodic. Tests without waiting: package redisdelaytest.
//
// The Redis client belongs to the caller. No Close of this package closes it.
//
// The repository's docs/tutorial.md builds a service step by step. Its docs/reliability.md has the
// guarantees in full, and docs/semantics.md the states of a message and a glossary.
package redisdelay
