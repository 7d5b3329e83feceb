package redisdelay

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// DefaultKeyPrefix is the default start of all keys in Redis.
const DefaultKeyPrefix = queue.DefaultPrefix

// DefaultConsumerGroup is the consumer group of a Subscriber if SubscriberConfig names none.
const DefaultConsumerGroup = "default"

// MaxTopicLength is the maximum length of the name of a topic or consumer group, in bytes.
const MaxTopicLength = queue.MaxNameLength

const defaultDeadRetention = 30 * 24 * time.Hour

// closeGrace is how long after CloseTimeout a Close waits for the client, which may not give a call
// up for long. Close returns within a second after CloseTimeout.
const closeGrace = 900 * time.Millisecond

func checkTopic(topic string) error {
	if err := queue.CheckTopic(topic); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	return nil
}

var errEvicts = errors.New("the server may evict keys")

// warnOfEviction logs that the server may evict keys. policy is its maxmemory-policy if so, else
// "".
func warnOfEviction(logger watermill.LoggerAdapter, policy string) {
	if policy != "" {
		logger.Error("Redis may lose messages when its memory is full: set maxmemory-policy to noeviction", errEvicts,
			watermill.LogFields{"maxmemory_policy": policy})
	}
}

// atLeast checks a duration whose zero value means the default.
func atLeast(d, least time.Duration) error {
	if d != 0 && d < least {
		return fmt.Errorf("is %v; it has to be at least %v, or zero for the default", d, least)
	}
	return nil
}

func checkGroup(group string, broadcast bool) error {
	switch {
	case broadcast && group != "":
		return fmt.Errorf("is %q, but with Broadcast each subscription has a group of its own; leave it empty", group)
	case len(group) > MaxTopicLength:
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(group), MaxTopicLength)
	case queue.IsWindow(group):
		return fmt.Errorf("is %q; names of this form are those of takeover windows", group)
	}
	return nil
}

func checkSingleActive(single, broadcast bool) error {
	if single && broadcast {
		return errors.New("is true, but with Broadcast each subscription has a group of its own; leave it false")
	}
	return nil
}

func checkGroupExpiry(d time.Duration, broadcast bool) error {
	if broadcast && d != 0 {
		return fmt.Errorf("is %v, but with Broadcast use BroadcastExpiry instead; leave it zero", d)
	}
	if d < 0 {
		return fmt.Errorf("is %v; it has to be positive, or zero for no end", d)
	}
	return atLeast(d, 2*time.Minute)
}
