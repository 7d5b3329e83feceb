// Package relay gives delays to any message queue that Watermill can publish to. Messages wait in Redis, and go
// to the queue, the destination, when they are due.
//
//	               +-- no delay ---------------------------------> destination
//	relay.Publisher|                                                  ^
//	               +-- delay --> Redis --- due ---> relay.Relay ------+
//
// A [Publisher] takes the place of the destination's own: messages without delay pass straight through, those
// with one go into Redis. A [Relay] runs beside it, in the same program or another, in as many processes as
// wanted, and publishes to the destination what is due. Consumers stay what they are.
//
// # Guarantees
//
//   - Durable: a message stays in Redis until the destination's Publish has returned nil.
//   - Never early, by the clock of the Redis server.
//   - At least once. A message goes out a second time if its process dies, or loses touch with Redis for longer
//     than its lease, after the destination took the message and before Redis was told; if the destination took it
//     and returned an error all the same; or if it was in one Publish call with others of which one was refused.
//     It has the same UUID then, and the same ID in its metadata, under [IDKey]: by that a consumer knows it again.
//   - A destination that is down loses nothing: messages wait in Redis, longer each time, without a limit.
//   - What the destination refuses for good, as Config.Permanent says, is dead-lettered in Redis, with the error.
//   - In order, where asked: see Config.Ordered.
package relay

import "github.com/ThreeDotsLabs/watermill/message"

// IDKey is the metadata key under which a relayed message has its ID in Redis, a ULID: unique, and the same
// however often it goes out. Messages without delay, which pass straight through, do not have it.
const IDKey = "redisdelay_id"

// A TopicFunc names the destination's topic of a message that was published to topic. The message is not to be
// changed. It must be safe for concurrent use.
type TopicFunc func(topic string, msg *message.Message) string

// sameTopic is the TopicFunc that is used unless there is another.
func sameTopic(topic string, _ *message.Message) string { return topic }
