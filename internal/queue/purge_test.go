package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// die has messages die that are the next in the group.
func (w *world) die(group string, n int) {
	w.t.Helper()
	s := w.sub(group)
	for n > 0 {
		var failures []queue.Failure
		for _, m := range held(s.claim(min(n, 1000))) {
			failures = append(failures, failed(m, dead))
		}
		require.NotEmpty(w.t, failures)
		require.Equal(w.t, len(failures), s.nack(failures...))
		n -= len(failures)
	}
}

func TestDeadMessagesAreForgottenAfterTheirRetention(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		short := queue.GroupOptions{MaxDeliveries: 5, Retention: 20 * time.Millisecond}
		require.NoError(t, w.topic.Register(ctx, "a", short))
		w.publish(now("x").with(queue.Options{MaxDeliveries: 3}), now("y"))
		w.die("a", 1)
		died := int64(w.score(w.keys.Dead("a"), "x"))
		for {
			before := w.now()
			turn := w.promote("scheduler|1")
			require.False(t, w.purge())
			if len(w.dead("a")) == 0 {
				require.GreaterOrEqual(t, w.now(), died+20)
				break
			}
			require.Less(t, before, died+20)
			if w.now() < died+20 {
				require.False(t, turn.Purge)
			}
			w.passUntil(before + 1)
		}
		require.Equal(t, []string{"y"}, w.stored())
		require.Empty(t, w.field(w.keys.Options(), "x"))
		require.Empty(t, w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, []string{"y"}, w.ready("a"))
	})
}

func TestSchedulerIsToldToPurge(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		w.die("a", 1)
		require.False(t, w.promote("scheduler|1").Purge)
		w.travel(time.Hour)
		turn := w.promote("scheduler|1")
		require.True(t, turn.Purge)
		require.Zero(t, turn.Wait)
		require.False(t, w.purge())
		require.Equal(t, []string{"y"}, w.stored())
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"))
		w.unchanged(func() { require.False(t, w.purge()) })
	}, "a")
}

func TestPurgeKeepsTheBodyForOtherGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		for _, g := range []string{"a", "b"} {
			require.Equal(t, []string{"x", "y"}, w.stored())
			w.die(g, 2)
			w.travel(2 * time.Hour)
			require.False(t, w.purge())
		}
		require.Equal(t, []string{"x", "y"}, bodies(w.sub("c").claim(2)))
		require.Equal(t, "1", w.field(w.keys.Refs(), "x"))
	}, "a", "b", "c")
}

func TestPurgeOfTheLastGroupsTogether(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		w.die("a", 2)
		w.die("b", 2)
		w.travel(time.Hour)
		require.False(t, w.purge())
		require.Empty(t, w.stored())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Refs()).Val())
	}, "a", "b")
}

func TestPurgeOfMoreThanTenThousand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		w.publishNow(names("%05d", 0, n)...)
		w.die("a", n)
		w.travel(2 * time.Hour)
		calls := 1
		for ; w.purge(); calls++ {
			require.Len(t, w.dead("a"), n-calls*queue.Budget)
		}
		require.Equal(t, n/queue.Budget+1, calls)
		require.Empty(t, w.stored())
	}, "a")
}

func TestTheOnlyGroupWithDeadMessagesGetsAWholeStep(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const more = 10
		n := queue.Budget + more
		w.publishNow(names("%05d", 0, n)...)
		w.die("b", n)
		w.travel(2 * time.Hour)
		require.True(t, w.purge())
		require.Len(t, w.dead("b"), more)
		require.False(t, w.purge())
		require.Empty(t, w.dead("b"))
	}, "a", "b", "c")
}

func TestPurgeOfGroupsThatTogetherHaveMoreThanOneStepDeletes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := queue.Budget * 3 / 4
		w.publishNow(names("%05d", 0, n)...)
		w.die("a", n)
		w.die("b", n)
		w.travel(2 * time.Hour)
		require.True(t, w.purge())
		require.Len(t, append(w.dead("a"), w.dead("b")...), 2*n-queue.Budget)
		require.False(t, w.purge())
		require.Empty(t, append(w.dead("a"), w.dead("b")...))
	}, "a", "b", "c")
}

func TestPurgeAfterAGroupWasRegistered(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.die("a", 1)
		w.travel(2 * time.Hour)
		require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
		r := w.record()
		require.False(t, w.purge())
		require.Len(t, r.take(), 3, "stale, read again, done")
		require.Empty(t, w.dead("a"))
	}, "a")
}

func TestSchedulingATopicWithoutGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.False(t, w.expire())
		require.False(t, w.purge())
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"))
		require.Equal(t, []string{"x"}, w.pending())
	})
}
