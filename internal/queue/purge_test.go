package queue_test

import (
	"strconv"
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

// capped is options of a group that keeps so many dead messages, for ever.
func capped(most int) queue.GroupOptions {
	return queue.GroupOptions{MaxDeliveries: 5, Retention: -1, MaxDead: most}
}

// deadPurged returns how many dead messages of a group were purged because they were too many.
func (w *world) deadPurged(group string) int {
	w.t.Helper()
	text := w.Client.HGet(ctx, w.keys.Stats(group), "dead_purged").Val()
	n, _ := strconv.Atoi(text)
	return n
}

// purges expects that the scheduler looks at once, and is told to purge.
func (w *world) purges() {
	w.t.Helper()
	require.NotZero(w.t, w.next(), "the scheduler is to look")
	require.LessOrEqual(w.t, w.next(), w.now())
	turn := w.promote("scheduler|1")
	require.True(w.t, turn.Purge)
	require.LessOrEqual(w.t, turn.Wait, time.Duration(0))
	require.False(w.t, w.purge())
	require.Equal(w.t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"), "nothing is left to do")
}

func TestTheOldestOfTooManyDeadMessagesArePurged(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", capped(2)))
		w.publishNow("1", "2", "3", "4", "5")
		w.promote("scheduler|1")
		for range 2 {
			w.die("a", 1)
			w.pass(time.Millisecond)
			require.Greater(t, w.next(), w.now(), "there are not too many: it is the end of the lease")
		}
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"))
		for range 2 {
			w.die("a", 1)
			w.pass(time.Millisecond)
		}
		require.Equal(t, []string{"1", "2", "3", "4"}, w.dead("a"), "no message is refused")
		w.purges()
		require.Equal(t, []string{"3", "4"}, w.dead("a"))
		require.Equal(t, []string{"3", "4", "5"}, w.stored())
		require.Empty(t, w.field(w.keys.Deliveries("a"), "2"))
		require.Equal(t, 2, w.deadPurged("a"))
		require.Equal(t, 2, must(w.topic.Stats(ctx)).Groups[0].Counter("dead_purged"))
		require.Equal(t, 2, must(w.topic.Stats(ctx)).Groups[0].Options().MaxDead)
		w.unchanged(func() { require.False(t, w.purge()) })
	}, "a")
}

func TestSchedulerIsWokenWhenDeadMessagesAreTooMany(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", capped(1)))
		inbox := w.inbox()
		w.publishNow("x", "y")
		w.promote(inbox.address("holder"))
		w.die("a", 1)
		w.promote(inbox.address("holder"))
		inbox.received()
		w.die("a", 1)
		told := inbox.received()
		require.NotEmpty(t, told)
		require.LessOrEqual(t, wait(t, told[len(told)-1], "holder"), 0.0)
	}, "a")
}

func TestTheLastRegisteredLimitOfDeadMessagesCounts(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", capped(1)))
		n := queue.Budget + 12
		w.publishNow(names("%05d", 0, n)...)
		require.NoError(t, w.topic.Register(ctx, "a", capped(0)))
		w.die("a", n)
		turn := w.promote("scheduler|1")
		require.False(t, turn.Purge)
		require.False(t, w.purge())
		require.Len(t, w.dead("a"), n)

		require.NoError(t, w.topic.Register(ctx, "a", capped(2)))
		require.LessOrEqual(t, w.next(), w.now())
		require.True(t, w.promote("scheduler|1").Purge)
		excess, more, err := w.topic.Purge(ctx)
		require.NoError(t, err)
		require.True(t, more, "a step is bounded")
		require.Equal(t, map[string]int{"a": queue.Budget}, excess)
		require.Len(t, w.dead("a"), n-queue.Budget)
		w.purges()
		require.Equal(t, names("%05d", n-2, n), w.dead("a"))
		require.Equal(t, n-2, w.deadPurged("a"))
	}, "a")
}

func TestDeadMessagesOfExpiredLeasesAreLimited(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 1, Retention: -1, MaxDead: 1}))
		w.publishNow("x", "y")
		s := w.sub("a")
		for _, name := range []string{"x", "y"} {
			for len(w.dead("a")) == 0 || w.dead("a")[len(w.dead("a"))-1] != name {
				require.Len(t, held(s.claim(1, func(c *queue.Claim) { c.Most = 1 })), 1)
				w.travel(time.Hour)
				require.True(t, w.promote("scheduler|1").Expired)
				require.False(t, w.expire())
			}
		}
		w.purges()
		require.Equal(t, []string{"y"}, w.dead("a"))
		require.Equal(t, 1, w.deadPurged("a"))
	}, "a")
}

func TestPurgeOfTooManyKeepsTheBodyForOtherGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", capped(1)))
		w.publishNow("x", "y", "z")
		w.die("a", 3)
		w.die("b", 2)
		require.False(t, w.purge())
		require.Len(t, w.dead("a"), 1)
		require.Len(t, w.dead("b"), 2, "the other group has no limit")
		require.Equal(t, []string{"x", "y", "z"}, w.stored())
		require.Zero(t, w.deadPurged("b"))
		require.Equal(t, []string{"z"}, bodies(w.sub("b").claim(9)))
	}, "a", "b")
}

func TestRetentionDoesNotCountAsTooMany(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 5, Retention: time.Hour, MaxDead: 2}))
		w.publishNow("old", "older", "1", "2", "3")
		w.die("a", 2)
		w.travel(2 * time.Hour)
		w.die("a", 3)
		require.False(t, w.purge())
		require.Len(t, w.dead("a"), 2)
		require.Equal(t, 1, w.deadPurged("a"), "two were past their retention")
	}, "a")
}

func TestRequeuedAndDiscardedMessagesMakeRoom(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", capped(2)))
		g := w.topic.Group("a")
		w.publishNow("1", "2", "3", "4", "5")
		for range 4 {
			w.die("a", 1)
			w.pass(time.Millisecond)
		}
		require.Equal(t, 1, must(g.Requeue(ctx, []string{w.id["1"]})))
		require.Equal(t, 1, must(g.Discard(ctx, []string{w.id["2"]})))
		require.False(t, w.promote("scheduler|1").Purge, "there are no more than two")
		require.False(t, w.purge())
		require.Equal(t, []string{"3", "4"}, w.dead("a"))
		w.die("a", 2)
		require.False(t, w.purge())
		require.Len(t, w.dead("a"), 2)
		require.Zero(t, must(g.Requeue(ctx, []string{w.id["3"]})), "it was purged")
		require.Zero(t, must(g.Discard(ctx, []string{w.id["4"]})))
		require.Equal(t, 2, w.deadPurged("a"))
	}, "a")
}

func TestDeadMessagesOfAStreamAreLimited(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.streaming(queue.StreamOptions{Retention: -1, MaxDead: 2})
		expired := queue.Options{Expiry: queue.Expiry{At: time.UnixMilli(w.now()), Dead: true}}
		w.send(in("1", time.Millisecond).with(expired), in("2", 2*time.Millisecond).with(expired), in("3", 3*time.Millisecond).with(expired))
		w.pass(5 * time.Millisecond)
		turn := w.promote("s|1")
		require.True(t, turn.Purge)
		require.LessOrEqual(t, turn.Wait, time.Duration(0))
		require.False(t, w.purge())
		require.Len(t, w.dead(queue.StreamGroup), 2)
		require.Len(t, w.stored(), 2)
		require.Equal(t, 1, w.deadPurged(queue.StreamGroup))
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("s|1"))
	})
}
