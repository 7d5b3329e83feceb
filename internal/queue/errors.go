package queue

import "errors"

var (
	// ErrLayout means that the topic was written by an incompatible version.
	ErrLayout = errors.New("topic has another layout version")
	// ErrUnregistered means that the consumer group does not exist, or no longer.
	ErrUnregistered = errors.New("consumer group is not registered")
	// errStale means that the set of groups has changed since it was read.
	errStale = errors.New("set of consumer groups has changed")
)
