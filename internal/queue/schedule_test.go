package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Promote: what is due.

func TestMessagesAreReadyWhenTheyAreDueAndNotEarlier(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", 20*time.Millisecond), in("later", time.Hour))
		due := int64(w.score(w.keys.Pending(), "x"))
		for {
			before := w.now()
			turn := w.promote("scheduler|1")
			if len(w.ready("a")) > 0 {
				require.GreaterOrEqual(t, w.now(), due)
				break
			}
			require.Less(t, before, due)
			require.LessOrEqual(t, turn.Wait, time.Duration(due-before)*time.Millisecond)
			require.Equal(t, due, w.next())
			w.pass(time.Millisecond)
		}
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.ready("b"))
		require.Equal(t, "2", w.field(w.keys.Refs(), "x"))
		require.Empty(t, w.field(w.keys.Refs(), "later"))
		require.Equal(t, []string{"later"}, w.pending())
		require.Equal(t, int64(w.score(w.keys.Pending(), "later")), w.next())
		require.Equal(t, due, w.sub("a").claim(1).Messages[0].Due.UnixMilli())
	}, "a", "b")
}

func TestWaitIsExactToTheMicrosecond(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that stands still")
		}
		clock := time.UnixMilli(w.now())
		w.publish(at("x", clock.UnixMilli()+10))
		for _, c := range []struct{ passed, wait time.Duration }{
			{0, 10 * time.Millisecond},
			{time.Microsecond, 9999 * time.Microsecond},
			{9999 * time.Microsecond, time.Microsecond},
		} {
			w.Mini.SetTime(clock.Add(c.passed))
			require.Equal(t, queue.Turn{Role: queue.Holder, Wait: c.wait}, w.promote("scheduler|1"))
			require.Empty(t, w.ready("a"))
		}
		w.Mini.SetTime(clock.Add(10 * time.Millisecond))
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"))
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

func TestPromotedMessagesAreInOrderOfDueTimeThenID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("first")
		due := w.now() + time.Hour.Milliseconds()
		w.publish(at("3", due+2), at("1", due), at("2", due), at("4", due+2), at("0", due-1))
		w.travel(2 * time.Hour)
		w.promote("scheduler|1")
		require.Equal(t, []string{"first", "0", "1", "2", "3", "4"}, w.ready("a"))
	}, "a")
}

// retryAt has the messages retried by a group at these times.
func (w *world) retryAt(group string, due map[string]int64) {
	w.t.Helper()
	s := w.sub(group)
	var failures []queue.Failure
	claimed := s.claim(1000)
	for _, m := range held(claimed) {
		failures = append(failures, failed(m, func(f *queue.Failure) {
			f.Retry = queue.At(time.UnixMilli(due[string(m.Body)]))
		}))
	}
	require.Len(w.t, failures, len(due))
	require.Equal(w.t, len(due), s.nack(failures...))
}

func TestRetriesAndFreshMessagesAreMerged(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		due := w.now() + time.Hour.Milliseconds()
		w.publishNow("r1", "r2", "r3", "r4")
		w.retryAt("a", map[string]int64{"r1": due + 5, "r2": due, "r3": due + 1, "r4": due + 9})
		require.Equal(t, []string{"r1", "r2", "r3", "r4"}, bodies(w.sub("b").claim(4)))
		w.publish(at("f1", due), at("f2", due+1), at("f3", due+1), at("f4", due+7))
		w.travel(2 * time.Hour)
		w.promote("scheduler|1")
		require.Equal(t, []string{"r2", "f1", "r3", "f2", "f3", "r1", "f4", "r4"}, w.ready("a"))
		require.Equal(t, []string{"f1", "f2", "f3", "f4"}, w.ready("b"))
		require.Empty(t, w.retry("a"))
		require.Empty(t, w.pending())
		claimed := w.sub("a").claim(6).Messages
		require.Equal(t, 5*time.Millisecond, claimed[5].Due.Sub(claimed[0].Due), "the retry's own due time")
	}, "a", "b")
}

