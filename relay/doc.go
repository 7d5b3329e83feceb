// Package relay adds delays to any message queue that Watermill can publish to. Messages wait in
// Redis until they are due, and are then published to that queue, the destination.
//
//	               +-- no delay ---------------------------------> destination
//	relay.Publisher|                                                  ^
//	               +-- delay --> Redis --- due ---> relay.Relay ------+
//
// A [Publisher] replaces the destination's own Publisher. It publishes messages without delay
// directly, and puts messages with a delay into Redis. A [Relay] publishes due messages to the
// destination. It runs in the same program or another, in any number of processes. Consumers do not
// change.
//
// # Guarantees
//
//   - Durable: a message stays in Redis until the destination's Publish has returned nil.
//   - Never early, by the clock of the Redis server.
//   - At least once. A message is published again in three cases. The destination took it, but the
//     process crashed or lost its lease before Redis was told. The destination took it and still
//     returned an error. Or it shared a Publish call with a message that was refused. It then has
//     the same UUID and the same ID in its metadata, [IDKey], by which a consumer recognises a
//     duplicate.
//   - An outage of the destination loses nothing. Messages wait in Redis, longer after each
//     failure, without a limit.
//   - A message whose error is permanent (Config.Permanent) is dead-lettered in Redis, with the
//     error.
//   - In order, if configured: see Config.Ordered.
package relay

import "github.com/ThreeDotsLabs/watermill/message"

// IDKey is the metadata key for the ID that a relayed message had in Redis, a ULID. It is unique,
// and the same each time the message is published. Messages without delay do not have it.
const IDKey = "redisdelay_id"

// TopicFunc returns the destination's topic for a message that was published to topic. It must not
// change the message, and must be safe for concurrent use.
type TopicFunc func(topic string, msg *message.Message) string

// sameTopic is the default TopicFunc.
func sameTopic(topic string, _ *message.Message) string { return topic }
