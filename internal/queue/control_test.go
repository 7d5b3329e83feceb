package queue_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func byID(w *world, name string) operate.Ref { return operate.Ref{ID: w.id[name]} }

// operate does each operation once, and leaves nothing.
func (w *world) operate() {
	t := w.t
	w.fill("a")
	w.publish(in("pending", time.Hour))
	require.NoError(t, w.topic.Reschedule(ctx, byID(w, "pending"), queue.In(time.Minute)))
	all := w.cancelled("")
	require.Equal(t, []string{"pending: back"}, w.restore(all))
	require.Equal(t, all, w.cancelled(""))
	w.retries("again", "a")
	require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), operate.ErrTooLate)
	require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
	require.NoError(t, only(w.topic.Resume(ctx, "")))
	require.NoError(t, only(w.topic.List(ctx, "a", operate.Dead, "", 10, 1<<20)))
	require.NoError(t, only(w.topic.Stats(ctx)))
	require.NoError(t, only(w.topic.Upcoming(ctx, "a", time.Time{}, time.Second, 10)))
	require.NoError(t, only(w.topic.Passing(ctx, time.Time{}, time.Second, nil)))
	require.NoError(t, only(w.topic.Find(ctx, byID(w, "dead"))))
	require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["dead"]})))
	w.promote("nobody|1")
	s := w.sub("a")
	for _, m := range held(s.claim(9)) {
		require.Equal(t, 1, s.nack(failed(m, dead)))
	}
	require.NoError(t, only(w.topic.Group("a").Discard(ctx, []string{w.id["dead"]})))

	to := w.beside(w.topic.Name+", renamed", "a", "b")
	w.publish(in("moved", 30*time.Second))
	require.Equal(t, []string{"moved: moved"}, w.move(to, "moved"))
	require.NoError(t, to.topic.Erase(ctx))

	w.publishNow("killed")
	require.NoError(t, only(w.topic.Kill(ctx, "a", w.id["killed"], "killed")))
	require.NoError(t, only(w.topic.Group("a").Discard(ctx, []string{w.id["killed"]})))
	require.Len(t, w.sub("a").claim(1, signing("a|1")).Messages, 0)
	require.NotNil(t, w.workers())
	w.publishNow("twice")
	w.repeat("a", "twice", true)
	require.NoError(t, w.Client.HSet(ctx, w.keys.Leases("a"), w.id["pending"], "x:1:1").Err())
	require.NoError(t, w.Client.HSet(ctx, w.keys.Names(), "name", w.id["pending"]).Err())
	require.NoError(t, w.Client.Del(ctx, w.keys.Scheduler()).Err())
	audit, err := w.topic.Audit(ctx)
	require.NoError(t, err)
	require.Len(t, audit.Violations, 4)
	for _, v := range audit.Violations {
		did, err := w.topic.Mend(ctx, v)
		require.NoError(t, err)
		require.NotEmpty(t, did)
	}
	require.NoError(t, w.topic.Erase(ctx))
	require.False(t, w.Client.SIsMember(ctx, queue.Registry(w.Prefix), w.topic.Name).Val())
}

func TestPendingMessageIsCancelled(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour).with(queue.Options{MaxDeliveries: 3}), in("y", time.Hour))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "x")))
		require.Equal(t, []string{"y"}, w.pending())
		require.Equal(t, []string{"y"}, w.stored())
		require.ErrorIs(t, w.topic.Cancel(ctx, byID(w, "x")), queue.ErrNotFound)
	}, "a", "b")
}

// A message that is due and not promoted yet still waits.
func TestOverdueMessageIsCancelledAsLongAsItIsPending(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Millisecond))
		w.pass(5 * time.Millisecond)
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "x")))
		require.Empty(t, w.stored())
	}, "a")
}

