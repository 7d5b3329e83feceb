package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Ack.

func TestAckedMessageIsGone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 3}), now("y"))
		s := w.sub("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0]))) // x has a record of deliveries
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
		require.Equal(t, []string{"y"}, w.stored())
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
		for _, key := range []string{w.keys.Messages(), w.keys.Options(), w.keys.Refs(), w.keys.Unack("a"),
			w.keys.Leases("a"), w.keys.Deliveries("a"), w.keys.Ready("a")} {
			require.Zero(t, w.Client.Exists(ctx, key).Val(), key)
		}
	}, "a")
}

func TestBodyIsKeptUntilTheLastGroupIsDone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 3}), now("y"))
		for i, group := range []string{"b", "c", "a"} {
			require.Equal(t, []string{"x", "y"}, w.stored())
			require.Equal(t, string("321"[i]), w.field(w.keys.Refs(), "x"))
			require.NotEmpty(t, w.field(w.keys.Options(), "x"))
			s := w.sub(group)
			require.Equal(t, 1, s.ack(held(s.claim(1))...))
		}
		require.Equal(t, []string{"y"}, w.stored())
		require.Empty(t, w.field(w.keys.Refs(), "x"))
		require.Empty(t, w.field(w.keys.Options(), "x"))
	}, "a", "b", "c")
}

func TestAckOfMessagesOfOneAndOfSeveralGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("of one")
		w.register("b")
		w.publishNow("of both")
		s := w.sub("a")
		require.Equal(t, 2, s.ack(held(s.claim(2))...))
		require.Equal(t, []string{"of both"}, w.stored())
		s = w.sub("b")
		require.Equal(t, []string{"of both"}, w.ready("b"))
		require.Equal(t, 1, s.ack(held(s.claim(2))...))
		require.Empty(t, w.stored())
	}, "a")
}

func TestRepeatedAckChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		calls := s.group.AckCalls(held(s.claim(1)))
		require.Equal(t, 1, w.count(calls...))
		w.unchanged(func() { require.Zero(t, w.count(calls...)) })
	}, "a", "b")
}

func TestSettlingNothingMakesNoCalls(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		s := w.sub("a")
		require.Empty(t, s.group.AckCalls(nil))
		require.Empty(t, s.group.NackCalls(nil, 0))
		require.Empty(t, s.group.ReleaseCalls(nil))
		require.Empty(t, s.group.ExtendCalls(nil, 0))
		require.NoError(t, queue.Do(ctx, w.Client))
	}, "a")
}

func TestScriptsTakeEmptyInput(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		r := w.record()
		m := held(s.claim(1))
		s.nack(failed(m[0]))
		m = held(s.claim(1))
		s.release(m...)
		m = held(s.claim(1))
		w.do(s.group.ExtendCalls(m, time.Hour)...)
		s.ack(m...)
		fixed := map[int]int{0: 0, 1: 2, 3: 1, 5: 1, 6: 0} // call: arguments before the messages; the rest are claims
		for i, call := range r.take() {
			head, settles := fixed[i]
			if i == 0 || !settles { // the first is a claim
				continue
			}
			call = call[:3+call[2].(int)+head]
			w.unchanged(func() {
				reply, err := w.Client.Do(ctx, call...).Result()
				require.NoError(t, err)
				require.Contains(t, []any{int64(0), []any{}}, reply)
			})
		}
	}, "a")
}

func TestLateSettlingChangesNothingForTheNewHolder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		late, holder := w.sub("a"), w.sub("a")
		lost := held(late.claim(1, lease(time.Millisecond)))
		w.pass(2 * time.Millisecond)
		w.expire()
		holds := held(holder.claim(1))
		require.Len(t, holds, 1)
		w.unchanged(func() {
			require.Zero(t, late.ack(lost...))
			require.Zero(t, late.release(lost...))
			require.Zero(t, late.nack(failed(lost[0])))
			require.Zero(t, late.nack(failed(lost[0], after(time.Hour))))
			require.Zero(t, late.nack(failed(lost[0], dead)))
			calls := late.group.ExtendCalls(lost, time.Hour)
			w.do(calls...)
			gone, err := queue.ReadLost(calls[0])
			require.NoError(t, err)
			require.Equal(t, []string{lost[0].ID}, gone)
		})
		require.Equal(t, 1, holder.ack(holds...))
	}, "a", "b")
}