func TestNothingPassesWhatHasToStayForTheNextCall(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		// 900 retries of a interleave with 3000 fresh ones; each call moves at most a thousand of each.
		w.publishNow(names("r%04d", 0, 900)...)
		due := w.now() + time.Hour.Milliseconds()
		retries, want := map[string]int64{}, []string{}
		for i := range 900 {
			retries[fmt.Sprintf("r%04d", i)] = due + int64(i)
		}
		w.retryAt("a", retries)
		var fresh []message
		for i := range 3000 {
			fresh = append(fresh, at(fmt.Sprintf("f%04d", i), due+int64(i/3)))
			if i%3 == 0 && i < 2700 {
				want = append(want, fmt.Sprintf("r%04d", i/3))
			}
			want = append(want, fresh[i].name)
		}
		w.publish(fresh...)
		w.travel(2 * time.Hour)
		ready := 0
		for calls := 1; w.anyDue(); calls++ {
			w.promote("scheduler|1")
			got := w.ready("a")
			sameOrder(t, want[:len(got)], got)
			require.Greater(t, len(got), ready)
			require.LessOrEqual(t, len(got)-ready, 2*queue.Budget)
			ready = len(got)
			require.LessOrEqual(t, calls, 5)
		}
		sameOrder(t, want, w.ready("a"))
	}, "a")
}

func TestNothingPassesARetryThatHasToStay(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		// Three groups share a budget of 1000: 333 each. Group b has 400 retries that are all older
		// than what is fresh, so nothing fresh moves in any group before they have.
		w.publishNow(names("r%04d", 0, 400)...)
		due := w.now() + time.Hour.Milliseconds()
		retries := map[string]int64{}
		for i := range 400 {
			retries[fmt.Sprintf("r%04d", i)] = due
		}
		w.retryAt("b", retries)
		w.publish(at("fresh", due+1))
		w.travel(2 * time.Hour)
		require.Zero(t, w.promote("scheduler|1").Wait)
		sameOrder(t, names("r%04d", 0, 333), w.ready("b"))
		require.Equal(t, []string{"fresh"}, w.pending())
		w.promoteAll()
		sameOrder(t, append(names("r%04d", 0, 400), "fresh"), w.ready("a"))
		sameOrder(t, append(names("r%04d", 0, 400), "fresh"), w.ready("b"))
	}, "a", "b", "c")
}

func TestPromoteOfMoreThanTenThousand(t *testing.T) {
	for _, groups := range [][]string{{"a"}, {"a", "b", "c"}} {
		t.Run(fmt.Sprint(len(groups)), func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, w *world) {
				n := w.many()
				due := w.now() + time.Hour.Milliseconds()
				messages := make([]message, n)
				for i := range messages {
					messages[i] = at(fmt.Sprintf("%05d", i), due+int64(i/1000))
				}
				w.publish(messages...)
				w.travel(2 * time.Hour)
				ready := int64(0)
				for w.anyDue() {
					turn := w.promote("scheduler|1")
					now := w.Client.LLen(ctx, w.keys.Ready("a")).Val()
					require.Greater(t, now, ready)
					require.LessOrEqual(t, (now-ready)*int64(len(groups)), int64(queue.Budget))
					ready = now
					require.Equal(t, now < int64(n), turn.Wait == 0)
				}
				for _, g := range groups {
					sameOrder(t, names("%05d", 0, n), w.ready(g))
				}
			}, groups...)
		})
	}
}

func TestPromotingTwiceMovesNothingMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Millisecond), in("later", time.Hour))
		w.passUntil(int64(w.score(w.keys.Pending(), "x")))
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute)
		w.do(call)
		require.Equal(t, []string{"x"}, w.ready("b"))
		w.unchanged(func() { w.do(call) })
	}, "a", "b")
}

func TestPromoteWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", 5*time.Millisecond), in("y", 5*time.Millisecond), in("later", time.Hour))
		inbox := w.inbox()
		inbox.wait("a", "1", "2", "3")
		inbox.wait("b", "4")
		w.passUntil(int64(w.score(w.keys.Pending(), "y")))
		w.promote("scheduler|1")
		require.ElementsMatch(t, []string{"1", "2", "4"}, inbox.received())
		require.Equal(t, []string{inbox.address("3")}, w.waiters("a"))
	}, "a", "b")
}

func TestPromoteAfterAGroupWasRegistered(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Millisecond))
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.NoError(t, queue.NewTopic(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
		w.pass(5 * time.Millisecond)
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute)
		w.unchanged(func() { w.do(call) })
		_, stale, err := w.topic.ReadTurn(call, groups)
		require.NoError(t, err)
		require.True(t, stale)
		w.promote("scheduler|1")
		require.Equal(t, []string{"x"}, w.ready("b"))
	}, "a")
}

