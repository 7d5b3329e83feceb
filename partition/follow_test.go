package partition_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// set sets the number of partitions in Redis. The step before was long ago.
func set(t testing.TB, s redistest.Server, count, before, next int) {
	t.Helper()
	client, err := servers.NewClient(s.Client)
	require.NoError(t, err)
	require.NoError(t, queue.SetPartitioning(context.Background(), client, s.Prefix, topic,
		queue.Partitioning{Count: count, Before: before, Next: next, Since: time.UnixMilli(1)}))
}

func follower(t testing.TB, s redistest.Server) *partition.Publisher {
	t.Helper()
	p := newPublisher(t, s, 0)
	p.Refresh(0)
	return p
}

// named returns a message with a delay ID that is due in an hour.
func named(id, payload string, mode redisdelay.DelayIDMode) *message.Message {
	msg := testkit.Delay(newMessage(payload, ""), time.Hour)
	redisdelay.SetDelayID(msg, id, mode)
	return msg
}

// moves returns a key that moves to another partition when a topic grows.
func moves(t testing.TB, before, after int) string {
	t.Helper()
	for i := 0; ; i++ {
		if key := fmt.Sprint("key ", i); placeOf(t, key, before) != placeOf(t, key, after) {
			return key
		}
	}
}

func TestWithoutANumberNothingIsPublished(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		p := follower(t, s)
		require.ErrorIs(t, p.Publish(topic, newMessage("x", "")), redisdelay.ErrInvalidConfig)
		require.ErrorIs(t, p.Publish("", newMessage("x", "")), redisdelay.ErrInvalidTopic)
		sub := newSubscriber(t, s, 0)
		_, err := sub.Subscribe(context.Background(), topic)
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
		require.ErrorIs(t, sub.SubscribeInitialize(topic), redisdelay.ErrInvalidConfig)
		set(t, s, 2, 0, 0)
		require.NoError(t, p.Publish(topic, newMessage("x", "")))
	})
}

// While the number changes, a message goes where its delay ID is taken.
func TestDelayIDsResolveUnderTheNumberFromBefore(t *testing.T) {
	for _, c := range []struct{ before, after int }{{2, 5}, {5, 2}} {
		t.Run(fmt.Sprint(c.before, " to ", c.after), func(t *testing.T) {
			testkit.Both(t, func(t *testing.T, s redistest.Server) {
				p := follower(t, s)
				key := moves(t, c.before, c.after)
				old, young := placeOf(t, key, c.before), placeOf(t, key, c.after)
				set(t, s, c.before, 0, 0)
				require.NoError(t, p.Publish(topic, named(key, "first", redisdelay.DelayIDReplace)))
				set(t, s, c.after, c.before, 0)
				require.NoError(t, p.Publish(topic, named(key, "second", redisdelay.DelayIDReplace)))
				require.NoError(t, p.Publish(topic, named(key, "third", redisdelay.DelayIDKeep)))
				require.ErrorIs(t, p.Publish(topic, named(key, "fourth", redisdelay.DelayIDReject)), redisdelay.ErrExists)
				n := counts(t, s, 5)
				require.Equal(t, []int{1, 0}, []int{n[old], n[young]})
				require.NoError(t, p.Publish(topic, newMessage("a message without a delay ID", key)))
				require.Equal(t, 1, counts(t, s, 5)[young])

				a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
				require.NoError(t, err)
				m, err := a.Get(context.Background(), topic, admin.ByDelayID(key))
				require.NoError(t, err)
				require.Equal(t, "second", string(m.Payload))
				require.NoError(t, a.Cancel(context.Background(), topic, admin.ByDelayID(key)))
				require.NoError(t, p.Publish(topic, named(key, "fifth", redisdelay.DelayIDReject)))
				n = counts(t, s, 5)
				require.Equal(t, []int{0, 2}, []int{n[old], n[young]}, "a delay ID that is free goes to the new partition")
			})
		})
	}
}

// A Subscribe takes new partitions in, and leaves those that are not used any more. Whatever is
// published meanwhile comes.
func TestASubscribeFollowsTheNumberOfPartitions(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		ctx := context.Background()
		p, sub := follower(t, s), newSubscriber(t, s, 0, inFlight(10))
		sub.Follow(5 * time.Millisecond)
		next := func(n int) admin.Partitioning {
			done, err := a.SetPartitions(ctx, topic, n)
			require.NoError(t, err)
			return done
		}
		change := func(n int) {
			for {
				is := next(n)
				if is.Done() {
					require.Equal(t, n, is.Partitions)
					return
				}
				set(t, s, is.Partitions, is.Before, is.Next) // as if the publishers had had the time to follow
				time.Sleep(time.Millisecond)
			}
		}
		require.True(t, next(2).Done())
		messages := testkit.SubscribeTo(t, sub, topic)
		publish := func() {
			require.NoError(t, p.Publish(topic, messagesForAll(t, 5)...))
			testkit.Consume(t, messages, 5)
		}
		publish()
		require.Equal(t, 5, next(5).Next)
		publish()
		change(5)
		publish()
		change(2)
		testkit.Eventually(t, func() bool {
			stats, err := a.Stats(ctx, topics(t, topic, 5)[4])
			require.NoError(t, err)
			return !stats.Groups[0].Subscribed
		}, "partition 4 is still read")
		require.Equal(t, topics(t, topic, 5)[2:], next(2).Unused)
		publish()
	})
}

func TestTheNumberStaysInUseWhileRedisDoesNotTellIt(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		p := follower(t, s)
		set(t, s, 2, 0, 0)
		require.NoError(t, p.Publish(topic, messagesForAll(t, 2)...))
		require.NoError(t, s.Client.HSet(context.Background(), s.Prefix+":partitions", topic, "many").Err())
		require.NoError(t, p.Publish(topic, messagesForAll(t, 2)...))
		require.Equal(t, []int{2, 2}, counts(t, s, 2))
	})
}