func TestEarlierLeaseOfTheSameSubscriptionIsAnother(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		first := held(s.claim(1))
		require.Equal(t, 1, s.nack(failed(first[0])))
		second := held(s.claim(1))
		w.unchanged(func() {
			require.Zero(t, s.ack(first...))
			require.Zero(t, s.nack(failed(first[0])))
		})
		require.Equal(t, 1, s.ack(second...))
	}, "a")
}

func TestSettlingOfMoreThanTenThousand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		all := names("%05d", 0, n)
		w.publishNow(all...)
		a, b := w.sub("a"), w.sub("b")
		claimAll := func(s *sub) (claimed []*queue.Leased) {
			for {
				c := s.claim(1000)
				claimed = append(claimed, held(c)...)
				if !c.More {
					require.Len(t, claimed, n)
					return claimed
				}
			}
		}
		claimed := claimAll(a)
		require.Equal(t, n, a.release(claimed...))
		sameOrder(t, all, w.ready("a"))

		claimed = claimAll(a)
		var failures []queue.Failure
		for _, m := range claimed {
			failures = append(failures, failed(m))
		}
		require.Equal(t, n, a.nack(failures...))
		sameOrder(t, all, w.ready("a"))

		claimed = claimAll(a)
		calls := a.group.ExtendCalls(claimed, 2*time.Hour)
		w.do(calls...)
		for _, c := range calls {
			lost, err := queue.ReadLost(c)
			require.NoError(t, err)
			require.Empty(t, lost)
		}
		require.Len(t, a.group.AckCalls(claimed), n/queue.Chunk+1)
		require.Equal(t, n, a.ack(claimed...))
		require.Len(t, w.stored(), n)

		failures = nil
		for _, m := range claimAll(b) {
			failures = append(failures, failed(m, after(time.Hour)))
		}
		require.Equal(t, n, b.nack(failures...))
		require.Len(t, w.retry("b"), n)
	}, "a", "b")
}

// Nack.

func dead(f *queue.Failure) { f.Dead = true }

func TestNackWithoutDelayPutsTheMessageWhereItWas(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		s := w.sub("a")
		first := s.claim(1)
		claimed := held(s.claim(3))
		require.Equal(t, 3, s.nack(failed(claimed[0]), failed(claimed[1]), failed(claimed[2])))
		require.Equal(t, []string{"2", "3", "4", "5"}, w.ready("a"))
		require.Equal(t, 1, s.nack(failed(held(first)[0])))
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("a"))
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("b"))
		require.Equal(t, "1 - -", w.field(w.keys.Deliveries("a"), "1"))
		require.Empty(t, w.field(w.keys.Deliveries("b"), "1"))
		again := s.claim(1).Messages[0]
		require.Equal(t, 1, again.Deliveries)
		require.Equal(t, first.Messages[0].Due, again.Due)
	}, "a", "b")
}

func TestNackWithDelayIsANewDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y", "newer")
		s := w.sub("a")
		claimed := held(s.claim(2))
		instant := w.now() + 5000
		before := w.now()
		require.Equal(t, 2, s.nack(failed(claimed[0], after(time.Minute)),
			failed(claimed[1], func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(instant)) })))
		due := int64(w.score(w.keys.Retry("a"), "x"))
		require.GreaterOrEqual(t, due, before+60_000)
		require.LessOrEqual(t, due, w.now()+1+60_000)
		require.Equal(t, instant, int64(w.score(w.keys.Retry("a"), "y")))
		require.Equal(t, instant, w.next())
		require.Empty(t, w.unack("a"))
		require.Equal(t, []string{"newer"}, w.ready("a"), "newer messages pass meanwhile")
		require.Equal(t, []string{"x", "y", "newer"}, w.ready("b"))
	}, "a", "b")
}

func TestDelayOfANackIsRoundedUp(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that stands still")
		}
		w.publishNow("x")
		s := w.sub("a")
		claimed := held(s.claim(1))
		clock := time.UnixMilli(w.now())
		w.Mini.SetTime(clock.Add(time.Microsecond))
		require.Equal(t, 1, s.nack(failed(claimed[0], after(time.Nanosecond))))
		require.Equal(t, clock.Add(2*time.Millisecond).UnixMilli(), int64(w.score(w.keys.Retry("a"), "x")))
	}, "a")
}

