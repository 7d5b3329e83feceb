package admin_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// long has leases that last for longer than the test.
func long(inFlight int) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) {
		c.MaxInFlight, c.LeaseDuration, c.CloseTimeout = inFlight, testkit.Never, time.Millisecond
	}
}

// holder returns the worker that has messages in hand.
func (s *setup) holder(t *testing.T) admin.Worker {
	t.Helper()
	all := slices.DeleteFunc(s.workers(t), func(w admin.Worker) bool { return w.InHand == 0 })
	require.Len(t, all, 1)
	return all[0]
}

func (s *setup) release(t *testing.T, w admin.Worker) int {
	t.Helper()
	ended, err := s.admin.ReleaseWorker(ctx, w)
	require.NoError(t, err)
	return ended
}

func receiveAll(t *testing.T, messages <-chan *message.Message, n int) (all []*message.Message) {
	t.Helper()
	for range n {
		all = append(all, receive(t, messages))
	}
	return all
}

func TestAReleasedWorkerLosesItsMessagesToOthersAndMayComeBack(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		hangs := s.subscribe(t, "a", long(3), func(c *redisdelay.SubscriberConfig) { c.LeaseDuration = 3 * time.Second })
		require.NoError(t, s.publisher(t).Publish(topic, text("1"), text("2"), text("3")))
		held := receiveAll(t, hangs, 3)
		others := s.subscriber(t, "a", long(3))
		other := testkit.SubscribeTo(t, others, topic)
		eventually(t, func() bool { return len(s.workers(t)) == 2 }, "both show themselves")
		worker := s.holder(t)
		require.Equal(t, 3, s.release(t, worker))
		require.Zero(t, s.release(t, worker), "nothing is left to release")

		again := receiveAll(t, other, 3)
		for i, msg := range again {
			require.Equal(t, fmt.Sprint(i+1), string(msg.Payload), "they come in order")
			require.True(t, testkit.DeliveryOf(t, msg).Redelivered)
			require.Equal(t, 1, testkit.DeliveryOf(t, msg).Number, "one expiry does not count")
		}
		require.Equal(t, 3, s.group(t, "a").Suspects)
		require.Equal(t, 3, s.group(t, "a").Counters.Expired)
		for _, msg := range held {
			testkit.Wait(t, msg.Context().Done(), "the end of the handler's context, by the next extension")
			require.ErrorIs(t, context.Cause(msg.Context()), redisdelay.ErrLeaseLost)
		}
		held[0].Nack()
		held[1].Ack()
		held[2].Ack()
		require.Equal(t, 3, s.group(t, "a").InHand, "late settlements change nothing for the new holder")
		for _, msg := range again {
			msg.Ack()
		}
		eventually(t, func() bool { return s.group(t, "a").Counters.Acked == 3 }, "the new holder's acks count")
		require.Zero(t, s.group(t, "a").Suspects)

		require.NoError(t, others.Close())
		require.NoError(t, s.publisher(t).Publish(topic, text("4")))
		last := receive(t, hangs)
		require.Equal(t, "4", string(last.Payload), "it is not shut out")
		last.Ack()
	})
}

func TestReleasesCountAsExpiries(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		require.NoError(t, s.subscriber(t, "a", long(1), func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 1 }).SubscribeInitialize(topic))
		require.NoError(t, s.publisher(t).Publish(topic, text("poison")))
		for range 3 { // alone after the second
			hangs := s.subscribe(t, "a", long(1), func(c *redisdelay.SubscriberConfig) { c.MaxDeliveries = 1 })
			receive(t, hangs)
			require.Equal(t, 1, s.release(t, s.holder(t)))
		}
		dead := s.list(t, "a", admin.Dead)
		require.Len(t, dead, 1)
		require.Equal(t, "lease expired on the last of 1 deliveries", dead[0].Places[0].Reason)
	})
}

