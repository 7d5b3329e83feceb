package admin_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/testkit"
)

// The delay ID is taken, because its window lasts, and the message waits for its retry.
func TestTooLateTellsHowToNameAMessageThatIsRetried(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		messages := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.Backoff = func(int) time.Duration { return testkit.Never }
		}), "t")
		msg := message.NewMessage(watermill.NewUUID(), nil)
		redisdelay.SetDelayID(msg, "order 1", redisdelay.DelayIDReject)
		redisdelay.SetDelayIDWindow(msg, testkit.Never)
		require.NoError(t, testkit.NewPublisher(t, s).Publish("t", msg))
		got := testkit.Receive(t, messages)
		delivery := testkit.DeliveryOf(t, got)
		err = a.Cancel(t.Context(), "t", admin.ByID(delivery.ID))
		require.ErrorIs(t, err, admin.ErrTooLate)
		require.ErrorContains(t, err, "message was due already, so it is ready, in hand or dead")
		require.True(t, got.Nack())
		testkit.Eventually(t, func() bool {
			return testkit.StateOf(t, s, "t", redisdelay.DefaultConsumerGroup).Retry == 1
		}, "it is retried")

		err = a.Cancel(t.Context(), "t", admin.ByDelayID("order 1"))
		require.ErrorIs(t, err, admin.ErrTooLate)
		require.ErrorContains(t, err, `delay ID "order 1" of topic "t": message was due already, `+
			"so it is ready, in hand, retrying, dead or gone; a retrying one can be named by its own ID")
		require.NoError(t, a.Cancel(t.Context(), "t", admin.ByID(delivery.ID)))
	})
}
