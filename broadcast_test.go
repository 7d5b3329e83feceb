package redisdelay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func broadcasting(c *redisdelay.SubscriberConfig) { c.Broadcast = true }

func TestEveryBroadcastSubscriptionGetsEveryMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		one, two := subscribe(t, s, "t", broadcasting), subscribe(t, s, "t", broadcasting)
		shared := subscribe(t, s, "t")
		publish(t, p, "t", "now")
		require.NoError(t, p.Publish("t", delayed("later", 20*time.Millisecond)))
		want := []string{"now", "later"}
		require.Equal(t, want, consume(t, one, 2))
		require.Equal(t, want, consume(t, two, 2))
		require.Equal(t, want, consume(t, shared, 2))
	})
}

func TestABroadcastGroupEndsWithItsSubscription(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		sub := newSubscriber(t, s, broadcasting)
		require.NoError(t, sub.SubscribeInitialize("t"))
		messages, err := sub.Subscribe(t.Context(), "t")
		require.NoError(t, err)
		publish(t, p, "t", "in hand", "waiting")
		require.NoError(t, p.Publish("t", delayed("delayed", time.Hour)))
		receive(t, messages).Ack()

		require.NoError(t, sub.Close())
		keys := queue.NewKeys(s.Prefix, "t")
		require.Zero(t, s.Client.HLen(ctx, keys.Groups()).Val())
		require.Zero(t, s.Client.Exists(ctx, keys.Idle()).Val())
		require.Equal(t, int64(1), s.Client.HLen(ctx, keys.Messages()).Val(), "the one that is not due waits for the next group")
	})
}

// The embedded clock moves; the other group's subscription is the scheduler.
func TestABroadcastGroupOfADeadProcessIsRemoved(t *testing.T) {
	s := embedded(t)
	client := s.Client
	jump(t, s, 0)
	dead := queue.NewTopic(client, s.Prefix, "t")
	require.NoError(t, dead.Register(ctx, "broadcast:dead", queue.GroupOptions{Expiry: 5 * time.Minute}))
	p := newPublisher(t, s)
	shared, broadcast := subscribe(t, s, "t"), subscribe(t, s, "t", broadcasting)
	publish(t, p, "t", "for all")
	require.Equal(t, []string{"for all"}, consume(t, shared, 1))
	require.Equal(t, []string{"for all"}, consume(t, broadcast, 1))
	keys := queue.NewKeys(s.Prefix, "t")
	require.Equal(t, int64(1), client.HLen(ctx, keys.Messages()).Val(), "the dead one holds it")

	acked := func() bool { return len(client.Keys(ctx, keys.Leases("*")).Val()) == 0 }
	eventually(t, acked, "before leases expire by the jump")
	jump(t, s, 4*time.Minute)
	publish(t, p, "t", "seen") // the living one is in use
	require.Equal(t, []string{"seen"}, consume(t, shared, 1))
	require.Equal(t, []string{"seen"}, consume(t, broadcast, 1))
	eventually(t, acked, "before leases expire by the jump")
	jump(t, s, 2*time.Minute)
	channels, err := client.PubSubChannels(ctx, queue.MailboxChannel(s.Prefix, "*")).Result()
	require.NoError(t, err)
	for _, channel := range channels {
		require.NoError(t, client.Publish(ctx, channel, "*").Err())
	}
	eventually(t, func() bool { return !client.HExists(ctx, keys.Groups(), "broadcast:dead").Val() }, "the dead group is removed")
	eventually(t, func() bool { return client.HLen(ctx, keys.Messages()).Val() == 0 }, "with its messages")
	require.Equal(t, int64(2), client.HLen(ctx, keys.Groups()).Val())
	publish(t, p, "t", "after")
	require.Equal(t, []string{"after"}, consume(t, broadcast, 1))
}
