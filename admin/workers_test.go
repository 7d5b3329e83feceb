package admin_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

func (s *setup) workers(t *testing.T) []admin.Worker {
	t.Helper()
	workers, err := s.admin.Workers(ctx, topic)
	require.NoError(t, err)
	return workers
}

func TestWorkersAreShownFromSubscribeToClose(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		sub := s.subscriber(t, "a", func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 2 })
		messages, err := sub.Subscribe(ctx, topic)
		require.NoError(t, err)
		eventually(t, func() bool { return len(s.workers(t)) == 1 }, "it shows itself at once")
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(2)...))
		one, two := receive(t, messages), receive(t, messages)
		w := s.workers(t)[0]
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, host, w.Host)
		require.Equal(t, os.Getpid(), w.PID)
		require.Equal(t, "a", w.Group)
		require.Equal(t, 2, w.InHand)
		now := s.stats(t).Now
		for _, at := range []time.Time{w.Since, w.Seen, w.Oldest} {
			require.WithinDuration(t, now, at, soon)
		}
		delivery, ok := redisdelay.DeliveryFromContext(one.Context())
		require.True(t, ok)
		m, err := s.admin.Get(ctx, topic, admin.ByID(delivery.ID))
		require.NoError(t, err)
		require.Equal(t, w.Subscription, m.Places[0].Subscription)
		one.Ack()
		two.Ack()
		eventually(t, func() bool { return s.workers(t)[0].InHand == 0 }, "it has settled")
		require.NoError(t, sub.Close())
		require.Empty(t, s.workers(t))
	})
}
