// Package redisdelay is a Watermill Pub/Sub on Redis with delayed messages. A [Publisher] stores
// each message in Redis, and a [Subscriber] delivers it when it is due. Any Watermill router,
// middleware or CQRS bus gets delays by setting one metadata key:
//
//	msg.Metadata.Set("delay", "15m") // or redisdelay.DelayFor(msg, 15*time.Minute)
//	err = publisher.Publish("unpaid-orders", msg)
//
// # States
//
// A topic has consumer groups, and each group gets every message. These are the states of a message
// in one group; the glossary at the end explains the terms:
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
// When the lease of a message expires, the message becomes a suspect, and the delivery does not
// count. After one expiry it comes back like any other. After two in a row it is held with at most
// half of MaxInFlight messages, after three with a quarter, and so on. Once it has to be held
// alone, each expiry counts. A nack ends the suspicion. So a message that crashes its process
// becomes a dead letter, and uses up no deliveries of the messages that were held with it.
//
// # Guarantees
//
//   - Durable once published. After Publish returned nil, the message stays in Redis until it is
//     acked, purged from the dead letters, or removed. Its expiry, its delay ID or an operator can
//     remove it. The configuration of the Redis server decides how durable that is.
//   - Never early, not by a millisecond, by the clock of the Redis server. Durations are rounded
//     up.
//   - On time. Events trigger deliveries, not polling. A slow poll covers lost wake-ups.
//   - At least once. A message is delivered again if its handler nacks, crashes, or runs longer
//     than LeaseDuration plus MaxExtension. It also is if its process cannot reach Redis for longer
//     than the lease. An ack or nack after the lease was lost changes nothing.
//   - Publish is all or nothing, and takes effect once. Redis recognises a call that the client
//     repeats after a lost reply.
//   - In order, with MaxInFlight 1 and one subscriber in the group: by due time, then as the
//     Publisher published. A message nacked without delay keeps its place; one with a delay has a
//     new due time.
//   - Every group gets every message that becomes due after the group was created. Messages that
//     become due in a topic without groups wait for the first group.
//
// # Which delay counts
//
// When a message is published, the first of these that is set:
//
//  1. [DelayKey] or [DelayUntilKey]; both together are an error.
//  2. Watermill's own metadata, as set by delay.Message of its components/delay.
//  3. The delay in the message's context, as set by delay.WithContext.
//
// A malformed value, a delay that is too long, a negative [DelayKey], or an instant before the year
// 2000 is an error that wraps [ErrInvalidDelay]. Nothing of the call is published then. Zero, a
// past instant, or a negative delay of Watermill's means now. Consumers do not see these keys, so a
// handler that publishes a message again does not delay it again.
//
// # Nack
//
// The first of these that is set says how long a nacked message waits:
//
//  1. The delay in its metadata, if the handler or a middleware set a key of 1 or 2 above.
//  2. Its own [BackoffKey].
//  3. SubscriberConfig.Backoff.
//
// A delay in its context is ignored. A value that cannot be read is logged, and the next one
// applies.
//
// The wait does not change the count: a nack with a delay uses up a delivery as any other does.
// [Postpone] is the exception. A message that was postponed waits for as long as the handler said,
// and its delivery does not count. The [PostponeOnError] middleware does that for handlers that
// return a [PostponeError].
//
// So Watermill's DelayOnError middleware works as a backoff that is stored in Redis. The next
// delivery has the last delay in its metadata, _watermill_delayed_for.
//
// A handler that publishes its own message again with a delay must set the delay on a copy.
// Otherwise, if the publish fails, the message itself waits that long for its retry.
//
// A message becomes a dead letter, with the reason, when its last delivery of
// SubscriberConfig.MaxDeliveries fails. So does one that the Unmarshaler refuses, or that is nacked
// after [DeadOnNack]. Dead letters are kept for SubscriberConfig.DeadRetention, and at most
// SubscriberConfig.MaxDead of a group, if that is set.
//
// The [KeepError] middleware stores the handler's error with the retry and the dead letter.
//
// # Names and expiry
//
// [DelayIDKey] names a message while it waits for its due time. Package admin can cancel or
// reschedule it by that name. Publishing another message under the same name replaces the first, is
// ignored, or is refused: see [DelayIDMode]. The name is free when the message is due, or when its
// window ([DelayIDWindowKey]) is over.
//
// [ExpiresAtKey] and [MaxLatenessKey] say when a message expires, and [OnExpiry] what happens then.
// Consumers see none of these keys, so a message that a handler publishes again has no name and no
// expiry. The name is in [Delivery].
//
// Package admin lists, cancels, reschedules, requeues, pauses, removes, checks and repairs. Package
// redisdelaytest is a Redis server for tests, with a clock that the test moves.
//
// # Redis Streams
//
// With a [StreamConfig], messages go into Redis Streams when they are due, in one atomic step, for
// subscribers of watermill-redisstream. Package relay adds delays to any other message queue.
//
// # Contexts and Close
//
// A message's context has the values of the context given to Subscribe, and the [Delivery], but not
// that context's cancellation. It ends when the message is settled, when the lease is lost
// (context.Cause is [ErrLeaseLost]), or at the end of CloseTimeout ([ErrClosed]).
//
// When the subscriber is closed, or the context given to Subscribe ends, it delivers no more
// messages. Claimed messages that were not delivered go back at once, in order, and do not count as
// delivered. Handlers under way have CloseTimeout to settle; the output channel stays open until
// then. After that their contexts end, and their messages are delivered again when the leases
// expire. Close then returns [ErrGivenUp] with the number of these messages, and the log names
// each.
//
// Publish refuses a message whose context has ended. If the context of the first message of a call
// ends while the call waits for earlier calls, the call is withdrawn. A call that was sent is not
// interrupted. The context of a delivered message is ignored, so that a handler may publish while
// its subscriber closes. So is every context derived from it, even with a deadline: only the
// client's timeouts limit such a publish.
//
// The Redis client belongs to the caller. No Close of this package closes it.
//
// # Glossary
//
//   - address: where a wake-up is sent, a mailbox and one receiver in it, such as a subscription.
//   - batch: the messages of one Publish call, which are stored together or not at all.
//   - claim: a step in which a subscription takes ready messages and gets a lease on each.
//   - consumer group: a name under which subscriptions share the messages of a topic.
//   - dead letter: a message that is no longer delivered, kept with the reason.
//   - delivery: one hand-over of a message to a consumer, which settles it by an ack or a nack.
//   - event: the next instant at which a topic needs a promotion.
//   - holder: the scheduler that does the work of a topic at present.
//   - lane: one of the two sequences of a subscription's claims, so that two claims can overlap.
//   - lease: the time for which a subscription owns a message; extended while the handler runs.
//   - line: the queue in which concurrent calls of Publish for one topic wait and join.
//   - mailbox: the Redis Pub/Sub channel on which a process receives wake-ups.
//   - pending: the state of a message that waits for its due time, in all groups.
//   - poll: a call without a wake-up, made at a slow interval in case a wake-up was lost.
//   - promote: to move due messages to ready, which a scheduler does.
//   - ready: the state of a message that is due and waits to be claimed.
//   - resting: a subscription that may not claim now: the group is paused, or it holds too
//     many messages for a suspect that is next.
//   - retry: the state of a message that was nacked with a delay.
//   - scheduler: what promotes the due messages of topics; each Subscriber runs one.
//   - standby: the scheduler that takes over if the holder stops.
//   - suspect: a message whose last lease expired, so that it may have crashed its process.
//   - unack: the state of a message that a subscription holds under a lease.
//   - waiter: a subscription that has room for messages and waits for a wake-up.
//   - wake-up: a message to an address: messages are ready, or an event will happen then.
package redisdelay
