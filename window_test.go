package redisdelay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// usualWindow is the setting of a Subscriber that says nothing about it.
func usualWindow(c *redisdelay.SubscriberConfig) { c.TakeoverWindow = 0 }

// A Router starts its handlers one after the other, and a message waits already.
func TestGroupsThatStartTogetherGetTheSameMessages(t *testing.T) {
	both(t, startTogether)
}

func TestGroupsThatStartTogetherGetTheSameMessagesOnACluster(t *testing.T) {
	t.Parallel()
	startTogether(t, redistest.On(t, redistest.StartCluster(t).Client(t), "window"))
}

func startTogether(t *testing.T, s redistest.Server) {
	p := newPublisher(t, s)
	publish(t, p, "t", "m1")
	var book logbook
	a := subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), inGroup("a"), usualWindow), "t")
	require.Equal(t, []string{"m1"}, consume(t, a, 1))
	time.Sleep(time.Millisecond) // it is too late for the other group to get m1 in another way
	publish(t, p, "t", "m2")
	b := subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), inGroup("b"), usualWindow), "t")
	require.Equal(t, []string{"m1", "m2"}, consume(t, b, 2))
	require.Equal(t, []string{"m2"}, consume(t, a, 1))

	waited := book.said("The first consumer group of the topic gets what waited without any group")
	require.Len(t, waited, 1)
	require.Equal(t, 1, waited[0].fields["messages"])
	require.Equal(t, "a", waited[0].fields["consumer_group"])
	taken := book.said("The new consumer group gets what the topic's first group got before")
	require.Len(t, taken, 1)
	require.Equal(t, 2, taken[0].fields["messages"])
	require.Equal(t, "b", taken[0].fields["consumer_group"])
	require.Equal(t, "t", taken[0].fields["topic"])
}

// A window is no group, wherever groups are listed, counted or judged. Broadcast subscriptions and
// groups without a window get nothing from it.
func TestAWindowIsPassedOver(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		a := subscribe(t, s, "t", inGroup("a"), usualWindow)
		publish(t, p, "t", "m1")
		require.Equal(t, []string{"m1"}, consume(t, a, 1))
		operator := adminOf(t, s)
		stats, err := operator.Stats(ctx, "t")
		require.NoError(t, err)
		require.Len(t, stats.Groups, 1)
		require.Equal(t, "a", stats.Groups[0].Group)
		checked, err := operator.Check(ctx, "t")
		require.NoError(t, err)
		for _, f := range checked.Findings {
			require.NotContains(t, fmt.Sprint(f), "window:")
		}
		got, err := operator.Diagnose(ctx, admin.DiagnoseOptions{})
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprint(got), "window:")
		broadcast := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.Broadcast, c.TakeoverWindow = true, 0 })
		debugging := subscribe(t, s, "t", inGroup("debugging"))
		publish(t, p, "t", "m2")
		for _, messages := range []<-chan *message.Message{a, broadcast, debugging} {
			require.Equal(t, []string{"m2"}, consume(t, messages, 1))
		}
	})
}

func TestAGroupCanBeMadeBeforeADeployment(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, operator := newPublisher(t, s), adminOf(t, s)
		_, err := operator.AddGroup(ctx, "t", "billing", admin.GroupSettings{})
		require.ErrorIs(t, err, admin.ErrNotFound)
		none := admin.GroupSettings{TakeoverWindow: -1, Create: true}
		did, err := operator.AddGroup(ctx, "t", "billing", none)
		require.NoError(t, err)
		require.Equal(t, admin.Addition{Group: "billing"}, did)
		publish(t, p, "t", "m1")
		did, err = operator.AddGroup(ctx, "t", "billing", none)
		require.NoError(t, err)
		require.Equal(t, admin.Addition{Group: "billing", Existed: true}, did)
		require.Equal(t, []string{"m1"}, consume(t, subscribe(t, s, "t", inGroup("billing")), 1))
		_, err = operator.AddGroup(ctx, "t", "window:5", none)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)

		_, err = operator.AddGroup(ctx, "t", "turns", admin.GroupSettings{SingleActive: true, TakeoverWindow: -1})
		require.NoError(t, err)
		_, err = newSubscriber(t, s, inGroup("turns")).Subscribe(ctx, "t")
		require.ErrorIs(t, err, redisdelay.ErrGroupMode)
	})
}

func TestTheNameOfAWindowIsReserved(t *testing.T) {
	t.Parallel()
	_, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: clientOf(t, "127.0.0.1:1"), ConsumerGroup: "window:1795703095818"}, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, "ConsumerGroup")
	require.ErrorContains(t, err, "takeover windows")
}

func TestStrippedMetadataControlsNothing(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("1", nil)
	for _, key := range []string{redisdelay.DelayKey, redisdelay.DelayUntilKey, redisdelay.DelayIDKey, redisdelay.DelayIDModeKey,
		redisdelay.DelayIDWindowKey, redisdelay.MaxDeliveriesKey, redisdelay.BackoffKey, redisdelay.ExpiresAtKey, redisdelay.MaxLatenessKey,
		redisdelay.OnExpiryKey, "_watermill_delayed_until", "_watermill_delayed_for"} {
		msg.Metadata.Set(key, "from outside")
	}
	msg.Metadata.Set("Content-Type", "text/plain")
	require.Error(t, redisdelay.CheckMetadata(msg))
	redisdelay.StripMetadata(msg)
	require.Equal(t, message.Metadata{"Content-Type": "text/plain"}, msg.Metadata)
	require.NoError(t, redisdelay.CheckMetadata(msg))
	delayed, err := redisdelay.Delayed(msg)
	require.NoError(t, err)
	require.False(t, delayed)
	redisdelay.StripMetadata(&message.Message{}) // without metadata there is nothing to remove
	require.False(t, strings.Contains(fmt.Sprint(msg.Metadata), "outside"))
}

// A message that expires while the window has it does not come to a group that takes it over late.
// One that becomes a dead letter then is one of that group alone.
func TestALaterGroupDoesNotGetWhatHasExpired(t *testing.T) {
	onMovedClock(t, func(t *testing.T, moved clocked) {
		s := moved.Server
		ofWindow := func(c *redisdelay.SubscriberConfig) { c.TakeoverWindow = never }
		p := newPublisher(t, s)
		a := subscribe(t, s, "t", inGroup("a"), ofWindow, leaseOf(never))
		drop, die := message.NewMessage("1", []byte("drop")), message.NewMessage("2", []byte("die"))
		until := serverTime(t, s).Add(time.Minute)
		redisdelay.ExpireAt(drop, until, redisdelay.ExpiryDrop)
		redisdelay.ExpireAt(die, until, redisdelay.ExpiryDead)
		require.NoError(t, p.Publish("t", drop, die))
		publish(t, p, "t", "stays")
		require.Equal(t, []string{"drop", "die", "stays"}, consume(t, a, 3))
		moved.move(time.Minute + time.Millisecond)
		testkit.LookNow(t, s)
		b := subscribe(t, s, "t", inGroup("b"), ofWindow)
		require.Equal(t, []string{"stays"}, consume(t, b, 1))
		operator := adminOf(t, s)
		require.Eventually(t, func() bool {
			stats, err := operator.Stats(ctx, "t")
			require.NoError(t, err)
			return stats.Groups[0].Dead == 0 && stats.Groups[1].Dead == 1
		}, soon, time.Millisecond)
	})
}
