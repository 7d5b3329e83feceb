package redisdelay

import (
	"context"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// insideSubscriber is what package partition uses of a Subscriber.
type insideSubscriber struct{ s *Subscriber }

func (i insideSubscriber) SubscribeIn(ctx context.Context, topic string, common *consume.Common) (sub *consume.Subscription, ended <-chan struct{}, err error) {
	return i.s.subscribe(ctx, topic, common)
}

func (i insideSubscriber) InitializeIn(topic string, common *consume.Common) error {
	return i.s.initialize(topic, common)
}

func (i insideSubscriber) Assigned(ctx context.Context, topic string) (*queue.GroupLimit, *queue.History, error) {
	if i.s.config.Broadcast {
		return nil, nil, nil
	}
	options, err := queue.NewTopic(i.s.client, i.s.config.KeyPrefix, topic).OptionsOf(ctx, i.s.config.ConsumerGroup)
	return options.Set, options.SetHistory, err
}

func (i insideSubscriber) SingleActive() bool { return i.s.config.SingleActive }

func (i insideSubscriber) CloseWithin() time.Duration { return i.s.config.CloseTimeout + closeGrace }

func (i insideSubscriber) Read(ctx context.Context, topics []string) ([]bool, error) {
	if i.s.config.Broadcast {
		return make([]bool, len(topics)), nil
	}
	return queue.Read(ctx, i.s.client, i.s.config.KeyPrefix, i.s.config.ConsumerGroup, topics)
}

func (i insideSubscriber) Seats(ctx context.Context, topics []string) ([]queue.Seat, error) {
	return queue.Seats(ctx, i.s.client, i.s.config.KeyPrefix, i.s.config.ConsumerGroup, topics)
}

func (i insideSubscriber) Partitioning(ctx context.Context, topic string) (queue.Partitioning, error) {
	return queue.PartitioningOf(ctx, i.s.client, i.s.config.KeyPrefix, topic)
}

func (i insideSubscriber) Listed(ctx context.Context, names []string) ([]string, error) {
	return queue.ListedOf(ctx, i.s.client, i.s.config.KeyPrefix, names)
}
