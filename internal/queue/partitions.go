package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
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

// PartitioningOf returns the number of partitions of a topic, zero if nobody has set it.
func PartitioningOf(ctx context.Context, client *servers.Client, prefix, topic string) (p Partitioning, err error) {
	key := Partitionings(prefix)
	text, err := servers.AskMaster(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (string, error) {
		text, err := c.HGet(ctx, key, topic).Result()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return text, err
	})
	if err != nil || text == "" {
		return p, partitioningError(prefix, "read the number of partitions", "hget", err)
	}
	var since int64
	if _, err := fmt.Sscanf(text, "%d %d %d %d", &p.Count, &p.Before, &p.Next, &since); err != nil || p.Count < 1 || p.Before < 0 || p.Next < 0 {
		return Partitioning{}, fmt.Errorf("topic %q has %.64q in key %q, which is no number of partitions", topic, text, key)
	}
	p.Since = time.UnixMilli(since)
	return p, nil
}

// PartitioningTime returns the time by the clock of the server that has the numbers of partitions.
func PartitioningTime(ctx context.Context, client *servers.Client, prefix string) (time.Time, error) {
	now, err := servers.AskMaster(ctx, client, Partitionings(prefix), func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	return now, refusal.To("read the server's clock", "time", err)
}

// Taken tells of some delay IDs whether a message of the topic has them.
func (t *Topic) Taken(ctx context.Context, delayIDs []string) ([]bool, error) {
	return servers.AskMaster(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) ([]bool, error) {
		var now *redis.TimeCmd
		frees := make([]*redis.FloatCmd, len(delayIDs))
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			now = p.Time(ctx)
			for i, id := range delayIDs {
				frees[i] = p.ZScore(ctx, t.Keys().Taken(), EncodeName(id))
			}
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		taken := make([]bool, len(delayIDs))
		for i, free := range frees {
			if err := free.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
			taken[i] = free.Err() == nil && int64(free.Val()) > now.Val().UnixMilli()
		}
		return taken, now.Err()
	})
}

// SetPartitioning sets the number of partitions of a topic, or forgets it if Count is 0.
func SetPartitioning(ctx context.Context, client *servers.Client, prefix, topic string, p Partitioning) error {
	key := Partitionings(prefix)
	command, text := "hset", fmt.Sprintf("%d %d %d %d", p.Count, p.Before, p.Next, p.Since.UnixMilli())
	if p.Count == 0 {
		command = "hdel"
	}
	_, err := servers.AskKey(ctx, client, key, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
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
	return refusal.To(what, command, err, refusal.Keys(prefix))
}
