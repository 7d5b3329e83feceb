package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// lapse has all leases of the group's messages run out.
func (w *world) lapse(s *sub, want ...string) {
	w.t.Helper()
	require.Equal(w.t, want, bodies(s.claim(len(want), lease(time.Millisecond))))
	w.pass(3 * time.Millisecond)
	require.True(w.t, w.promote("scheduler|1").Expired)
	require.False(w.t, w.expire())
	require.False(w.t, w.promote("scheduler|1").Expired)
}

func TestExpiredLeaseBringsTheMessageBackInItsPlace(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		s := w.sub("a")
		due := w.Client.LRange(ctx, w.keys.Ready("a"), 0, -1).Val()
		w.lapse(s, "1", "2", "3")
		require.Equal(t, due, w.Client.LRange(ctx, w.keys.Ready("a"), 0, -1).Val())
		require.Empty(t, w.unack("a"))
		require.Empty(t, w.Client.HGetAll(ctx, w.keys.Leases("a")).Val())
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("b"))
		for i := range 3 {
			require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), fmt.Sprint(i+1)), "no delivery is counted")
		}
		require.Empty(t, w.field(w.keys.Deliveries("a"), "4"))
	}, "a", "b")
}

func TestExpiriesSuspectsAndDeathsAreCounted(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 1, Retention: time.Hour}))
		w.publishNow("x")
		s := w.sub("a")
		w.lapse(s, "x")
		require.Equal(t, map[string]string{"expired": "1", "suspects": "1", "returned": "1"}, w.counted("a"))
		w.lapse(s, "x")
		require.Equal(t, map[string]string{"expired": "2", "suspects": "1", "returned": "2"}, w.counted("a"))
		w.lapse(s, "x") // alone, so it counts
		require.Equal(t, map[string]string{"expired": "3", "suspects": "1", "returned": "2", "dead_lease": "1"}, w.counted("a"))
	}, "a")
}

func TestUnexpiredLeasesStay(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		s := w.sub("a")
		s.claim(1, lease(time.Millisecond))
		s.claim(1, lease(time.Hour))
		w.pass(3 * time.Millisecond)
		require.False(t, w.expire())
		require.Equal(t, []string{"1"}, w.ready("a"))
		require.Equal(t, []string{"2"}, w.unack("a"))
		w.unchanged(func() { require.False(t, w.expire()) })
	}, "a")
}

func TestExpiriesOfAMessageHeldAloneCountAndTheLastIsItsDeath(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		limited := queue.GroupOptions{MaxDeliveries: 2, Retention: time.Hour}
		require.NoError(t, w.topic.Register(ctx, "a", limited))
		w.publishNow("x", "y")
		s := w.sub("a")
		w.lapse(s, "x", "y")
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "x"))
		w.lapse(s, "x")
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "x"), "it need not have been alone")
		w.lapse(s, "x")
		require.Equal(t, "1 d -", w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		before := w.now()
		w.lapse(s, "x")
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.dead("a"))
		require.Equal(t, "2 d - lease expired on the last of 2 deliveries", w.field(w.keys.Deliveries("a"), "x"))
		died := int64(w.score(w.keys.Dead("a"), "x"))
		require.GreaterOrEqual(t, died, before)
		require.LessOrEqual(t, died, w.now())
		require.Equal(t, died+3600_000, w.next())
		require.Equal(t, []string{"x", "y"}, w.stored())
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "y"), "its neighbour is not worse off")
	})
}

func TestMessagesMayHaveALimitOfTheirOwn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		limited := queue.GroupOptions{MaxDeliveries: 2, Retention: time.Hour}
		require.NoError(t, w.topic.Register(ctx, "a", limited))
		w.publish(now("one").with(queue.Options{MaxDeliveries: 1}))
		s := w.sub("a")
		for range 3 {
			w.lapse(s, "one")
		}
		require.Equal(t, []string{"one"}, w.dead("a"))
		require.Equal(t, "1 d - lease expired on the last of 1 deliveries", w.field(w.keys.Deliveries("a"), "one"))

		w.publish(now("endless").with(queue.Options{MaxDeliveries: -1}))
		for range 5 {
			w.lapse(s, "endless")
		}
		require.Equal(t, []string{"endless"}, w.ready("a"))
		require.Equal(t, "3 d -", w.field(w.keys.Deliveries("a"), "endless"))
	})
}

func TestGroupWithoutLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: -1, Retention: time.Hour}))
		w.publishNow("x")
		s := w.sub("a")
		for range 5 {
			w.lapse(s, "x")
		}
		require.Equal(t, "3 d -", w.field(w.keys.Deliveries("a"), "x"))
	})
}

func TestEachGroupHasItsOwnLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 3, Retention: time.Hour}))
		require.NoError(t, w.topic.Register(ctx, "b", queue.GroupOptions{MaxDeliveries: 1, Retention: time.Hour}))
		w.publishNow("x")
		a, b := w.sub("a"), w.sub("b")
		for range 3 {
			w.lapse(a, "x")
			w.lapse(b, "x")
		}
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.dead("b"))
	})
}

func TestSuspicionEndsWithANackAndOutlastsARelease(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], func(f *queue.Failure) { f.DelayedFor = "15s" })))
		w.lapse(s, "x")
		require.Equal(t, "1 d 15s", w.field(w.keys.Deliveries("a"), "x"))
		claimed := s.claim(1)
		require.Equal(t, 1, claimed.Messages[0].Expiries)
		require.Equal(t, 1, s.release(held(claimed)...))
		claimed = s.claim(1)
		require.Equal(t, 1, claimed.Messages[0].Expiries)
		require.Equal(t, 1, s.nack(failed(held(claimed)[0])))
		require.Equal(t, "2 - 15s", w.field(w.keys.Deliveries("a"), "x"))
	}, "a")
}

// Redis searches a small hash from end to end for each field, which is slow for many fields.
func TestExpireOfManyMakesTablesOfItsHashes(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		for n, table := range map[int]bool{16: false, 17: true} {
			w := newWorld(t, s, fmt.Sprint("topic", n), "a")
			w.publishNow(names("%03d", 1, n+1)...)
			w.sub("a").claim(n, lease(time.Millisecond))
			w.pass(5 * time.Millisecond)
			w.expire()
			for _, key := range []string{w.keys.Deliveries("a"), w.keys.Suspects("a")} {
				require.EqualValues(t, n, w.Client.HLen(ctx, key).Val(), key)
				require.Equal(t, table, w.Client.ObjectEncoding(ctx, key).Val() == "hashtable", key)
			}
		}
	})
}

func TestExpireOfMoreThanTenThousand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		w.publishNow(names("%05d", 0, n)...)
		s := w.sub("a")
		for i := range (n + 999) / 1000 {
			s.claim(1000, lease(time.Hour+time.Duration(i)*time.Second))
		}
		w.travel(2 * time.Hour)
		calls := 1
		for ; w.expire(); calls++ {
			require.LessOrEqual(t, int(w.Client.LLen(ctx, w.keys.Ready("a")).Val()), calls*queue.Budget)
		}
		require.Equal(t, n/queue.Budget+1, calls)
		sameOrder(t, names("%05d", 0, n), w.ready("a"))
		require.Empty(t, w.unack("a"))
	}, "a")
}

func TestExpireIsBounded(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		all := names("%04d", 0, 1200)
		w.publishNow(all...)
		groups := []string{"a", "b", "c"}
		for _, group := range groups {
			w.sub(group).claim(600, lease(time.Millisecond))
			w.sub(group).claim(600, lease(time.Millisecond))
		}
		w.pass(5 * time.Millisecond)
		for step, back := range [][]int{{queue.Budget, 0, 0}, {1200, queue.Budget, 0}, {1200, 1200, queue.Budget}, {1200, 1200, 1200}} {
			require.Equal(t, step < 3, w.expire())
			for i, group := range groups {
				require.Len(t, w.ready(group), back[i], "step %d, group %s", step, group)
			}
		}
		for _, group := range groups {
			sameOrder(t, all, w.ready(group))
		}
	}, "a", "b", "c")
}

// The messages of one subscription come back in one step, with any number of groups. So the next
// claim gets the first of them.
func TestExpireTakesBackWhatASubscriptionHeldInOneStep(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%03d", 0, 800)...)
		w.sub("b").claim(800, lease(time.Millisecond))
		w.pass(5 * time.Millisecond)
		w.expire()
		require.Equal(t, []string{"000"}, bodies(w.sub("b").claim(1)))
	}, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
}

