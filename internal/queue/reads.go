package queue

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Read tells of some topics whether a subscription of a group reads them: it waits for messages,
// rests, stands by or holds one, or has shown itself within a minute. So one counts that was just
// woken, and one whose process was killed, until it is found to be gone. An error means that some
// could not be read.
func Read(ctx context.Context, client *servers.Client, prefix, group string, topics []string) ([]bool, error) {
	reads := make([]bool, len(topics))
	for i, topic := range topics {
		k := NewKeys(prefix, topic)
		n, err := servers.AskMaster(ctx, client, k.Meta(), func(ctx context.Context, c redis.UniversalClient) (n int64, err error) {
			now, err := c.Time(ctx).Result()
			if err != nil {
				return 0, err
			}
			var counts []*redis.IntCmd
			var workers *redis.MapStringStringCmd
			_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, key := range []string{k.Waiters(group), k.Resting(group), k.Standby(group), k.Limited(group)} {
					counts = append(counts, p.ZCount(ctx, key, "("+strconv.FormatInt(now.UnixMilli(), 10), "+inf"))
				}
				counts = append(counts, p.ZCard(ctx, k.Unack(group)))
				workers = p.HGetAll(ctx, k.Workers(group))
				return nil
			})
			for _, count := range counts {
				n += count.Val()
			}
			for subscription, text := range workers.Val() {
				if w := ReadWorker(subscription, text); w.Gone.IsZero() && now.Sub(w.Seen) < 2*SignInterval {
					n++
				}
			}
			return n, err
		})
		if err != nil {
			return nil, err
		}
		reads[i] = n > 0
	}
	return reads, nil
}