func TestSchedulingAfterTheServerLostItsData(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.NoError(t, w.Client.FlushAll(ctx).Err())
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute)
		w.do(call)
		require.Empty(t, w.dump())
		_, stale, err := w.topic.ReadTurn(call, groups)
		require.NoError(t, err)
		require.True(t, stale)
		require.False(t, w.expire())
		require.False(t, w.purge())
		w.do(w.topic.ResignCall("scheduler|1"))
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("scheduler|1"))
	}, "a")
}

// Promote: the scheduling lease.

func TestOneHolderOneStandbyAndOthers(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		waits := func(turn queue.Turn, want time.Duration) {
			t.Helper()
			if w.Mini != nil {
				require.Equal(t, want, turn.Wait)
			}
			require.InDelta(t, want, turn.Wait, float64(time.Minute))
		}
		for range 2 {
			turn := w.promote("s|1")
			require.Equal(t, queue.Holder, turn.Role)
			waits(turn, time.Hour)
			turn = w.promote("s|2")
			require.Equal(t, queue.Standby, turn.Role)
			waits(turn, time.Hour+1001*time.Millisecond)
			require.Equal(t, queue.Turn{Role: queue.Other, Wait: -1}, w.promote("s|3"))
			require.Equal(t, queue.Turn{Role: queue.Other, Wait: -1}, w.promote("s|4"))
		}
		require.Equal(t, "s|1", w.Client.HGet(ctx, w.keys.Scheduler(), "holder").Val())
		require.Equal(t, "s|2", w.Client.HGet(ctx, w.keys.Scheduler(), "standby").Val())
	}, "a")
}

func TestStandbyThatIsNotSeenIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.promote("s|1")
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		w.do(w.topic.PromoteCall(groups, "s|2", time.Millisecond))
		w.pass(3 * time.Millisecond)
		require.Equal(t, queue.Turn{Role: queue.Standby, Wait: -1}, w.promote("s|3"))
		require.Equal(t, queue.Other, w.promote("s|2").Role)
		require.Equal(t, queue.Holder, w.promote("s|1").Role)
	}, "a")
}

func TestOnlyTheHolderMovesWhatIsDueUntilItIsLate(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		w.promote("s|holder")
		w.promote("s|standby")
		w.travel(time.Hour + time.Millisecond)
		due := int64(w.score(w.keys.Pending(), "x"))
		for w.now() < due+1000 {
			turn := w.promote("s|standby")
			if turn.Role == queue.Holder {
				require.Greater(t, w.now(), due+1000, "the real clock went on")
				break
			}
			require.Equal(t, queue.Standby, turn.Role)
			require.Equal(t, queue.Other, w.promote("s|other").Role)
			require.Empty(t, w.ready("a"))
			w.pass(333 * time.Millisecond)
		}
		w.passUntil(due + 1001)
		turn := w.promote("s|standby")
		require.Equal(t, queue.Holder, turn.Role, "a second after a missed event anyone may take the lease")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, map[string]string{"holder": "s|standby"}, w.Client.HGetAll(ctx, w.keys.Scheduler()).Val())
		require.Equal(t, queue.Standby, w.promote("s|holder").Role, "the late one is not the holder any more")
	}, "a")
}

func TestAnyoneMayTakeTheLeaseOfALateHolder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		w.promote("s|holder")
		w.promote("s|standby")
		w.travel(time.Hour + 2*time.Second)
		require.Equal(t, queue.Holder, w.promote("s|other").Role)
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, queue.Standby, w.promote("s|standby").Role)
	}, "a")
}

func TestIdleTopicKeepsItsHolder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, w.promote("s|1"))
		require.Equal(t, queue.Turn{Role: queue.Standby, Wait: -1}, w.promote("s|2"))
		w.pass(20 * time.Millisecond)
		require.Equal(t, queue.Standby, w.promote("s|2").Role)
		require.Zero(t, w.next())
	}, "a")
}

