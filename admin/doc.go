// Package admin is for programs and people who look after topics of watermill-redisdelay: it lists what
// waits, takes it back or gives it another due time, deals with dead letters, pauses topics, and finds and
// mends what is wrong in Redis.
//
// An [Admin] needs no running Publisher or Subscriber, and changes nothing that they rely on: each
// operation is one atomic step of the server, or, where it is about many messages, a sequence of such steps
// of about a millisecond each. How many messages a topic has makes no difference to how long a step takes.
//
// A message is named by its own ID (Delivery.ID, [Message.ID]), or by the delay ID that its publisher gave
// it (redisdelay.DelayIDKey), for as long as that is taken: see [ByID] and [ByDelayID].
//
// An operation whose Redis user may not run a command that it takes returns [ErrForbidden], and has changed nothing.
//
// The client sends an operation again whose answer was lost, and it is done once. After a minute, as where the process
// stood still, it is not sent again: the error is context.DeadlineExceeded then, though the caller's context has not ended,
// and the operation was done or was not. That is not as with redisdelay.Publisher, of which this error says that nothing was
// published.
//
// All instants are by the clock of the Redis server.
package admin
