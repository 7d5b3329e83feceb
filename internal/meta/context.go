package meta

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// contextDue returns when a message with this context is due, by the delay that delay.WithContext
// put there.
func contextDue(ctx context.Context, now time.Time) (due queue.Due, err error) {
	found, ok := contextDelay(ctx)
	if !ok {
		return due, nil
	}
	// Only Watermill can read its Delay. It writes it into this message, because the real one is
	// not to be changed.
	stamped := &message.Message{Metadata: make(message.Metadata)}
	delay.Message(stamped, found)
	due, _, err = watermillDue(stamped.Metadata, now)
	return due, err
}

// contextDelay returns what delay.WithContext put into ctx, if it did.
func contextDelay(ctx context.Context) (delay.Delay, bool) {
	if watermillDelayKey == nil {
		return delay.Delay{}, false
	}
	found, ok := ctx.Value(watermillDelayKey).(delay.Delay)
	return found, ok
}

// watermillDelayKey is the key under which delay.WithContext puts its value. Watermill does not
// export it, so Watermill's own publisher is made to ask a context for it, once. The key is nil,
// and such delays are not seen, if a version of Watermill keeps them in another way. A test fails
// then.
var watermillDelayKey = func() any {
	asked := &keyRecorder{Context: context.Background()}
	publisher, err := delay.NewPublisher(noPublisher{}, delay.PublisherConfig{AllowNoDelay: true})
	if err != nil {
		return nil
	}
	_ = publisher.Publish("", message.NewMessageWithContext(asked, "", nil)) // to nowhere
	return asked.key
}()

// keyRecorder is a context that remembers the key it was last asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

type noPublisher struct{}

func (noPublisher) Publish(string, ...*message.Message) error { return nil }
func (noPublisher) Close() error                              { return nil }