func TestMessageThatDoesNotWaitIsNotCancelled(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		for _, name := range []string{"dead", "leased", "ready"} {
			w.unchanged(func() {
				require.ErrorIs(t, w.topic.Cancel(ctx, byID(w, name)), operate.ErrTooLate, name)
				require.ErrorIs(t, w.topic.Reschedule(ctx, byID(w, name), queue.In(0)), operate.ErrTooLate, name)
			})
		}
		w.unchanged(func() {
			nobody := operate.Ref{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
			require.ErrorIs(t, w.topic.Cancel(ctx, nobody), queue.ErrNotFound)
			require.ErrorIs(t, w.topic.Reschedule(ctx, nobody, queue.In(0)), queue.ErrNotFound)
		})
	}, "a")
}

func TestOperationsDoNotMakeATopic(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		none := topicOf(w.Client, w.Prefix, "none")
		w.unchanged(func() {
			for what, err := range map[string]error{
				"cancel":     none.Cancel(ctx, operate.Ref{ID: "x"}),
				"reschedule": none.Reschedule(ctx, operate.Ref{ID: "x"}, queue.In(0)),
				"pause":      only(none.Pause(ctx, "", "", "", 0)),
				"resume":     only(none.Resume(ctx, "")),
				"stats":      only(none.Stats(ctx)),
				"list":       only(none.List(ctx, "a", operate.Dead, "", 1, 0)),
				"pending":    only(none.List(ctx, "", operate.Waiting, "", 1, 0)),
				"upcoming":   only(none.Upcoming(ctx, "a", time.Time{}, time.Second, 1)),
				"passing":    only(none.Passing(ctx, time.Time{}, time.Second, nil)),
				"find":       only(none.Find(ctx, operate.Ref{ID: "x"})),
				"audit":      only(none.Audit(ctx)),
				"erase":      none.Erase(ctx),
			} {
				require.ErrorIs(t, err, queue.ErrNotFound, what)
			}
		})
	}, "a")
}

// A name that is misspelt is no group without messages.
func TestGroupsThatDoNotExistAreNotFound(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		for _, state := range []string{operate.Ready, operate.InHand, operate.Retrying, operate.Dead} {
			require.NoError(t, only(w.topic.List(ctx, "a", state, "", 1, 0)))
			err := only(w.topic.List(ctx, "b", state, "", 1, 0))
			require.ErrorIs(t, err, queue.ErrNotFound)
			require.ErrorContains(t, err, `"b"`)
		}
		page, err := w.topic.List(ctx, "b", operate.Waiting, "", 1, 0)
		require.NoError(t, err)
		require.Len(t, page.Messages, 1, "it is in no group")
	}, "a")
}

// In one group it waits for a retry, in another it is in hand.
func TestRetryIsCancelledInTheGroupsInWhichItWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 3}))
		for _, g := range []string{"a", "b"} {
			s := w.sub(g)
			s.nack(failed(held(s.claim(1))[0], after(time.Hour)))
		}
		c := w.sub("c")
		claimed := held(c.claim(1))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "x")))
		require.Empty(t, w.retry("a"))
		require.Empty(t, w.retry("b"))
		require.Equal(t, []string{"x"}, w.stored())
		require.Equal(t, 1, c.ack(claimed...))
		require.Empty(t, w.stored())
	}, "a", "b", "c")
}

func TestRescheduledMessageIsDueThen(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour), in("y", time.Minute))
		at := time.UnixMilli(w.now()).Add(time.Second)
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.At(at)))
		require.Equal(t, []string{"x", "y"}, w.pending())
		require.Equal(t, float64(at.UnixMilli()), w.score(w.keys.Pending(), "x"))
		require.Equal(t, at.UnixMilli(), w.next(), "the scheduler looks in time")
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(2*time.Hour)))
		require.Equal(t, []string{"y", "x"}, w.pending())
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(0)))
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.ready("b"))
	}, "a", "b")
}

func TestRescheduledRetryIsDueThenInAllGroups(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		for _, g := range []string{"a", "b"} {
			s := w.sub(g)
			s.nack(failed(held(s.claim(1))[0], after(time.Hour)))
		}
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(0)))
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, []string{"x"}, w.ready("b"))
	}, "a", "b")
}