func TestEveryKindOfEventIsWaitedFor(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		s := w.sub("b")
		event := func(want int64) {
			t.Helper()
			require.Equal(t, want, w.next(), "told by what made it")
			require.NoError(t, w.Client.HDel(ctx, w.keys.Scheduler(), "next").Err())
			w.promote("s|1")
			require.Equal(t, want, w.next(), "found by the scheduler")
		}
		w.publishNow("dead", "retried", "leased", "leased, too")
		claimed := s.claim(4, lease(10*time.Hour))
		w.promote("s|1")
		event(int64(w.score(w.keys.Unack("b"), "dead")))

		s.nack(failed(held(claimed)[0], dead))
		event(int64(w.score(w.keys.Dead("b"), "dead")) + standard.Retention.Milliseconds())

		s.nack(failed(held(claimed)[1], after(30*time.Minute)))
		event(int64(w.score(w.keys.Retry("b"), "retried")))

		w.publish(in("pending", 10*time.Minute))
		event(int64(w.score(w.keys.Pending(), "pending")))
	}, "a", "b")
}

func TestWhatWasClaimedTogetherComesBackTogether(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		claimed := held(s.claim(3, lease(20*time.Millisecond)))
		require.Equal(t, 1, s.ack(claimed[0]))
		deadline := int64(w.score(w.keys.Unack("a"), "2"))
		w.promote("s|1")
		require.Equal(t, deadline, w.next())
		for len(w.unack("a")) > 0 {
			require.Equal(t, []string{"2", "3"}, w.unack("a"))
			before := w.now()
			w.expire()
			if len(w.unack("a")) > 0 {
				require.Less(t, before, deadline)
			}
			w.pass(time.Millisecond)
		}
		require.GreaterOrEqual(t, w.now(), deadline)
		require.Equal(t, []string{"2", "3"}, w.ready("a"))
	}, "a")
}

func TestClaimsOfOneMillisecondComeBackInOrder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that stands still")
		}
		w.publishNow("1", "2", "3", "4", "5", "6")
		s := w.sub("a")
		claimed := held(s.claim(2))
		claimed = append(claimed, held(s.claim(2))...)
		w.do(append(s.group.ExtendCalls(claimed, time.Hour), s.group.ClaimCall(s.query(2)))...)
		w.pass(2 * time.Hour)
		w.expire()
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, w.ready("a"))
	}, "a")
}

func TestResigningHolderWakesTheStandby(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publish(in("x", time.Hour))
		w.promote(inbox.address("1"))
		w.promote(inbox.address("2"))
		resign := w.topic.ResignCall(inbox.address("1"))
		require.Equal(t, 1, w.count(resign))
		require.Equal(t, []string{"2 0"}, inbox.received())
		w.unchanged(func() { require.Zero(t, w.count(resign)) })
		require.Empty(t, inbox.received())
		require.Equal(t, queue.Holder, w.promote(inbox.address("2")).Role)
		require.Equal(t, queue.Standby, w.promote(inbox.address("1")).Role)

		require.Equal(t, 1, w.count(resign), "the standby resigns")
		require.Empty(t, inbox.received())
		require.Equal(t, queue.Standby, w.promote(inbox.address("3")).Role)
	}, "a")
}

func TestResigningWithoutARoleOrAStandby(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.Zero(t, w.count(w.topic.ResignCall("s|1")))
		w.promote("s|1")
		w.unchanged(func() { require.Zero(t, w.count(w.topic.ResignCall("s|2"))) })
		require.Equal(t, 1, w.count(w.topic.ResignCall("s|1")))
		require.Equal(t, queue.Holder, w.promote("s|2").Role)
	}, "a")
}

func TestEarlierEventOfATopicWithoutHolderIsNoted(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.promote("s|1")
		w.count(w.topic.ResignCall("s|1"))
		w.publish(in("x", time.Hour))
		w.publish(in("y", time.Minute))
		require.Equal(t, int64(w.score(w.keys.Pending(), "y")), w.next())
		require.Equal(t, queue.Holder, w.promote("s|2").Role)
	}, "a")
}

// Expire.

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
			require.Equal(t, "0 s -", w.field(w.keys.Deliveries("a"), fmt.Sprint(i+1)), "no delivery is counted")
		}
		require.Empty(t, w.field(w.keys.Deliveries("a"), "4"))
	}, "a", "b")
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

