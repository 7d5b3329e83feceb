package redisdelay

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

func init() {
	inside.Of = func(publisher any) inside.Publisher { return insidePublisher{publisher.(*Publisher)} }
	inside.OfSubscriber = func(subscriber any) inside.Subscriber { return insideSubscriber{subscriber.(*Subscriber)} }
}

// insidePublisher is what packages periodic and partition use of a Publisher.
type insidePublisher struct{ p *Publisher }

func (i insidePublisher) Topic(name string) *queue.Topic { return i.p.topic(name) }

func (i insidePublisher) Mailbox() (*wake.Mailbox, func()) {
	return wake.Open(i.p.client, i.p.config.KeyPrefix)
}

func (i insidePublisher) Partitioning(ctx context.Context, topic string) (queue.Partitioning, error) {
	return queue.PartitioningOf(ctx, i.p.client, i.p.config.KeyPrefix, topic)
}

func (i insidePublisher) Prepare(topic string, messages []*message.Message) (send func() error, free func(), err error) {
	p := i.p
	if err := p.checkTopic(topic); err != nil {
		return nil, nil, err
	}
	told := func(err error) error {
		if err != nil {
			err = fmt.Errorf("publish to topic %q: %w", topic, err)
		}
		return err
	}
	b, err := p.prepare(topic, messages, false)
	if err != nil {
		return nil, nil, told(err)
	}
	free = func() { p.engine.Free(b) }
	send = func() error {
		defer free()
		return told(p.engine.Publish(callerContext(messages), topic, b))
	}
	return send, free, nil
}
