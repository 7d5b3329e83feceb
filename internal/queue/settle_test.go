package queue_test

import (
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

// The ack script counts drops only. Its caller counts acks by the answers, and tells them with a
// claim.
func TestADropIsCountedOnceAndAnAckByItsCaller(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := held(s.claim(2))
		for want := 1; want >= 0; want-- { // the second time is a repeat
			require.Equal(t, want, w.count(s.group.DropCalls(claimed[:1])...))
			calls := s.group.AckCalls(claimed[1:])
			w.do(calls...)
			require.Equal(t, want, must(queue.ReadAcked(calls[0])))
		}
		counters := func() (dropped, acked int) {
			c := must(w.topic.Stats(ctx)).Groups[0]
			return c.Counter("dropped"), c.Counter("acked")
		}
		dropped, acked := counters()
		require.Equal(t, []int{1, 0}, []int{dropped, acked})
		s.claim(0, func(c *queue.Claim) { c.Counts.Acked = 3 })
		dropped, acked = counters()
		require.Equal(t, []int{1, 3}, []int{dropped, acked})
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

// Messages of one claim that are due together have one token, which is sent once for those in a
// row.
func TestAckOfMessagesWithSeveralTokens(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		s := w.sub("a")
		first, second := held(s.claim(3)), held(s.claim(2))
		require.Equal(t, first[0].Token, first[2].Token)
		require.NotEqual(t, first[0].Token, second[0].Token)
		stale := *first[2]
		stale.Token += "0" // another's by now
		require.Equal(t, 4, s.ack(first[0], second[0], second[1], &stale, first[1]))
		require.Equal(t, []string{"3"}, w.stored())
		require.Equal(t, 1, s.ack(first[2]))
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
		require.Empty(t, s.group.NackCalls(nil))
		require.Empty(t, s.group.ReleaseCalls(nil, false))
		require.Empty(t, s.group.ExtendCalls(nil, 0))
		require.NoError(t, do(ctx, w.Client))
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
		fixed := map[int]int{0: 0, 1: 3, 3: 2, 5: 3, 6: 4} // call: arguments before the messages; the rest are claims
		for i, call := range r.take() {
			head, settles := fixed[i]
			if i == 0 || !settles { // the first is a claim
				continue
			}
			call = call[:3+call[2].(int)+head]
			if i == 6 {
				call = append(call, 0) // an ack has no token
			}
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
		require.Equal(t, "1 - "+lost[0].Token, w.suspected("a", "x"))
		require.Zero(t, late.ack(lost...))
		require.Empty(t, w.suspected("a", "x"), "its expiry is taken back")
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
			require.Equal(t, []string{lost[0].Lease()}, gone)
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
		require.Len(t, a.group.AckCalls(claimed), n/256+1, "the server is kept from others for about a millisecond at a time")
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

func TestReleaseKeepsTheRecordOfAMessage(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["x"], "2 d 15s")
		s := w.sub("a")
		require.Equal(t, 1, s.release(held(s.claim(1))...))
		require.Equal(t, "2 d 15s", w.field(w.keys.Deliveries("a"), "x"))
	}, "a")
}

func TestRepeatedReleaseChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		calls := s.group.ReleaseCalls(held(s.claim(2)), false)
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
		require.Equal(t, []string{claimed[1].Lease()}, lost)
		require.Equal(t, []string{"1", "3"}, w.unack("a"))
		for _, name := range []string{"1", "3"} {
			deadline := w.score(w.keys.Unack("a"), name)
			require.GreaterOrEqual(t, deadline, float64(before)+60_000)
			require.LessOrEqual(t, deadline, float64(w.now())+60_000)
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
