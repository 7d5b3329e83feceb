package redisdelay

import (
	"errors"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

var (
	// ErrClosed is wrapped by what is called on a Publisher or Subscriber after its Close, and by a Publish that Close
	// gave up. It is the cause (context.Cause) of a message's context that ends with CloseTimeout.
	ErrClosed = queue.ErrClosed

	// ErrInvalidConfig is wrapped by NewPublisher, NewSubscriber, and the constructors of packages admin and relay;
	// the error names every field that cannot be used.
	ErrInvalidConfig = errors.New("invalid configuration")

	// ErrInvalidTopic is wrapped where a topic is empty or longer than MaxTopicLength, or, with a StreamConfig, has a
	// name that no stream may have.
	ErrInvalidTopic = errors.New("invalid topic")

	// ErrNilMessage is wrapped by Publish for a message that is nil.
	ErrNilMessage = errors.New("message is nil")

	// ErrMessageTooLarge is wrapped by Publish for a message above PublisherConfig.MaxMessageBytes.
	ErrMessageTooLarge = errors.New("message too large")

	// ErrPublishTooLarge is wrapped by Publish for one call with more messages than
	// PublisherConfig.MaxPublishMessages, or more bytes than MaxPublishBytes.
	ErrPublishTooLarge = errors.New("too much for one Publish")

	// ErrExists is wrapped by Publish for a message whose delay ID is taken, if it is to be refused then: see
	// DelayIDReject.
	ErrExists = queue.ErrExists

	// ErrTopicFull is wrapped by Publish if more messages would wait than PublisherConfig.MaxWaiting.
	ErrTopicFull = queue.ErrTopicFull

	// ErrTopicMode is wrapped where a topic has a Redis Stream and should have none, or has none, and groups or
	// messages instead, where it should: see StreamConfig.
	ErrTopicMode = queue.ErrTopicMode

	// ErrNotReplicated is wrapped by Publish if fewer than PublisherConfig.WaitReplicas replicas are known to have
	// the messages after WaitTimeout. The primary has taken them, and most often they are delivered; a failover
	// may lose them. To publish them again may double them, unless they have a delay ID, and it is still taken.
	ErrNotReplicated = queue.ErrNotReplicated

	// ErrLayout is wrapped where the topic was written to Redis in another, incompatible form.
	ErrLayout = queue.ErrLayout

	// ErrForbidden is wrapped where the Redis user may not run a command that it takes, or use a key or a channel; the
	// error names all the commands that it lacks, and what keys and channels it has to be allowed. It is found at the first
	// use of a server, before anything is written but what says that the topic is there.
	ErrForbidden = queue.ErrForbidden

	// ErrLeaseLost is the cause (context.Cause) of a message's context when its lease has run out and
	// the message is another's: the handler should stop, its ack and nack change nothing.
	ErrLeaseLost = consume.ErrLeaseLost
)