func TestRequeuedMessageIsDeliveredAnewInOrder(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		w.die("a", 3)
		n, err := w.topic.Group("a").Requeue(ctx, []string{w.id["3"], w.id["1"], w.id["1"], "unknown"})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, []string{"2"}, w.dead("a"))
		w.promote("s|1")
		require.Equal(t, []string{"1", "3"}, w.ready("a"))
		claimed := w.sub("a").claim(1)
		require.Zero(t, claimed.Messages[0].Deliveries)
		_, err = w.topic.Group("none").Requeue(ctx, []string{w.id["2"]})
		require.ErrorIs(t, err, queue.ErrNotFound)
	}, "a", "b")
}

// By that a subscription knows that the message's expiry does not count.
func TestClaimTellsOfARequeuedMessage(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		claim := func() *queue.Leased {
			claimed := held(s.claim(1, lease(time.Minute)))
			require.Len(t, claimed, 1)
			return claimed[0]
		}
		m := claim()
		require.False(t, m.Requeued)
		require.Equal(t, 1, s.nack(failed(m, dead)))
		require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})))
		w.promoteAll()
		m = claim()
		require.Equal(t, []any{true, true, 0}, []any{m.Requeued, m.Delivered, m.Deliveries})
		require.Equal(t, 1, s.nack(failed(m)))
		w.promoteAll()
		m = claim()
		require.Equal(t, []any{true, true, 1}, []any{m.Requeued, m.Delivered, m.Deliveries})
		w.travel(2 * time.Minute)
		w.expire()
		m = claim()
		require.Equal(t, []any{true, true, 1}, []any{m.Requeued, m.Delivered, m.Deliveries})
	}, "a")
}

func TestDiscardedMessageLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("1").with(queue.Options{MaxDeliveries: 1}), now("2"))
		w.die("a", 2)
		w.die("b", 1)
		n, err := w.topic.Group("a").Discard(ctx, []string{w.id["1"], w.id["2"], w.id["2"]})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, []string{"1", "2"}, w.stored(), "b needs them")
		n, err = w.topic.Group("b").Discard(ctx, []string{w.id["1"]})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []string{"2"}, w.stored())
	}, "a", "b")
}

// A repeat of a call whose answer was lost gets the answer of the first, not that there is nothing
// to do.
func TestRepeatedOperationAnswersTheSame(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("1", time.Hour), in("2", time.Hour), now("3"), now("4"))
		w.die("a", 2)
		w.retries("5", "a")
		for name, call := range map[string]func() error{
			"cancel":     func() error { return w.topic.Cancel(ctx, byID(w, "1")) },
			"reschedule": func() error { return w.topic.Reschedule(ctx, byID(w, "2"), queue.In(0)) },
			"requeue":    func() error { return only(w.topic.Group("a").Requeue(ctx, []string{w.id["3"]})) },
			"discard":    func() error { return only(w.topic.Group("a").Discard(ctx, []string{w.id["4"]})) },
			"recall":     func() error { return w.topic.CancelRetries(ctx, "x") },
		} {
			r := w.record()
			require.NoError(t, call(), name)
			calls := r.take()
			last := calls[len(calls)-1]
			w.promote("s|1") // it goes on meanwhile
			w.unchanged(func() {
				again, err := w.Client.Do(ctx, last...).Text()
				require.NoError(t, err)
				require.Contains(t, []string{"ok", "1"}, again, name)
			})
		}
	}, "a")
}

