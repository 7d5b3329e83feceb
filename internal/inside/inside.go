// Package inside lets package periodic use parts of a Publisher that the root package does not
// export: users could only misuse them.
package inside

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Publisher is the inside of a *redisdelay.Publisher.
type Publisher interface {
	// Topic returns a new handle on a topic, of the kind that the Publisher publishes to.
	Topic(name string) *queue.Topic

	// PublishGuarded is Publish. Each message has a guard, which decides in Redis whether the
	// message is left out.
	PublishGuarded(topic string, messages []*message.Message, guards []queue.Guard) error
}

// Of returns the inside of a *redisdelay.Publisher. The root package sets it when it is loaded.
var Of func(publisher any) Publisher
