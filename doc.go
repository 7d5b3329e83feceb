// Package redisdelay is a Watermill Pub/Sub on Redis whose messages can be delayed: a [Publisher]
// keeps each message in Redis until it is due, and a [Subscriber] emits it then. Any Watermill router,
// middleware or CQRS bus gets delays by setting one metadata key:
//
//	msg.Metadata.Set("delay", "15m") // or redisdelay.DelayFor(msg, 15*time.Minute)
//	err = publisher.Publish("unpaid-orders", msg)
//
// # Words
//
// A topic has consumer groups; a message goes to each of them. It is due at its due time, by the
// clock of the Redis server. A delivery is one hand-over of it to a consumer; the consumer settles it
// by an ack or a nack. Until then the subscriber holds a lease on it, which is extended while the
// handler runs. These are the states of a message in one group:
//
//	publish, delayed ----> pending
//	                          | due
//	                          v        claim            ack
//	publish, due now -----> ready --------------> unack -----> gone
//	                        ^   ^                 | | |
//	                        |   |    at the front | | |
//	                        |   +-----------------+ | |
//	                        |     nack, no delay    | |
//	                        |     lease expired     | |
//	                        |     not handed out    | |
//	                        |                       | |
//	                        +--due--- retry <-------+ |
//	                                    nack, delay   |
//	                                                  +--> dead ---> gone
//	                                  no deliveries left   retention
//
// A lease that expires for the first time marks the message as a suspect: the delivery does not count,
// and the message is claimed alone from then on, until it is nacked. So a message that kills its
// process does not use up the deliveries of those that were held with it. From the second time on
// each expired lease counts.
//
// # Guarantees
//
//   - Durable once published: after Publish returned nil, the message is in Redis until it is acked, purged
//     from the dead letters, or taken back: by its own expiry, its delay ID, or an operator. How durable
//     that is, is a matter of the server's configuration.
//   - Never early, not by a millisecond, by the clock of the Redis server. Durations are rounded up.
//   - On time: delivery is driven by events, not by polling. A slow poll is there for lost wake-ups.
//   - At least once. The message comes again if its handler nacks or dies, if its process has no touch with Redis for
//     longer than the lease, or if the handler runs for longer than LeaseDuration and MaxExtension. An ack or nack that
//     comes after the lease was lost changes nothing.
//   - Publish is all or nothing, and once: what the client sends again after a lost reply is known as a
//     repeat.
//   - In order where asked: with MaxInFlight 1 and one subscriber in the group, messages come by due
//     time, those with the same due time as their Publisher published them. A nacked message without
//     delay keeps its place; one with a delay has a new due time.
//   - Every group gets every message that becomes due after the group exists. Messages that become due
//     while a topic has no group at all wait for the first one.
//
// # Which delay counts
//
// When a message is published, the first of these that is there:
//
//  1. [DelayKey] or [DelayUntilKey]; both together are an error.
//  2. Watermill's own metadata, as set by delay.Message of its components/delay.
//  3. The delay in the message's context, as set by delay.WithContext.
//
// A malformed or overlong value, or a negative [DelayKey], is an error that wraps [ErrInvalidDelay], and
// nothing of the call is published. Zero, an instant that is past, or a negative delay of Watermill's, means
// now. Consumers do not see these keys, so a handler that publishes a message again does not delay it again.
//
// # Nack
//
// A nacked message waits as long as its metadata says, if the handler or a middleware set one of the
// keys of 1 or 2; a delay in its context does not count. Else its own [BackoffKey] says it, else
// SubscriberConfig.Backoff. A value that cannot be read is logged, and a backoff decides.
//
// Watermill's DelayOnError middleware thereby becomes a backoff that is kept in Redis: the delay that it
// reached, _watermill_delayed_for, is given back with the next delivery.
//
// A handler that publishes its own message again with a delay sets that on a copy. If the publish fails, the
// message itself would wait that long for its retry.
//
// When a delivery fails and was the last of SubscriberConfig.MaxDeliveries, the message becomes a dead
// letter with the reason. So does one that the Unmarshaler refuses, at once, and one that is nacked after
// [DeadOnNack]. Dead letters are kept for SubscriberConfig.DeadRetention.
//
// The [KeepError] middleware has the error of the handler kept with the retry and the dead letter.
//
// # Names and expiry
//
// [DelayIDKey] names a message while it waits for its due time, so that it can be cancelled or rescheduled
// (package admin), and so that publishing again under the same name replaces it, is left out, or is refused:
// see [DelayIDMode]. The name is free as soon as the message is due, or its window is over
// ([DelayIDWindowKey]). [ExpiresAtKey] and [MaxLatenessKey] say from when on it is too late for a message, and
// [OnExpiry] what happens then. Consumers see none of these keys, so that a message which is published again
// is not treated as the one that it was; the name is in [Delivery].
//
// Package admin lists, cancels, reschedules, requeues, pauses, removes, checks and repairs. Package
// redisdelaytest is a server for tests whose clock the test moves.
//
// # Redis Streams
//
// A Publisher with a [StreamConfig] puts messages into Redis Streams when they are due, in one atomic step, for
// subscribers of watermill-redisstream. Package relay gives delays to any other message queue.
//
// # Contexts and Close
//
// A message's context carries the values of the context given to Subscribe, and the [Delivery], but not
// that context's cancellation. It ends when the message is settled, when the lease is lost
// (context.Cause is [ErrLeaseLost]), or when CloseTimeout runs out ([ErrClosed]).
//
// When the subscriber is closed, or the context given to Subscribe ends, nothing more is handed out.
// What was claimed and not handed out goes back at once, in order, and does not count as delivered.
// Handlers under way have CloseTimeout to settle; the output channel stays open for as long. After that
// their contexts end, and their messages are delivered again once the leases run out.
//
// Publish refuses a message whose context has ended, and takes a call back when the context of its
// first message ends while it still waits for calls before it; what is on its way is not interrupted.
// The context of a delivered message does not count, so a handler may publish while its subscriber
// closes. Nor does any context that is derived from it, with a deadline of its own or without: a publish with
// such a context is limited by the client's timeouts alone.
//
// The Redis client stays the caller's: no Close of this package closes it.
package redisdelay