func TestDeliveriesOfASuspectCountAndTheLastIsItsDeath(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		limited := queue.GroupOptions{MaxDeliveries: 2, Retention: time.Hour}
		require.NoError(t, w.topic.Register(ctx, "a", limited))
		w.publishNow("x", "y")
		s := w.sub("a")
		w.lapse(s, "x", "y")
		require.Equal(t, "0 s -", w.field(w.keys.Deliveries("a"), "x"))
		w.lapse(s, "x")
		require.Equal(t, "1 s -", w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		before := w.now()
		w.lapse(s, "x")
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.dead("a"))
		require.Equal(t, "2 s - lease expired on the last of 2 deliveries", w.field(w.keys.Deliveries("a"), "x"))
		died := int64(w.score(w.keys.Dead("a"), "x"))
		require.GreaterOrEqual(t, died, before)
		require.LessOrEqual(t, died, w.now())
		require.Equal(t, died+3600_000, w.next())
		require.Equal(t, []string{"x", "y"}, w.stored())
		require.Equal(t, "0 s -", w.field(w.keys.Deliveries("a"), "y"), "its neighbour is not worse off")
	})
}

func TestMessagesMayHaveALimitOfTheirOwn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		limited := queue.GroupOptions{MaxDeliveries: 2, Retention: time.Hour}
		require.NoError(t, w.topic.Register(ctx, "a", limited))
		w.publish(now("one").with(queue.Options{MaxDeliveries: 1}))
		s := w.sub("a")
		w.lapse(s, "one")
		w.lapse(s, "one")
		require.Equal(t, []string{"one"}, w.dead("a"))
		require.Equal(t, "1 s - lease expired on the last of 1 deliveries", w.field(w.keys.Deliveries("a"), "one"))

		w.publish(now("endless").with(queue.Options{MaxDeliveries: -1}))
		for range 4 {
			w.lapse(s, "endless")
		}
		require.Equal(t, []string{"endless"}, w.ready("a"))
		require.Equal(t, "3 s -", w.field(w.keys.Deliveries("a"), "endless"))
	})
}

func TestGroupWithoutLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: -1, Retention: time.Hour}))
		w.publishNow("x")
		s := w.sub("a")
		for range 4 {
			w.lapse(s, "x")
		}
		require.Equal(t, "3 s -", w.field(w.keys.Deliveries("a"), "x"))
	})
}

func TestEachGroupHasItsOwnLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 3, Retention: time.Hour}))
		require.NoError(t, w.topic.Register(ctx, "b", queue.GroupOptions{MaxDeliveries: 1, Retention: time.Hour}))
		w.publishNow("x")
		a, b := w.sub("a"), w.sub("b")
		for range 2 {
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
		require.Equal(t, "1 s 15s", w.field(w.keys.Deliveries("a"), "x"))
		claimed := s.claim(1)
		require.True(t, claimed.Messages[0].Suspect)
		require.Equal(t, 1, s.release(held(claimed)...))
		claimed = s.claim(1)
		require.True(t, claimed.Messages[0].Suspect)
		require.Equal(t, 1, s.nack(failed(held(claimed)[0])))
		require.Equal(t, "2 - 15s", w.field(w.keys.Deliveries("a"), "x"))
	}, "a")
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

func TestExpireIsBoundedInEachGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%03d", 0, 600)...)
		w.sub("a").claim(1000, lease(time.Millisecond))
		w.sub("b").claim(1000, lease(time.Millisecond))
		w.pass(5 * time.Millisecond)
		require.True(t, w.expire())
		require.Len(t, w.ready("a"), queue.Budget/2)
		require.Len(t, w.ready("b"), queue.Budget/2)
		require.False(t, w.expire())
		sameOrder(t, names("%03d", 0, 600), w.ready("a"))
		sameOrder(t, names("%03d", 0, 600), w.ready("b"))
	}, "a", "b")
}

func TestExpireWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "deadly")
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["deadly"], "4 s -")
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
		require.NoError(t, queue.NewTopic(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
		w.pass(3 * time.Millisecond)
		r := w.record()
		require.False(t, w.expire())
		require.Len(t, r.take(), 3, "stale, read again, done")
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

// Purge.

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

func TestPurgeAfterAGroupWasRegistered(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.die("a", 1)
		w.travel(2 * time.Hour)
		require.NoError(t, queue.NewTopic(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
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
