// Package inside lets packages periodic and partition use parts of a Publisher and a Subscriber
// that the root package does not export: users could only misuse them.
package inside

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Publisher is the inside of a *redisdelay.Publisher.
type Publisher interface {
	// Topic returns a new handle on a topic, of the kind that the Publisher publishes to.
	Topic(name string) *queue.Topic

	// Mailbox returns the process's mailbox for the Publisher's client, and a function that gives
	// it back.
	Mailbox() (*wake.Mailbox, func())

	// Partitioning returns the number of partitions of a topic that operators have set, or zero.
	Partitioning(ctx context.Context, topic string) (queue.Partitioning, error)

	// Prepare does of Publish all that comes before the messages are sent. An error is about a
	// message or its size. Otherwise send sends them, or free gives them up; one of the two must be
	// called, once. send returns the errors that Publish returns.
	Prepare(topic string, messages []*message.Message) (send func() error, free func(), err error)
}

type guardKey struct{}

// guarded is the guard of the occurrence with a delay ID.
type guarded struct {
	delayID string
	guard   *queue.Guard
}

// WithGuard returns a context that gives a guard to the message with a delay ID. The guard goes
// with the message through decorators of a Publisher, and decides in Redis whether the message is
// left out.
func WithGuard(ctx context.Context, delayID string, guard *queue.Guard) context.Context {
	return context.WithValue(ctx, guardKey{}, guarded{delayID, guard})
}

// GuardOf returns the guard that the context of a message gives it, or nil.
func GuardOf(ctx context.Context, delayID string) *queue.Guard {
	if g, ok := ctx.Value(guardKey{}).(guarded); ok && g.delayID == delayID {
		return g.guard
	}
	return nil
}

// Subscriber is the inside of a *redisdelay.Subscriber.
type Subscriber interface {
	// SubscribeIn is Subscribe, for one of several subscriptions with something in common. ended is
	// closed when the subscription has ended.
	SubscribeIn(ctx context.Context, topic string, common *consume.Common) (sub *consume.Subscription, ended <-chan struct{}, err error)

	// InitializeIn is SubscribeInitialize, for one of several topics with something in common.
	InitializeIn(topic string, common *consume.Common) error

	// Assigned returns the limit and the history that an operator has set for the group in a topic.
	// Without one, or with Broadcast, it returns nil.
	Assigned(ctx context.Context, topic string) (*queue.GroupLimit, *queue.History, error)

	// SingleActive tells whether the groups have the setting.
	SingleActive() bool

	// CloseWithin is how long Close takes at the latest.
	CloseWithin() time.Duration

	// Read tells which topics somebody reads with the group. With Broadcast nobody else does.
	Read(ctx context.Context, topics []string) ([]bool, error)

	// Seats returns of each topic which subscription of the group is active, and which is next.
	Seats(ctx context.Context, topics []string) ([]queue.Seat, error)

	// Partitioning returns the number of partitions of a topic that operators have set, or zero.
	Partitioning(ctx context.Context, topic string) (queue.Partitioning, error)

	// Listed returns those of some names that are in the registry of topics.
	Listed(ctx context.Context, names []string) ([]string, error)
}

// Of and OfSubscriber return the inside of a *redisdelay.Publisher and of a *redisdelay.Subscriber.
// The root package sets them when it is loaded.
var (
	Of           func(publisher any) Publisher
	OfSubscriber func(subscriber any) Subscriber
)