func TestNackUntilAnInstantInThePastIsNow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := held(s.claim(1))
		require.Equal(t, 1, s.nack(failed(claimed[0], func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(1)) })))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
	}, "a")
}

func TestMessageIsDeadAfterItsLastDelivery(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		limited := func(f *queue.Failure) { f.Limit, f.Reason = 2, "it broke\nin two" }
		require.Equal(t, 1, s.nack(failed(held(s.claim(1, lease(2*time.Hour)))[0], limited)))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		before := w.now()
		require.Equal(t, 1, s.nack(failed(held(s.claim(1, lease(2*time.Hour)))[0], limited, after(time.Hour))))
		died := int64(w.score(w.keys.Dead("a"), "x"))
		require.GreaterOrEqual(t, died, before)
		require.LessOrEqual(t, died, w.now())
		require.Equal(t, "2 - - it broke\nin two", w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, died+standard.Retention.Milliseconds(), w.next())
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Empty(t, w.retry("a"))
		require.Equal(t, []string{"x", "y"}, w.stored())
		require.Equal(t, []string{"x", "y"}, w.ready("b"))
	}, "a", "b")
}

func TestNackMayEndAMessageWhateverTheLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], dead,
			func(f *queue.Failure) { f.Limit, f.Reason, f.DelayedFor = -1, strings.Repeat("é", 2000), "15s" })))
		require.Equal(t, []string{"x"}, w.dead("a"))
		count, suspect, delayedFor, reason := queue.ParseRecord(w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, []any{1, false, "15s"}, []any{count, suspect, delayedFor})
		require.Equal(t, strings.Repeat("é", 512), reason)
	}, "a")
}

func TestNackWithoutLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		for i := range 30 {
			claimed := s.claim(1)
			require.Equal(t, i, claimed.Messages[0].Deliveries)
			require.Equal(t, 1, s.nack(failed(held(claimed)[0], func(f *queue.Failure) { f.Limit = -1 })))
		}
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

func TestNextDeliveryIsToldTheLastDelayThatWasSet(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		told := func(set, want string) {
			t.Helper()
			require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], func(f *queue.Failure) { f.DelayedFor = set })))
			claimed := s.claim(1)
			require.Equal(t, want, claimed.Messages[0].DelayedFor)
			require.Equal(t, 1, s.release(held(claimed)...))
		}
		told("", "")
		told("10s", "10s")
		told("", "10s")
		told("20s", "20s")
	}, "a")
}

func TestRepeatedNackChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("retried", "delayed", "dead")
		s := w.sub("a")
		claimed := held(s.claim(3))
		calls := s.group.NackCalls([]queue.Failure{failed(claimed[0]), failed(claimed[1], after(time.Hour)),
			failed(claimed[2], dead)}, time.Hour)
		require.Equal(t, 3, w.count(calls...))
		require.Equal(t, []string{"retried"}, w.ready("a"))
		require.Equal(t, []string{"delayed"}, w.retry("a"))
		require.Equal(t, []string{"dead"}, w.dead("a"))
		w.unchanged(func() { require.Zero(t, w.count(calls...)) })
	}, "a", "b")
}

func TestNackWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		claimed := held(s.claim(4))
		inbox := w.inbox()
		inbox.wait("a", "x", "y", "z")
		s.nack(failed(claimed[0]), failed(claimed[1], after(time.Hour)), failed(claimed[2], dead), failed(claimed[3]))
		require.Equal(t, []string{"x", "y"}, inbox.received())
		require.Equal(t, []string{inbox.address("z")}, w.waiters("a"))
	}, "a")
}

func TestNackTellsTheSchedulerOfAnEarlierEvent(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		claimed := held(s.claim(3, lease(100*time.Hour)))
		w.promote(inbox.address("holder"))
		w.promote(inbox.address("standby"))
		s.nack(failed(claimed[0], dead)) // an hour's retention
		told := inbox.received()
		require.Len(t, told, 2)
		require.Equal(t, 3600_000, wait(t, told[0], "holder"))
		require.Equal(t, 3601_000, wait(t, told[1], "standby"))
		s.nack(failed(claimed[1], after(time.Minute)))
		told = inbox.received()
		require.Len(t, told, 2)
		require.InDelta(t, 60_000, wait(t, told[0], "holder"), 1)
		s.nack(failed(claimed[2], after(2*time.Minute)))
		require.Empty(t, inbox.received())
	}, "a")
}

