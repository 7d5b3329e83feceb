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

// run runs a call, and returns the reply in the form that read gives it.
func run[T any](ctx context.Context, t *Topic, read func(*redis.Cmd) (T, error), call *queue.Call) (reply T, err error) {
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		return reply, err
	}
	return read(call.Cmd())
}

// ask runs a call, and returns its reply. It returns queue.ErrStale if that is all that the script
// says.
func ask(ctx context.Context, t *Topic, call *queue.Call) (queue.Reply, error) {
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		return queue.Reply{}, err
	}
	return whole(call.Read())
}

// whole returns queue.ErrStale instead of a reply that says so.
func whole(reply queue.Reply, err error) (queue.Reply, error) {
	if err == nil && reply.Refusal == "stale" {
		err = queue.ErrStale
	}
	return reply, err
}

// Group is a handle on one consumer group of a topic for operators.
type Group struct {
	*queue.Group
	topic *Topic
}

// Group returns a handle on a consumer group.
func (t *Topic) Group(name string) *Group { return &Group{t.Topic.Group(name), t} }