func TestOperationsWorkOnAFullServer(t *testing.T) {
	w, full := fullWorld(t, "a")
	w.publish(in("1", time.Hour), in("2", time.Hour), now("3"), now("4"))
	w.die("a", 2)
	w.retries("5", "a")
	full()
	require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(time.Minute), nil))
	require.NoError(t, w.topic.CancelRetries(ctx, "x"))
	require.NoError(t, w.topic.Cancel(ctx, byID(w, "1")))
	require.NoError(t, w.topic.Reschedule(ctx, byID(w, "2"), queue.In(time.Minute)))
	require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["3"]})))
	require.NoError(t, only(w.topic.Group("a").Discard(ctx, []string{w.id["4"]})))
	require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
	require.NoError(t, only(w.topic.Stats(ctx)))
	require.NoError(t, only(w.topic.Audit(ctx)))
	require.NoError(t, only(w.topic.Resume(ctx, "")))
	queuetest.Check(t, w.Client, w.Prefix)
	require.NoError(t, w.topic.Erase(ctx))
}

// It may be needed only by the group that goes.
func TestNoGroupIsReportedReadyWhileAGroupIsBeingRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%04d", 0, 1500)...)
		w.publishNow("x")
		a := w.sub("a")
		for claimed := held(a.claim(1000)); len(claimed) > 0; claimed = held(a.claim(1000)) {
			a.ack(claimed...)
		}
		require.True(t, w.removeSome("b"))
		found, err := w.topic.Find(ctx, byID(w, "x"))
		require.NoError(t, err)
		require.Equal(t, []operate.Place{{Group: "a"}}, found.Places)
		w.publishNow("y")
		require.NoError(t, only(w.topic.Audit(ctx))) // which finishes it
		found, err = w.topic.Find(ctx, byID(w, "y"))
		require.NoError(t, err)
		require.Equal(t, []operate.Place{{Group: "a", State: operate.Ready}}, found.Places)
	}, "a", "b")
}

func TestPagesOfAStateStayRightWhileMessagesComeAndGo(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		due := time.UnixMilli(w.now()).Add(time.Hour)
		var messages []message
		for i := range 20 { // five share an instant
			messages = append(messages, message{fmt.Sprintf("%02d", i), queue.At(due.Add(time.Duration(i/5) * time.Second)), queue.Options{}})
		}
		w.publish(messages...)
		var got []string
		for cursor, pages := "", 0; ; pages++ {
			page, err := w.topic.List(ctx, "", operate.Waiting, cursor, 3, 1<<20)
			require.NoError(t, err)
			for _, m := range page.Messages {
				require.Equal(t, w.name[m.ID], string(m.Body))
				got = append(got, w.name[m.ID])
			}
			if cursor = page.Next; cursor == "" {
				require.Equal(t, 6, pages)
				break
			}
			// The last of the page goes, and one that was before it comes back.
			last := page.Messages[len(page.Messages)-1]
			require.NoError(t, w.topic.Cancel(ctx, operate.Ref{ID: last.ID}))
			require.NoError(t, w.topic.Reschedule(ctx, operate.Ref{ID: page.Messages[0].ID}, queue.At(due.Add(-time.Minute))))
		}
		require.Equal(t, names("%02d", 0, 20), got[:20])
	}, "a")
}

func TestPageHasNoMoreThanItsBytes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%010d", 0, 10)...)
		for state, group := range map[string]string{operate.Ready: "a", operate.Dead: "b"} {
			if state == operate.Dead {
				w.die("b", 10)
			}
			var got []string
			for cursor := ""; ; {
				page, err := w.topic.List(ctx, group, state, cursor, 100, 35)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page.Messages), 3)
				for _, m := range page.Messages {
					got = append(got, string(m.Body))
				}
				if cursor = page.Next; cursor == "" {
					break
				}
			}
			require.Equal(t, names("%010d", 0, 10), got)
		}
		_, err := w.topic.List(ctx, "a", operate.Dead, "nonsense", 1, 0)
		require.Error(t, err)
		_, err = w.topic.List(ctx, "a", "nowhere", "", 1, 0)
		require.Error(t, err)
	}, "a", "b")
}