// The place of the active subscription is free once it is released, and a standby takes it.
func TestAReleasedActiveWorkerIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		single := func(c *redisdelay.SubscriberConfig) { c.SingleActive = true }
		hangs := s.subscribe(t, "a", long(2), single)
		require.NoError(t, s.publisher(t).Publish(topic, text("1"), text("2"), text("3")))
		held := receiveAll(t, hangs, 2)
		standby := s.subscribe(t, "a", long(2), single)
		eventually(t, func() bool { return s.group(t, "a").Standby == 1 }, "the other stands by")
		worker, before := s.holder(t), s.group(t, "a").Epoch
		require.True(t, worker.Active)
		require.Equal(t, 2, s.release(t, worker))

		again := receiveAll(t, standby, 2)
		require.Equal(t, "1", string(again[0].Payload))
		require.Equal(t, "2", string(again[1].Payload))
		g := s.group(t, "a")
		require.Greater(t, g.Epoch, before)
		require.NotEqual(t, worker.Subscription, g.Active)
		held[0].Ack()
		held[1].Ack()
		require.Equal(t, 2, s.group(t, "a").InHand)
		again[0].Ack()
		again[1].Ack()
		third := receive(t, standby)
		require.Equal(t, "3", string(third.Payload))
		third.Ack()
	})
}

// A limit of messages at once has room again, so a waiting subscription gets them.
func TestAReleasedWorkerFreesTheLimitOfItsGroup(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		limited := func(c *redisdelay.SubscriberConfig) { c.AtOnce = 2 }
		hangs := s.subscribe(t, "a", long(2), limited)
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(2)...))
		receiveAll(t, hangs, 2)
		other := s.subscribe(t, "a", long(2), limited)
		eventually(t, func() bool { return len(s.workers(t)) == 2 }, "both show themselves")
		require.Equal(t, 2, s.release(t, s.holder(t)))
		for _, msg := range receiveAll(t, other, 2) {
			msg.Ack()
		}
	})
}

func TestAReleaseEndsLeasesOfNoOther(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		one, two := s.subscribe(t, "a", long(1)), s.subscribe(t, "b", long(1))
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		receive(t, one)
		other := receive(t, two)
		workers := s.workers(t)
		require.Equal(t, "a", workers[0].Group)
		for _, w := range workers {
			require.True(t, w.Named(w.Name()) && w.Named(w.Host) && w.Named(w.Subscription))
			require.False(t, w.Named(""))
		}
		require.Equal(t, 1, s.release(t, workers[0]))
		require.NoError(t, other.Context().Err())
		require.Equal(t, 1, s.group(t, "b").InHand)
		other.Ack()

		missing := workers[0]
		missing.Topic = "misspelt"
		require.ErrorIs(t, only(s.admin.ReleaseWorker(ctx, missing)), admin.ErrNotFound)
		missing.Topic, missing.Group = topic, "misspelt"
		require.ErrorIs(t, only(s.admin.ReleaseWorker(ctx, missing)), admin.ErrNotFound)
		require.ErrorIs(t, only(s.admin.ReleaseWorker(ctx, admin.Worker{Topic: topic})), admin.ErrInvalidArgument)
	})
}

// A process has a subscription in each partition. Each is released.
func TestAWorkerOfAPartitionedTopicIsReleased(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		plain, err := partition.Topics(topic, 2)
		require.NoError(t, err)
		for _, name := range plain {
			hangs := testkit.SubscribeTo(t, s.subscriber(t, "a", long(3)), name)
			require.NoError(t, s.publisher(t).Publish(name, messagesOf(3)...))
			receiveAll(t, hangs, 3)
		}
		workers := s.workers(t)
		require.Len(t, workers, 2)
		for _, w := range workers {
			require.Equal(t, 3, s.release(t, w))
		}
	})
}

// A release of many is some short steps.
func TestAReleaseOfThousands(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		const n = 2500
		hangs := s.subscribe(t, "a", long(n))
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(n)...))
		receiveAll(t, hangs, n)
		require.Equal(t, s.group(t, "a").InHand, s.release(t, s.holder(t)))
		after := s.group(t, "a")
		require.Equal(t, n, after.Ready+after.InHand, "the worker may have come back")
		first := s.list(t, "a", admin.Ready)
		require.True(t, slices.IsSortedFunc(first, func(a, b admin.Message) int { return a.Places[0].At.Compare(b.Places[0].At) }))
	})
}
