package queue_test

import (
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// inbox is a mailbox whose messages the test reads.
type inbox struct {
	w       *world
	channel string
	pubsub  *redis.PubSub
	ends    int
}

func (w *world) inbox() *inbox {
	w.t.Helper()
	b := &inbox{w: w, channel: queue.MailboxChannel(w.Prefix, queue.Token())}
	b.pubsub = w.Client.Subscribe(ctx, b.channel)
	w.t.Cleanup(func() { _ = b.pubsub.Close() })
	_, err := b.pubsub.Receive(ctx) // the subscription's confirmation
	require.NoError(w.t, err)
	return b
}

func (b *inbox) address(receiver string) string { return b.channel + "|" + receiver }

// received are the messages since the last time, in order.
func (b *inbox) received() []string {
	b.w.t.Helper()
	b.ends++
	end := fmt.Sprintf("end %d", b.ends)
	require.NoError(b.w.t, b.w.Client.Publish(ctx, b.channel, end).Err())
	received := []string{}
	for {
		m, err := b.pubsub.ReceiveMessage(ctx)
		require.NoError(b.w.t, err)
		if m.Payload == end {
			return received
		}
		received = append(received, m.Payload)
	}
}

// wait notes receivers as idle subscriptions of a group, the first to be woken first.
func (b *inbox) wait(group string, receivers ...string) {
	b.w.t.Helper()
	for _, r := range receivers {
		b.w.waits++
		require.NoError(b.w.t, b.w.Client.ZAdd(ctx, b.w.keys.Waiters(group),
			redis.Z{Score: float64(b.w.start + 3600_000*b.w.waits), Member: b.address(r)}).Err())
	}
}
