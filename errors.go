package redisdelay

import (
	"errors"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

var (
	// ErrClosed means that the Publisher or Subscriber is closed, or that its Close gave up a
	// Publish. A message's context that ends because the Subscriber closes has a cause
	// (context.Cause) that wraps it.
	ErrClosed = queue.ErrClosed

	// ErrInvalidConfig means that a constructor of this module, or of otel or prometheus, refused
	// its configuration. The error has a FieldError for every invalid field.
	ErrInvalidConfig = field.ErrInvalidConfig

	// ErrInvalidTopic means that a topic is empty or longer than MaxTopicLength. With a
	// StreamConfig it also means that no stream may have that name.
	ErrInvalidTopic = errors.New("invalid topic")

	// ErrNilMessage means that Publish got a nil message.
	ErrNilMessage = errors.New("message is nil")

	// ErrMessageTooLarge means that a message is larger than PublisherConfig.MaxMessageBytes.
	ErrMessageTooLarge = errors.New("message too large")

	// ErrPublishTooLarge means that one call of Publish has more messages than
	// PublisherConfig.MaxPublishMessages, or more bytes than MaxPublishBytes.
	ErrPublishTooLarge = errors.New("too much for one Publish")

	// ErrExists means that a name is taken. Publish returns it for a message with DelayIDReject
	// whose delay ID another one has. In package admin it means that another message has the delay
	// ID by now, and in package periodic that another schedule has the name.
	ErrExists = queue.ErrExists

	// ErrAlreadyRun means that Run of a scheduler.Scheduler or a periodic.Periodic was called a
	// second time.
	ErrAlreadyRun = queue.ErrAlreadyRun

	// ErrReserved means that Publish refused a message, because its delay ID is
	// "<schedule>@<digits>" for a recurring schedule of the topic (package periodic). Such IDs are
	// for the occurrences of the schedule.
	ErrReserved = queue.ErrReserved

	// ErrPastExpiry means that a message would be due at or after its expires_at, when it is too
	// late to deliver it. The error of Publish also wraps ErrInvalidMetadata.
	ErrPastExpiry = queue.ErrPastExpiry

	// ErrTopicFull means that after Publish more messages would wait than
	// PublisherConfig.MaxWaiting.
	ErrTopicFull = queue.ErrTopicFull

	// ErrServerFull means that the Redis server is at its maxmemory and refuses what would be new:
	// messages, topics and groups. Nothing was published. Consumers of groups that exist go on and
	// make room, so a later call may succeed. The error also wraps the server's own (OOM).
	ErrServerFull = refusal.ErrServerFull

	// ErrTopicMode means that a topic has a Redis Stream where none is expected. It also means that
	// a topic with groups or messages of its own was used with a StreamConfig.
	ErrTopicMode = queue.ErrTopicMode

	// ErrGroupMode means that the consumer group has the other setting of
	// SubscriberConfig.SingleActive.
	ErrGroupMode = queue.ErrGroupMode

	// ErrMaybePublished means that it is not known whether the messages of a Publish are in Redis.
	// The call may have been sent, and had no answer, or the context of PublishContext ended before
	// that. All messages of the call are in Redis, or none. Publishing them again may duplicate
	// them, unless their delay IDs are still taken.
	ErrMaybePublished = queue.ErrMaybePublished

	// ErrNotReplicated means that after WaitTimeout fewer than PublisherConfig.WaitReplicas
	// replicas have confirmed the messages. The primary has stored them, and usually they are
	// delivered, but a failover may lose them. Publishing them again may duplicate them, unless
	// their delay IDs are still taken.
	ErrNotReplicated = queue.ErrNotReplicated

	// ErrLayout means that the topic was written to Redis in another, incompatible layout.
	ErrLayout = queue.ErrLayout

	// ErrForbidden means that the Redis user may not run a command, or use a key or a channel, that
	// is needed, or that the server does not have a command, because of rename-command. One error
	// names all that is missing: the ACL rules that the user needs, and the commands that the
	// server needs. It is found at the first use of a server, before anything is written.
	ErrForbidden = refusal.ErrForbidden

	// ErrNotDelivered means that Postpone got a message that does not come from a Subscriber.
	ErrNotDelivered = errors.New("message is not a delivery of a Subscriber")

	// ErrLeaseLost is the cause (context.Cause) of a message's context when its lease has expired.
	// The handler should stop: another consumer may have the message, and its ack or nack changes
	// nothing.
	ErrLeaseLost = consume.ErrLeaseLost
)

// FieldError is a fault of one field of a configuration, in any package of this module, and in otel
// and prometheus. The error of a Validate joins one for every invalid field, as errors.Join does.
// It wraps ErrInvalidConfig, and has two fields:
//
//	Field string // as Go names it, such as "KeyPrefix", "Topics[2]" or "Subscriber.Client"
//	Fault string // the rest of the sentence, such as "is required"
//
// Use errors.As with a *FieldError.
type FieldError = field.Error