// Leases that end one after the other: what comes back later, and is newer, is behind all that came
// before.
func TestExpireAgainWithManyGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%03d", 0, 400)...)
		s := w.sub("a")
		s.claim(200, lease(time.Minute))
		s.claim(200, lease(2*time.Minute))
		for range 2 {
			w.travel(time.Minute)
			for w.expire() {
			}
		}
		sameOrder(t, names("%03d", 0, 400), w.ready("a"))
	}, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
}

func TestExpireWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "deadly")
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["deadly"], "4 d -")
		w.suspect("a", 2, "deadly")
		s := w.sub("a")
		s.claim(2, lease(time.Millisecond))
		s.claim(1, lease(time.Millisecond))
		w.pass(5 * time.Millisecond)
		inbox := w.inbox()
		inbox.wait("a", "x", "y", "z")
		w.expire()
		require.Equal(t, []string{"deadly"}, w.dead("a"))
		require.Equal(t, []string{"x", "y"}, inbox.received())
	}, "a")
}

func TestExpireAfterAGroupWasRegistered(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.sub("a").claim(1, lease(time.Millisecond))
		require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
		w.pass(3 * time.Millisecond)
		r := w.record()
		require.False(t, w.expire())
		require.Len(t, r.take(), 3, "stale, read again, done")
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

// A process that crashes with a dead letter that was requeued does not make it what it was before.
func TestRequeuedMessageStaysMarkedWhenItsLeaseEnds(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.die("a", 1)
		require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})))
		for i, want := range []string{"0 r -", "0 r -", "0 r -", "1 r -"} {
			w.promote("scheduler|1")
			claimed := w.sub("a").claim(1).Messages
			require.Len(t, claimed, 1)
			require.True(t, claimed[0].Requeued)
			require.Equal(t, i, claimed[0].Expiries)
			require.Equal(t, want, w.field(w.keys.Deliveries("a"), "x"))
			w.travel(2 * time.Hour)
			w.expire()
		}
		s := w.sub("a")
		require.Empty(t, s.claim(1, busy).Messages, "it has to be alone")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], after(time.Minute))))
		require.Equal(t, "3 r -", w.field(w.keys.Deliveries("a"), "x"))
	}, "a")
}

// A process that claimed twice before it died, and has not extended its leases yet, has leases that
// end one after the other.
func TestMessagesClaimedOneAfterTheOtherComeBackInOrder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5", "6", "7")
		s := w.sub("a")
		require.Equal(t, []string{"1", "2"}, bodies(s.claim(2, lease(time.Minute))))
		require.Equal(t, []string{"3", "4"}, bodies(s.claim(2, lease(2*time.Minute))))
		require.Equal(t, []string{"5"}, bodies(s.claim(1, lease(3*time.Minute))))
		w.travel(time.Minute)
		require.False(t, w.expire())
		require.Equal(t, []string{"1", "2", "6", "7"}, w.ready("a"))
		other := w.sub("a")
		require.Equal(t, []string{"1"}, bodies(other.claim(1)))
		w.travel(time.Minute)
		require.False(t, w.expire())
		require.Equal(t, []string{"2", "3", "4", "6", "7"}, w.ready("a"))
		w.travel(time.Minute)
		require.False(t, w.expire())
		require.Equal(t, []string{"2", "3", "4", "5", "6", "7"}, w.ready("a"))
		stats := w.Client.HGet(ctx, w.keys.Stats("a"), "returned").Val()
		require.Equal(t, "9", stats, "2, then 2 behind 1, then 1 behind 3: an audit is to look at so many")
	}, "a")
}

func TestRecordThatCannotBeReadLosesNoMessage(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		for _, record := range []string{"", "-", "x e -"} {
			claimed := held(s.claim(3, lease(time.Minute)))
			require.Len(t, claimed, 3)
			w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["2"], record)
			w.travel(time.Minute)
			require.False(t, w.expire())
			require.Equal(t, []string{"1", "2", "3"}, w.ready("a"), record)
			require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "2"))
			w.Client.Del(ctx, w.keys.Deliveries("a"))

			claimed = held(s.claim(3))
			w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["2"], record)
			require.Equal(t, 3, s.nack(failed(claimed[0]), failed(claimed[1]), failed(claimed[2])))
			require.Equal(t, []string{"1", "2", "3"}, w.ready("a"), record)
			require.Equal(t, "1 - -", w.field(w.keys.Deliveries("a"), "2"))
			w.Client.Del(ctx, w.keys.Deliveries("a"))
		}
	}, "a")
}
