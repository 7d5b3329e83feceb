package queue_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

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
	claimed := s.claim(len(due))
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

func TestNothingPassesAMessageThatStaysForTheNextCall(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		// 900 retries of a interleave with 3000 fresh ones; each call moves at most a thousand of
		// each.
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
		// Group b alone has retries, and so all of the budget of a step, 1000. They come before all
		// that is fresh, by their IDs, so nothing fresh moves in any group before they have.
		w.publishNow(names("r%04d", 0, 1200)...)
		due := w.now() + time.Hour.Milliseconds()
		for _, from := range []int{0, 600} {
			retries := map[string]int64{}
			for _, name := range names("r%04d", from, from+600) {
				retries[name] = due
			}
			w.retryAt("b", retries)
		}
		var fresh []message
		for _, name := range names("x%04d", 0, 400) {
			fresh = append(fresh, at(name, due))
		}
		w.publish(fresh...)
		w.travel(2 * time.Hour)
		require.Zero(t, w.promote("scheduler|1").Wait)
		sameOrder(t, names("r%04d", 0, 1000), w.ready("b"))
		require.Len(t, w.pending(), 400)
		w.promoteAll()
		want := append(names("r%04d", 0, 1200), names("x%04d", 0, 400)...)
		sameOrder(t, want, w.ready("a"))
		sameOrder(t, want, w.ready("b"))
	}, "a", "b", "c")
}

func TestGroupsThatHaveRetriesShareAStep(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("r%04d", 0, 700)...)
		due := w.now() + time.Hour.Milliseconds()
		retries := map[string]int64{}
		for i := range 700 {
			retries[fmt.Sprintf("r%04d", i)] = due
		}
		w.retryAt("b", retries)
		w.retryAt("c", retries)
		w.travel(2 * time.Hour)
		w.promote("scheduler|1")
		sameOrder(t, names("r%04d", 0, 500), w.ready("b"))
		sameOrder(t, names("r%04d", 0, 500), w.ready("c"))
	}, "a", "b", "c", "d")
}

func TestPromoteOfMoreThanTenThousand(t *testing.T) {
	for _, groups := range [][]string{{"a"}, {"a", "b", "c"}} {
		t.Run(fmt.Sprint(len(groups)), func(t *testing.T) {
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

// If all messages that one call can move are due in the same millisecond, their due times are not
// read one by one.
func TestManyDueInTheSameMillisecondKeepTheirDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const share = queue.Budget / 2
		due := w.now() + time.Hour.Milliseconds()
		var messages []message
		dues := map[string]int64{}
		for i, name := range names("%04d", 0, 3*share) {
			dues[name] = due
			if i >= 2*share+share/2 {
				dues[name] = due + 7
			}
			messages = append(messages, at(name, dues[name]))
		}
		w.publish(messages...)
		w.travel(2 * time.Hour)
		w.promoteAll()
		for _, g := range []string{"a", "b"} {
			entries := w.Client.LRange(ctx, w.keys.Ready(g), 0, -1).Val()
			require.Len(t, entries, 3*share)
			first := entryDue(t, entries[0])
			for i, entry := range entries {
				name := w.name[entry[:strings.Index(entry, ":")]]
				require.Equal(t, fmt.Sprintf("%04d", i), name)
				require.Equal(t, dues[name]-due, entryDue(t, entry)-first, name)
				require.Equal(t, "2", w.field(w.keys.Refs(), name))
			}
			require.Less(t, first, w.now())
		}
		require.Empty(t, w.pending())
	}, "a", "b")
}

// Messages due within the last milliseconds are read millisecond by millisecond.
func TestMessagesDueInSuccessiveMillisecondsKeepTheirDueTimes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const share = queue.Budget / 2
		due := w.now() + time.Hour.Milliseconds()
		after := func(i int) int64 { // most are due in the first and in the third millisecond, and none in the second
			return int64(i / (share * 3 / 4) * 2)
		}
		var messages []message
		ids := names("%04d", 0, share*3/2)
		for i, name := range ids {
			messages = append(messages, at(name, due+after(i)))
		}
		w.publish(append(messages, at("early", due+3))...)
		w.travel(time.Duration(due+2-w.now()) * time.Millisecond)
		w.promote("scheduler|1")
		if w.Mini != nil { // whose clock stands still
			require.Len(t, w.ready("a"), share)
			w.promoteAll()
			require.Equal(t, []string{"early"}, w.pending())
		}
		w.promoteAll()
		for _, g := range []string{"a", "b"} {
			require.Equal(t, ids, w.ready(g)[:len(ids)])
			entries := w.Client.LRange(ctx, w.keys.Ready(g), 0, -1).Val()
			for i := range ids {
				require.Equal(t, after(i), entryDue(t, entries[i])-entryDue(t, entries[0]), ids[i])
			}
		}
	}, "a", "b")
}

func TestPromoteTellsWhenTheNextRetryIsDue(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := s.claim(2)
		s.nack(failed(&claimed.Messages[0], after(time.Minute)), failed(&claimed.Messages[1], after(time.Hour)))
		for _, name := range []string{"x", "y"} {
			w.promote("scheduler|1")
			require.Equal(t, int64(w.score(w.keys.Retry("a"), name)), w.next())
			w.travel(2 * time.Minute)
		}
	}, "a")
}

func TestMessagesDueLaterInTheSameMillisecondStay(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("leased")
		w.sub("a").claim(1, func(c *queue.Claim) { c.Lease = time.Minute })
		w.travel(time.Hour)
		later := w.now() + time.Hour.Milliseconds()
		var messages []message
		for _, name := range names("%04d", 0, queue.Budget) {
			messages = append(messages, at(name, later))
		}
		w.publish(messages...)
		require.Less(t, w.next(), w.now()-10, "a lease has run out long ago")
		require.True(t, w.promote("scheduler|1").Expired)
		require.Empty(t, w.ready("a"))
		require.Len(t, w.pending(), queue.Budget)
	}, "a")
}

func entryDue(t *testing.T, entry string) int64 {
	t.Helper()
	_, due, _ := strings.Cut(entry, ":")
	ms, err := strconv.ParseInt(due, 10, 64)
	require.NoError(t, err)
	return ms
}

func TestPromotingTwiceMovesNothingMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Millisecond), in("later", time.Hour))
		w.passUntil(int64(w.score(w.keys.Pending(), "x")))
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute, true)
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
		require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
		w.pass(5 * time.Millisecond)
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute, true)
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
		call := w.topic.PromoteCall(groups, "scheduler|1", time.Minute, true)
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