// Bodies that a step reads in vain keep the server from other clients.
func TestPageReadsFewBodiesThatItDoesNotReturn(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in.Client(t), Prefix: "own"}, "topic", "a")
	const size, n = 1000, 100
	w.publishNow(names(fmt.Sprintf("%%0%dd", size), 0, n)...)
	for _, fit := range []int{1, 2, 10, 50} {
		commands := monitor(t, in)
		page, err := w.topic.List(ctx, "a", operate.Ready, "", n, fit*size)
		require.NoError(t, err)
		require.Len(t, page.Messages, fit)
		read := 0
		for words, lua := range commands() {
			if lua && words[0] == "HMGET" && words[1] == w.keys.Messages() {
				read += len(words) - 2
			}
		}
		require.Contains(t, []int{fit, fit + 1}, read)
	}
}

func TestUpcomingLoadIsExact(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		from := time.UnixMilli(w.now()).Add(time.Hour)
		for i, at := range []int{-1, 0, 0, 999, 1000, 1999, 2000, 3000} {
			w.publish(message{strconv.Itoa(i), queue.At(from.Add(time.Duration(at) * time.Millisecond)), queue.Options{}})
		}
		upcoming, err := w.topic.Upcoming(ctx, "a", from, time.Second, 3)
		require.NoError(t, err)
		require.Equal(t, from.UnixMilli(), upcoming.Time("begins").UnixMilli())
		var counts []int
		for _, s := range upcoming.Each() {
			counts = append(counts, s.Number("waiting"))
		}
		require.Equal(t, []int{3, 2, 1}, counts)
	}, "a")
}

func TestStatsCountEveryState(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		w.publish(in("pending", time.Hour))
		require.NoError(t, only(w.topic.Pause(ctx, "b", "", "", 0)))
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Waiters("b"), redis.Z{Score: 3e12, Member: "channel|1"}).Err())
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, 5, stats.Number("messages"))
		require.Equal(t, 1, stats.Number("waiting"))
		require.Equal(t, int64(w.score(w.keys.Pending(), "pending")), stats.Time("next_due").UnixMilli())
		require.Len(t, stats.Groups, 2)
		a, b := stats.Groups[0], stats.Groups[1]
		sizes := func(g operate.GroupCounts) []int {
			return []int{g.Number("ready"), g.Number("in_hand"), g.Number("retrying"), g.Number("dead")}
		}
		require.Equal(t, []int{1, 1, 1, 1}, sizes(a))
		require.Equal(t, []int{4, 0, 0, 0}, sizes(b))
		require.Equal(t, int64(w.score(w.keys.Retry("a"), "retried")), a.Time("first_retry").UnixMilli())
		require.Equal(t, int64(w.score(w.keys.Dead("a"), "dead")), a.Time("first_death").UnixMilli())
		require.Equal(t, standard.MaxDeliveries, a.Options().MaxDeliveries)
		require.Equal(t, standard.Retention, a.Options().Retention)
		require.Equal(t, 1, a.Number("held"))
		require.True(t, a.Subscribed())
		require.True(t, b.Subscribed())
		require.Empty(t, a.Text("paused"))
		require.NotEmpty(t, b.Text("paused"))
		require.GreaterOrEqual(t, b.OldestDue().UnixMilli(), w.start)
		require.Empty(t, stats.Text("paused"))
	}, "a", "b")
}

func TestIdleGroupIsRemovedUnlessItIsUsed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		claimed := held(w.sub("a").claim(1))
		require.Len(t, claimed, 1)
		w.pass(5 * time.Millisecond)
		removed, err := w.topic.RemoveIdle(ctx, "a", time.Millisecond)
		require.NoError(t, err)
		require.False(t, removed, "it holds a message")
		removed, err = w.topic.RemoveIdle(ctx, "b", time.Hour)
		require.NoError(t, err)
		require.False(t, removed, "it was made a moment ago")
		removed, err = w.topic.RemoveIdle(ctx, "b", time.Millisecond)
		require.NoError(t, err)
		require.True(t, removed)
		w.empty("b")
	}, "a", "b")
}

