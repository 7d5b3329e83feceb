package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func signing(address string) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Worker = queue.Sign(address, time.Minute) }
}

func (w *world) workers() []admin.Worker {
	w.t.Helper()
	a, err := admin.New(admin.Config{Client: w.Client, KeyPrefix: w.Prefix})
	require.NoError(w.t, err)
	workers, err := a.Workers(ctx, w.topic.Name)
	require.NoError(w.t, err)
	return workers
}

// until is when a subscription counts as gone.
func (w *world) until(subscription string) time.Time {
	w.t.Helper()
	return queue.ReadWorker(subscription, w.Client.HGet(ctx, w.keys.Workers("a"), subscription).Val()).Until
}

func TestSubscriptionsShowThemselves(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		require.Empty(t, w.workers())
		claimed := s.ask(s.query(2, signing("own prefix:mailbox:P|1")))
		now := queue.LeasedAt(claimed.Messages[0].Token)
		workers := w.workers()
		require.Len(t, workers, 1)
		first := workers[0]
		require.Equal(t, "a", first.Group)
		require.Equal(t, s.id, first.Subscription)
		require.Equal(t, "own prefix:mailbox:P|1", first.Address)
		require.NotEmpty(t, first.Host)
		require.NotZero(t, first.PID)
		require.NotEmpty(t, first.Program)
		require.Equal(t, now, first.Since)
		require.Equal(t, now, first.Seen)
		require.Equal(t, now.Add(120*time.Second), w.until(s.id))
		require.Equal(t, 2, first.InHand)
		require.Equal(t, now, first.Oldest)

		w.pass(3 * time.Millisecond)
		extend := s.group.ExtendCalls(held(claimed), time.Hour)
		s.group.Attend(extend[0], s.id, queue.Sign("other|1", 10*time.Minute))
		w.do(extend...)
		lost, err := queue.ReadLost(extend[0])
		require.NoError(t, err)
		require.Empty(t, lost)
		second := w.workers()[0]
		require.Equal(t, first.Since, second.Since)
		require.True(t, second.Seen.After(first.Seen))
		require.Equal(t, 11*time.Minute, w.until(s.id).Sub(second.Seen), "its leases last longer")
		require.Equal(t, "other|1", second.Address)

		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		paused := w.sub("b")
		paused.claim(1, signing("b|1"))
		require.Len(t, w.workers(), 2)
		require.NoError(t, s.group.SignOff(ctx, s.id))
		workers = w.workers()
		require.Len(t, workers, 2)
		require.Equal(t, admin.Worker{Topic: "topic", Subscription: s.id, Group: "a", InHand: 2, Oldest: now}, workers[0],
			"it still has messages")
		require.Equal(t, paused.id, workers[1].Subscription)
	}, "a", "b")
}

// A subscription whose process ended without a word is gone after a while. The next new one removes
// it from Redis.
func TestWorkersThatAreGone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		old := w.sub("a")
		old.claim(1, signing("old|1"))
		gone := w.Client.HGet(ctx, w.keys.Workers("a"), old.id).Val()
		at := w.now()
		require.NoError(t, w.Client.HSet(ctx, w.keys.Workers("a"), old.id,
			fmt.Sprintf("%d %d %d", at-100_000, at-91_000, at-1000)+gone[3*13+2:]).Err())
		require.Empty(t, w.workers())
		require.True(t, w.Client.HExists(ctx, w.keys.Workers("a"), old.id).Val())
		w.sub("a").claim(1, signing("new|1"))
		require.Len(t, w.workers(), 1)
		require.False(t, w.Client.HExists(ctx, w.keys.Workers("a"), old.id).Val())
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Workers("a")).Val())
	}, "a")
}

func TestSecondLaneIsOfItsSubscription(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		s := w.sub("a")
		s.claim(1, signing("x|1"))
		other := w.sub("a")
		other.id = queue.SecondLane(s.id)
		other.claim(1)
		workers := w.workers()
		require.Len(t, workers, 1)
		require.Equal(t, 2, workers[0].InHand)
	}, "a")
}
