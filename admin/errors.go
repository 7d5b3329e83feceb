package admin

import (
	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

var (
	// ErrNotFound means that the topic, group or message does not exist. A delay ID that is free
	// names no message.
	ErrNotFound = queue.ErrNotFound
	// ErrNoMessage means that the topic or group exists and does not have the message. It ended, or
	// never was there. It wraps ErrNotFound.
	ErrNoMessage = operate.ErrNoMessage
	// ErrTooLate means that some group has the message and does not wait for it. The error names
	// the state in each group. Of a delay ID whose window lasts, the message may also be gone.
	ErrTooLate = operate.ErrTooLate
	// ErrExists means that another message has the delay ID now. It is redisdelay.ErrExists.
	ErrExists = queue.ErrExists
	// ErrPastExpiry means that Reschedule would have the message due at or after its expires_at.
	ErrPastExpiry = redisdelay.ErrPastExpiry
	// ErrLayout means that the topic was written to Redis in another, incompatible layout.
	ErrLayout = queue.ErrLayout
	// ErrChanging means that groups were created and removed too fast for Check or Repair to
	// complete. Another call may succeed.
	ErrChanging = operate.ErrChanging
	// ErrTopicMode means that the operation is impossible because the topic has a Redis Stream.
	ErrTopicMode = queue.ErrTopicMode
	// ErrForbidden means that the Redis user may not use a command, key or channel that the
	// operation needs, or that rename-command hides the command. The error names what is needed.
	ErrForbidden = refusal.ErrForbidden
	// ErrServerFull means that the Redis server is at its maxmemory and refuses the operation.
	ErrServerFull = refusal.ErrServerFull
	// ErrInvalidTopic means that a topic name is empty or too long.
	ErrInvalidTopic = redisdelay.ErrInvalidTopic
	// ErrInvalidConfig means that New refused the Config. The error has a redisdelay.FieldError for
	// every invalid field. It is redisdelay.ErrInvalidConfig.
	ErrInvalidConfig = redisdelay.ErrInvalidConfig
	// ErrInvalidArgument means that another argument is invalid; the error names it.
	ErrInvalidArgument = operate.ErrInvalid
)