// For a moment a subscription is neither a waiter nor holds anything: when it was just woken, and
// when it has just settled. Its group is not idle for that, though nothing came for long before.
func TestGroupWhoseSubscriberIsJustBusyIsNotIdle(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		longAgo := w.now() - time.Hour.Milliseconds()
		stays := func(why string) {
			removed, err := w.topic.RemoveIdle(ctx, "a", time.Minute)
			require.NoError(t, err)
			require.False(t, removed, why)
		}
		s := w.sub("a")
		s.claim(1, idle(1, "channel|1"))
		require.NoError(t, w.Client.HSet(ctx, w.keys.Stats("a"), "seen", longAgo).Err())
		stays("it waits")
		w.publishNow("x")
		require.Empty(t, w.waiters("a"))
		stays("it was woken")
		claimed := held(s.claim(1))
		stays("it holds one")
		require.Equal(t, 1, s.ack(claimed...))
		stays("it has acked it")
	}, "a", "b")
}

func TestErasedTopicLeavesNothingOfAGroupThatIsBeingRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%04d", 0, 1500)...)
		require.True(t, w.removeSome("a"))
		require.NotEmpty(t, w.ready("a"))
		require.NoError(t, w.topic.Erase(ctx))
		for key := range w.dump() {
			require.Regexp(t, `:(publisher|claim|operation):`, key, "which expires by itself")
		}
	}, "a", "b")
}

func TestErasedTopicLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		w.publish(in("pending", time.Hour))
		require.NoError(t, w.topic.Erase(ctx))
		for key := range w.dump() {
			require.Regexp(t, `:(publisher|claim|operation):`, key, "which expires by itself")
		}
		require.ErrorIs(t, w.topic.Erase(ctx), queue.ErrNotFound)
		require.NoError(t, w.topic.Publish(ctx, "OTHER", 1, w.make(in("again", time.Hour))), "it comes into being again")
		require.True(t, w.Client.SIsMember(ctx, queue.Registry(w.Prefix), "topic").Val())
	}, "a")
}

// The caller that erased the topic ended before it removed the name.
func TestNameOfATopicThatIsGoneIsErased(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Erase(ctx))
		require.NoError(t, w.Client.SAdd(ctx, queue.Registry(w.Prefix), "topic").Err())
		require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Erase(ctx))
		require.Zero(t, w.Client.Exists(ctx, queue.Registry(w.Prefix)).Val())
		require.ErrorIs(t, w.topic.Erase(ctx), queue.ErrNotFound)
	}, "a")
}

// A scheduler that nobody told of the topic has a sweep to do yet.
func TestErasedTopicDoesNotComeBackByASweep(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		its := topicOf(w.Client, w.Prefix, "topic")
		_, err := its.Existing(ctx)
		require.NoError(t, err)
		require.NoError(t, w.topic.Erase(ctx))
		for _, sweep := range []func(context.Context) (bool, error){its.Expire, func(ctx context.Context) (bool, error) {
			_, more, err := its.Purge(ctx)
			return more, err
		}} {
			more, err := sweep(ctx)
			require.NoError(t, err)
			require.False(t, more)
		}
		require.Empty(t, w.dump())
		require.Zero(t, w.Client.Exists(ctx, queue.Registry(w.Prefix)).Val())
	}, "a")
}

// beforeOpen does something when a topic is about to be opened, once.
type beforeOpen struct {
	recorder
	do func()
}

func (b *beforeOpen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && queue.ScriptName(cmd.Args()[1].(string)) == "open" && b.do != nil {
			do := b.do
			b.do = nil
			do()
		}
		return next(ctx, cmd)
	}
}

// The publisher has seen that the topic is in the registry, when the last that is done to delete it
// takes it out.
func TestTopicThatIsMadeAnewWhileItIsErasedIsInTheRegistry(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		client := redis.NewClient(w.Client.(*redis.Client).Options())
		defer client.Close()
		topic := topicOf(client, w.Prefix, "topic")
		client.AddHook(&beforeOpen{do: func() { require.NoError(t, w.topic.Erase(ctx)) }})
		require.NoError(t, topic.Publish(ctx, "OTHER", 1, w.make(in("x", time.Hour))))
		listed, err := w.topic.Listed(ctx)
		require.NoError(t, err)
		require.True(t, listed)
	}, "a")
}

