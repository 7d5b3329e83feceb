package admin

import (
	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

var (
	// ErrNotFound is wrapped where there is no such topic, group or message. A delay ID that is free names
	// no message.
	ErrNotFound = queue.ErrNotFound

	// ErrTooLate is wrapped where a message is there and does not wait any more: it is ready, in a
	// consumer's hands, or dead.
	ErrTooLate = operate.ErrTooLate

	// ErrExists is wrapped where another message has the delay ID by now.
	ErrExists = queue.ErrExists

	// ErrLayout is wrapped where the topic was written to Redis in another, incompatible form.
	ErrLayout = queue.ErrLayout

	// ErrChanging is wrapped by Check and Repair where groups come and go too fast for a look at all of the topic.
	// Another call may find a quieter time.
	ErrChanging = operate.ErrChanging

	// ErrTopicMode is wrapped where something cannot be done because the topic has a Redis Stream: see
	// redisdelay.StreamConfig.
	ErrTopicMode = queue.ErrTopicMode

	// ErrForbidden is wrapped where the Redis user may not run a command that the operation takes, or use a key or a
	// channel; the error names all the commands that it lacks, and what keys and channels it has to be allowed. It is found
	// before anything of a topic is changed.
	ErrForbidden = queue.ErrForbidden

	// ErrInvalidTopic is wrapped where a topic is empty or too long.
	ErrInvalidTopic = redisdelay.ErrInvalidTopic

	// ErrInvalidConfig is wrapped by New; the error names every field that cannot be used.
	ErrInvalidConfig = redisdelay.ErrInvalidConfig

	// ErrInvalidArgument is wrapped where another argument cannot be used; the error says which.
	ErrInvalidArgument = operate.ErrInvalid
)
