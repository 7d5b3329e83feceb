package redisdelay

import (
	"context"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// insideSubscriber is what package partition uses of a Subscriber.
type insideSubscriber struct{ s *Subscriber }

func (i insideSubscriber) SubscribeIn(ctx context.Context, topic string, common *consume.Common) (leave func(), ended <-chan struct{}, err error) {
	sub, ended, err := i.s.subscribe(ctx, topic, common)
	if err != nil {
		return nil, nil, err
	}
	return sub.Leave, ended, nil
}

func (i insideSubscriber) SingleActive() bool { return i.s.config.SingleActive }

func (i insideSubscriber) Seats(ctx context.Context, topics []string) ([]queue.Seat, error) {
	return queue.Seats(ctx, i.s.client, i.s.config.KeyPrefix, i.s.config.ConsumerGroup, topics)
}

func (i insideSubscriber) Partitioning(ctx context.Context, topic string) (queue.Partitioning, error) {
	return queue.PartitioningOf(ctx, i.s.client, i.s.config.KeyPrefix, topic)
}

func (i insideSubscriber) Listed(ctx context.Context, names []string) ([]string, error) {
	return queue.ListedOf(ctx, i.s.client, i.s.config.KeyPrefix, names)
}
