package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Partitioning is the number of partitions of a topic, as operators have set it.
type Partitioning struct {
	Count  int // that publishers use; 0: nobody has set it
	Before int // that publishers used before, while messages from then may be left; 0: none
	Next   int // that subscribers are to have before publishers use it; 0: none
	Since  time.Time
}

// Most is how many partitions subscribers read.
func (p Partitioning) Most() int { return max(p.Count, p.Before, p.Next) }

// PartitioningOf returns the number of partitions of a topic, zero if nobody has set it, and the
// time by the server's clock.
func PartitioningOf(ctx context.Context, client *Client, prefix, topic string) (p Partitioning, now time.Time, err error) {
	key := Partitionings(prefix)
	text, err := AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (string, error) {
		text, err := c.HGet(ctx, key, topic).Result()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return text, err
	})
	if err != nil {
		return p, now, partitioningError(prefix, "read the number of partitions", "hget", err)
	}
	now, err = AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (time.Time, error) { return c.Time(ctx).Result() })
	if err != nil || text == "" {
		return p, now, partitioningError(prefix, "read the server's clock", "time", err)
	}
	var since int64
	if _, err := fmt.Sscanf(text, "%d %d %d %d", &p.Count, &p.Before, &p.Next, &since); err != nil || p.Count < 1 || p.Before < 0 || p.Next < 0 {
		return Partitioning{}, now, fmt.Errorf("topic %q has %.64q in key %q, which is no number of partitions", topic, text, key)
	}
	p.Since = time.UnixMilli(since)
	return p, now, nil
}

// SetPartitioning sets the number of partitions of a topic, or forgets it if Count is 0.
func SetPartitioning(ctx context.Context, client *Client, prefix, topic string, p Partitioning) error {
	key := Partitionings(prefix)
	command, text := "hset", fmt.Sprintf("%d %d %d %d", p.Count, p.Before, p.Next, p.Since.UnixMilli())
	if p.Count == 0 {
		command = "hdel"
	}
	_, err := AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		if p.Count == 0 {
			return c.HDel(ctx, key, topic).Result()
		}
		return c.HSet(ctx, key, topic, text).Result()
	})
	return partitioningError(prefix, "set the number of partitions", command, err)
}

func partitioningError(prefix, what, command string, err error) error {
	if wrongType(err) {
		err = fmt.Errorf("the key %q has to be a hash: %w", Partitionings(prefix), err)
	}
	return RefusedTo(what, command, err, keyRule(prefix))
}
