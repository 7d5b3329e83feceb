package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func init() { children["broadcast consumer"] = broadcastChild }

const broadcastExpiry = 2 * time.Minute

func ofBroadcast(c *redisdelay.SubscriberConfig) {
	c.Broadcast = true
	c.BroadcastExpiry = broadcastExpiry
}

// broadcastChild says which group it is, and keeps its first message in hand.
func broadcastChild() int {
	msg := <-childSubscribe(ofBroadcast)
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	fmt.Println(delivery.Group)
	select {}
}

// The lease of what the killed process had in hand runs out long before: that is no sign of life.
func TestGroupOfAKilledBroadcastProcessIsRemovedWhenItsTimeHasCome(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	client := server.Client(t)
	t.Cleanup(func() { queuetest.Check(t, client, redisdelay.DefaultKeyPrefix) })
	hasGroup := func(group string) bool { return client.HExists(t.Context(), keys.Groups(), group).Val() }
	subscriptions := []<-chan *message.Message{
		subscribe(t, on(t, client), ofLongLease, func(c *redisdelay.SubscriberConfig) { c.TakeoverWindow = -1 }), // the test counts what is kept
		subscribe(t, on(t, client), func(c *redisdelay.SubscriberConfig) {
			ofBroadcast(c)
			ofLongLease(c)
		}),
	}
	livingGet := func(uuid string) {
		t.Helper()
		for _, messages := range subscriptions {
			msg, _ := receive(t, messages)
			require.Equal(t, uuid, msg.UUID)
			msg.Ack()
		}
	}

	child := startChild(t, server, "broadcast consumer")
	require.Eventually(t, func() bool {
		return client.HLen(t.Context(), keys.Groups()).Val() == int64(len(subscriptions)+1)
	}, patience, time.Millisecond)
	publisher := newPublisher(t, on(t, client))
	publish(t, publisher, "in hand", 0)
	group := child.line()
	publish(t, publisher, "waiting", 0)
	livingGet("in hand")
	livingGet("waiting")
	child.kill()
	awaitGone(t, client, "broadcast consumer")

	publish(t, publisher, "meanwhile", broadcastExpiry/2)
	server.SetClock(broadcastExpiry / 2)
	testkit.LookNow(t, on(t, client))
	livingGet("meanwhile")
	require.True(t, hasGroup(group))
	require.EqualValues(t, 3, client.HLen(t.Context(), keys.Messages()).Val(), "it has not acked any")

	server.SetClock(broadcastExpiry)
	testkit.LookNow(t, on(t, client))
	require.Eventually(t, func() bool { return client.HExists(t.Context(), keys.Stats(group), "ending").Val() }, patience, time.Millisecond)
	require.True(t, hasGroup(group), "its end is put off once")
	server.SetClock(broadcastExpiry + 2*time.Minute)
	testkit.LookNow(t, on(t, client))
	require.Eventually(t, func() bool { return !hasGroup(group) }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return !exists(t, client, keys.Messages()) }, patience, time.Millisecond)
	publish(t, publisher, "after", 0)
	livingGet("after")
}
