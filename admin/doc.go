// Package admin is for operators of watermill-redisdelay and their programs. It lists waiting
// messages, cancels or reschedules them, handles dead letters, pauses topics, and finds and mends
// faults in Redis.
//
// An [Admin] needs no running Publisher or Subscriber, and is safe while they run. An operation is
// one atomic step on the server. An operation on many messages is a sequence of such steps, of
// about a millisecond each. The time of a step does not depend on the number of messages in the
// topic.
//
// A message is named by its ID (Delivery.ID, [Message.ID]) with [ByID]. While its publisher's delay
// ID (redisdelay.DelayIDKey) is taken, [ByDelayID] names it too.
//
// Topic is a topic, or a partitioned topic as a whole, unless a method says otherwise. Group "" is
// redisdelay.DefaultConsumerGroup, but removing a group takes its name. Only [Scope] has a value
// for no group.
//
// [Operations] has the operations on many messages as a table, for programs that offer them.
//
// # Errors
//
// The errors of all methods wrap [ErrNotFound] for a topic, group, message or schedule that does
// not exist, [ErrInvalidTopic], [ErrForbidden], [ErrLayout], or [ErrServerFull] where something is
// written. That about a message wraps [ErrNoMessage], too. Or they come from ctx or Redis. A method
// names only its further errors. After [ErrForbidden] nothing has changed.
//
// If an answer is lost, the client sends the operation again, and it still takes effect once only.
// After a minute it is not sent again, for example because the process was suspended. The error is
// then context.DeadlineExceeded, even if the caller's context has not ended, and the operation may
// have taken effect. With redisdelay.Publisher, in contrast, this error means that nothing was
// published.
//
// All instants are by the clock of the Redis server.
package admin