// Of a topic with many groups some go at a time. If the caller ends in between, others remove what
// is left.
func TestTopicWithManyGroupsIsErasedInSteps(t *testing.T) {
	for name, goOn := range map[string]func(w *world){
		"by another call": func(w *world) { require.NoError(w.t, w.topic.Erase(ctx)) },
		"by a scheduler": func(w *world) {
			for turn := w.promote("scheduler|1"); len(turn.Unused) > 0; turn = w.promote("scheduler|1") {
				require.Empty(w.t, must(w.topic.RemoveUnused(ctx, turn.Unused...)))
			}
			require.NoError(w.t, w.topic.Erase(ctx))
		},
		"by a group that comes back": func(w *world) {
			w.register("007")
			require.Empty(w.t, w.ready("007"))
			w.publishNow("y")
			require.Equal(w.t, []string{"y"}, w.ready("007"))
			require.NoError(w.t, w.topic.Erase(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				groups := names("%03d", 0, 250)
				for _, g := range groups {
					w.register(g)
				}
				w.publishNow("x")
				w.publish(in("pending", time.Hour).with(queue.Options{DelayID: "name"}))
				first, ends := context.WithCancel(ctx)
				defer ends()
				steps := 0
				w.Client.AddHook(hook{name: "evalsha", do: func() {
					if steps++; steps == 3 { // groups, the first step, the first hundred groups
						ends()
					}
				}})
				require.ErrorIs(t, topicOf(w.Client, w.Prefix, "topic").Erase(first), context.Canceled)
				require.Empty(t, w.registered())
				require.Zero(t, w.Client.Exists(ctx, w.keys.Messages(), w.keys.Pending(), w.keys.Ready("000")).Val())
				require.EqualValues(t, 1, w.Client.Exists(ctx, w.keys.Ready("249")).Val())
				w.publish(in("meanwhile", time.Hour))
				require.Equal(t, []string{"meanwhile"}, w.pending(), "nothing more comes to the groups")

				goOn(w)
				for key := range w.dump() {
					require.Regexp(t, `:(publisher|claim|operation):`, key, "which expires by itself")
				}
			})
		})
	}
}

// The lease's token tells since when a subscription has a message. An extension, and a repeat of
// the claim, leave that as it was.
func TestSinceWhenAMessageIsInHand(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a")
		w.publishNow("x", "y")
		sub := w.sub("a")
		query := sub.query(1, lease(time.Minute))
		before := w.now()
		claimed := sub.ask(query)
		since := queue.LeasedAt(claimed.Messages[0].Token)
		require.GreaterOrEqual(t, since.UnixMilli(), before)
		require.LessOrEqual(t, since.UnixMilli(), w.now())
		places := func() (listed, found time.Time) {
			page, err := w.topic.List(ctx, "a", operate.InHand, "", 10, 0)
			require.NoError(t, err)
			require.Len(t, page.Messages, 1)
			one, err := w.topic.Find(ctx, operate.Ref{ID: w.id["x"]})
			require.NoError(t, err)
			return queue.LeasedAt(page.Messages[0].Token), queue.LeasedAt(one.Places[0].Token)
		}
		check := func() {
			listed, found := places()
			require.Equal(t, since, listed)
			require.Equal(t, since, found)
		}
		check()
		w.pass(7 * time.Millisecond)
		again := sub.ask(query)
		require.Equal(t, claimed.Messages, again.Messages, "the token is the same")
		w.do(sub.group.ExtendCalls(held(again), time.Hour)...)
		check()
		sub.nack(queue.Failure{Leased: &again.Messages[0], Retry: queue.In(time.Hour)})
		page, err := w.topic.List(ctx, "a", operate.Retrying, "", 10, 0)
		require.NoError(t, err)
		require.Empty(t, page.Messages[0].Token)
	})
}
