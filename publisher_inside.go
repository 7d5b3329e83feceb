package redisdelay

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/inside"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func init() {
	inside.Of = func(publisher any) inside.Publisher { return insidePublisher{publisher.(*Publisher)} }
}

// insidePublisher is what package periodic uses of a Publisher.
type insidePublisher struct{ p *Publisher }

func (i insidePublisher) Topic(name string) *queue.Topic { return i.p.topic(name) }

func (i insidePublisher) PublishGuarded(topic string, messages []*message.Message, guards []queue.Guard) error {
	return i.p.publishGuarded(topic, messages, guards)
}