func TestDeadForEverIsNoEvent(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		forever := queue.GroupOptions{MaxDeliveries: -1, Retention: -1}
		require.NoError(t, w.topic.Register(ctx, "a", forever))
		w.publishNow("1")
		s := w.sub("a")
		require.Equal(t, 1, w.count(s.group.NackCalls([]queue.Failure{failed(held(s.claim(1))[0], dead)}, forever.Retention)...))
		w.promote("scheduler|1")
		require.Zero(t, w.next())
		require.False(t, w.purge())
		require.Equal(t, []string{"1"}, w.dead("a"))
	})
}

// Release.

func TestReleasedMessagesAreWhereTheyWere(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		first := s.claim(1)
		claimed := s.claim(2)
		require.Equal(t, 2, s.release(held(claimed)...))
		require.Equal(t, []string{"2", "3", "4"}, w.ready("a"))
		require.Equal(t, 1, s.release(held(first)...))
		require.Equal(t, []string{"1", "2", "3", "4"}, w.ready("a"))
		again := s.claim(4)
		require.Zero(t, again.Messages[1].Deliveries, "no delivery is counted")
		require.Equal(t, claimed.Messages[0].Due, again.Messages[1].Due)
	}, "a")
}

func TestReleaseKeepsWhatIsKnownOfAMessage(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["x"], "2 s 15s")
		s := w.sub("a")
		require.Equal(t, 1, s.release(held(s.claim(1))...))
		require.Equal(t, "2 s 15s", w.field(w.keys.Deliveries("a"), "x"))
	}, "a")
}

func TestRepeatedReleaseChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		calls := s.group.ReleaseCalls(held(s.claim(2)))
		require.Equal(t, 2, w.count(calls...))
		w.unchanged(func() { require.Zero(t, w.count(calls...)) })
	}, "a")
}

func TestReleaseOfMessagesOfWhichSomeAreLost(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		claimed := held(s.claim(4))
		require.Equal(t, 1, s.ack(claimed[1]))
		require.Equal(t, 3, s.release(claimed...))
		require.Equal(t, []string{"1", "3", "4"}, w.ready("a"))
	}, "a")
}

func TestReleaseWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		s := w.sub("a")
		claimed := held(s.claim(2))
		inbox := w.inbox()
		inbox.wait("a", "x", "y", "z")
		s.release(claimed...)
		require.Equal(t, []string{"x", "y"}, inbox.received())
	}, "a")
}

// Extend.

func TestExtendedLeaseEndsLater(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		claimed := held(s.claim(3, lease(time.Minute)))
		require.Equal(t, 1, s.ack(claimed[1]))
		w.pass(5 * time.Millisecond)
		before := w.now()
		calls := s.group.ExtendCalls(claimed, time.Minute)
		w.do(calls...)
		lost, err := queue.ReadLost(calls[0])
		require.NoError(t, err)
		require.Equal(t, []string{claimed[1].ID}, lost)
		require.Equal(t, []string{"1", "3"}, w.unack("a"))
		for i, name := range []string{"1", "", "3"} {
			if name != "" {
				deadline := w.score(w.keys.Unack("a"), name)
				require.GreaterOrEqual(t, deadline, float64(before)+60_000+float64(i)/1024)
				require.LessOrEqual(t, deadline, float64(w.now())+60_000+float64(i)/1024)
			}
		}
		w.do(calls...) // once more
		require.Equal(t, []string{"1", "3"}, w.unack("a"))
	}, "a")
}

func TestExtendingDoesNotBringBackALease(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		claimed := held(s.claim(1))
		s.ack(claimed...)
		w.unchanged(func() { w.do(s.group.ExtendCalls(claimed, time.Hour)...) })
	}, "a")
}

func TestExtendedLeasesKeepTheirOrder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		all := names("%04d", 0, 1000)
		w.publishNow(all...)
		s := w.sub("a")
		claimed := held(s.claim(400))
		claimed = append(claimed, held(s.claim(600, lease(time.Minute)))...)
		w.do(s.group.ExtendCalls(claimed, time.Millisecond)...)
		sameOrder(t, all, w.unack("a"))
		w.pass(3 * time.Millisecond)
		for w.expire() {
		}
		sameOrder(t, all, w.ready("a"))
	}, "a")
}
