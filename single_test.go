package redisdelay_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func singleActive(c *redisdelay.SubscriberConfig) { c.SingleActive = true }

func TestSingleActiveIsASettingOfTheGroup(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		plain := func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = "plain" }
		require.NoError(t, testkit.NewSubscriber(t, s, singleActive).SubscribeInitialize("t"))
		require.NoError(t, testkit.NewSubscriber(t, s, plain).SubscribeInitialize("t"))
		without, with := testkit.NewSubscriber(t, s), testkit.NewSubscriber(t, s, plain, singleActive)
		_, err := without.Subscribe(ctx, "t")
		require.ErrorIs(t, err, redisdelay.ErrGroupMode)
		require.ErrorIs(t, without.SubscribeInitialize("t"), redisdelay.ErrGroupMode)
		_, err = with.Subscribe(ctx, "t")
		require.ErrorIs(t, err, redisdelay.ErrGroupMode)
	})
}

func TestSingleActiveIsNotForBroadcast(t *testing.T) {
	t.Parallel()
	_, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: clientOf(t, "127.0.0.1:1"), Broadcast: true, SingleActive: true}, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, "SingleActive is true, but with Broadcast")
}

func TestOneSubscriptionGetsAllUntilItClosesAndAnotherGoesOn(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		subscriber := testkit.NewSubscriber(t, s, singleActive)
		first, end := context.WithCancel(ctx)
		defer end()
		one, err := subscriber.Subscribe(first, "t")
		require.NoError(t, err)
		require.NoError(t, p.Publish("t", message.NewMessage("1", nil)))
		msg := receive(t, one)
		two := subscribeTo(t, testkit.NewSubscriber(t, s, singleActive), "t")
		require.NoError(t, p.Publish("t", message.NewMessage("2", nil), message.NewMessage("3", nil)))
		before := deliveryOf(t, msg).Epoch
		require.Positive(t, before)
		msg.Ack()
		msg = receive(t, one)
		require.Equal(t, "2", msg.UUID)
		require.Equal(t, before, deliveryOf(t, msg).Epoch)
		end()
		select {
		case <-two:
			require.Fail(t, "it got a message while another has one")
		case <-time.After(20 * time.Millisecond):
		}
		msg.Nack() // with a delay, so the next one passes
		msg = receive(t, two)
		require.Equal(t, "3", msg.UUID)
		require.Greater(t, deliveryOf(t, msg).Epoch, before)
		msg.Ack()
		msg = receive(t, two)
		require.Equal(t, "2", msg.UUID)
		msg.Ack()
	})
}

func TestEpochIsZeroWithoutSingleActive(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		messages := subscribeTo(t, testkit.NewSubscriber(t, s), "t")
		require.NoError(t, newPublisher(t, s).Publish("t", message.NewMessage("1", nil)))
		msg := receive(t, messages)
		require.Zero(t, deliveryOf(t, msg).Epoch)
		msg.Ack()
	})
}
