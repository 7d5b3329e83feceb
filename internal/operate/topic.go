// Package operate reads and mends topics for operators: messages by state, counts, single messages,
// dead letters, pauses, and violations. Only package admin uses it.
package operate

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Topic is a handle on a topic for operators. Safe for concurrent use.
type Topic struct{ *queue.Topic }

// NewTopic returns a handle. It does not talk to Redis.
func NewTopic(client *servers.Client, prefix, name string) *Topic {
	return &Topic{queue.NewTopic(client, prefix, name)}
}

// run runs a script, and returns the reply in the form that read gives it.
func run[T any](ctx context.Context, t *Topic, read func(*redis.Cmd) (T, error), script *queue.Script, keys []string, args ...any) (reply T, err error) {
	call := queue.NewCall(script, keys, args...)
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		return reply, err
	}
	return read(call.Cmd())
}

// Group is a handle on one consumer group of a topic for operators.
type Group struct {
	*queue.Group
	topic *Topic
}

// Group returns a handle on a consumer group.
func (t *Topic) Group(name string) *Group { return &Group{t.Topic.Group(name), t} }
