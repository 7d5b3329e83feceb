package redisdelay

import (
	"context"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// insideSubscriber is what package partition uses of a Subscriber.
type insideSubscriber struct{ s *Subscriber }

func (i insideSubscriber) SubscribeIn(ctx context.Context, topic string, common *consume.Common) (ended <-chan struct{}, err error) {
	_, ended, err = i.s.subscribe(ctx, topic, common)
	return ended, err
}

func (i insideSubscriber) Partitioning(ctx context.Context, topic string) (queue.Partitioning, error) {
	return queue.PartitioningOf(ctx, i.s.client, i.s.config.KeyPrefix, topic)
}

func (i insideSubscriber) Listed(ctx context.Context, names []string) ([]string, error) {
	return queue.ListedOf(ctx, i.s.client, i.s.config.KeyPrefix, names)
}
