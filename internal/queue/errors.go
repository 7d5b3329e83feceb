package queue

import (
	"errors"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

var (
	// ErrClosed means that a Publisher or Subscriber was closed.
	ErrClosed = errors.New("closed")
	// ErrLayout means that the topic was written by an incompatible version.
	ErrLayout = servers.Answer("topic has another layout version")
	// ErrTopicMode means that the topic has a stream where it should have none, or none where it
	// should have one.
	ErrTopicMode = servers.Answer("topic is of another mode")
	// ErrGroupMode means that the consumer group has the other setting of SingleActive.
	ErrGroupMode = errors.New("consumer group has another setting of SingleActive")
	// ErrUnregistered means that the consumer group does not exist, or no longer.
	ErrUnregistered = errors.New("consumer group is not registered")
	// ErrNotFound means that there is no such topic, group or message.
	ErrNotFound = errors.New("not found")
	// ErrExists means that another message has the delay ID, or another schedule the name.
	ErrExists = errors.New("name is taken")
	// ErrAlreadyRun means that a Run that may be called once was called again.
	ErrAlreadyRun = errors.New("already run")
	// ErrReserved means that a delay id is for an occurrence of a recurring schedule.
	ErrReserved = errors.New("delay id is for an occurrence of a recurring schedule")
	// ErrPastExpiry means that a message would be due when it is too late for it.
	ErrPastExpiry = errors.New("due at or after expires_at")
	// ErrTopicFull means that no further message may wait.
	ErrTopicFull = errors.New("topic is full")
	// ErrMaybePublished means that a call was sent, and it is not known whether Redis has carried
	// it out.
	ErrMaybePublished = errors.New("it is not known whether the messages were published")

	// ErrNotReplicated means that too few replicas confirmed the published messages.
	ErrNotReplicated = errors.New("not replicated")
	// ErrStale means that the set of groups has changed since it was read.
	ErrStale = errors.New("set of consumer groups has changed")
)
