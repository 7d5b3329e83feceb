package queue_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestOneHolderOneStandbyAndOthers(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		s := w.Prefix + "-s"
		w.process(s)
		waits := func(turn queue.Turn, want time.Duration) {
			t.Helper()
			if w.Mini != nil {
				require.Equal(t, want, turn.Wait)
			}
			require.InDelta(t, want, turn.Wait, float64(time.Minute))
		}
		for range 2 {
			turn := w.promote(s + "|1")
			require.Equal(t, queue.Holder, turn.Role)
			waits(turn, time.Hour)
			turn = w.promote(s + "|2")
			require.Equal(t, queue.Standby, turn.Role)
			waits(turn, time.Hour+51*time.Millisecond)
			require.Equal(t, queue.Turn{Role: queue.Other, Wait: -1}, w.promote(s+"|3"))
			require.Equal(t, queue.Turn{Role: queue.Other, Wait: -1}, w.promote(s+"|4"))
		}
		require.Equal(t, s+"|1", w.Client.HGet(ctx, w.keys.Scheduler(), "holder").Val())
		require.Equal(t, s+"|2", w.Client.HGet(ctx, w.keys.Scheduler(), "standby").Val())
	}, "a")
}

func TestStandbyThatIsNotSeenIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		s := w.Prefix + "-s"
		w.process(s)
		w.promote(s + "|1")
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		w.do(w.topic.PromoteCall(groups, s+"|2", time.Millisecond, true))
		w.pass(3 * time.Millisecond)
		require.Equal(t, queue.Turn{Role: queue.Standby, Wait: -1}, w.promote(s+"|3"))
		require.Equal(t, queue.Other, w.promote(s+"|2").Role)
		require.Equal(t, queue.Holder, w.promote(s+"|1").Role)
	}, "a")
}

func TestOnlyTheHolderMovesDueMessagesUntilItIsLate(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		box := w.Prefix + "-box"
		holder, standby := box+"|holder", box+"|standby"
		w.process(box)
		w.promote(holder)
		w.promote(standby)
		w.travel(time.Hour + time.Millisecond)
		due := int64(w.score(w.keys.Pending(), "x"))
		for w.now() < due+1000 {
			early := []queue.Role{w.promote(standby).Role, w.promote(box + "|other").Role}
			ready := w.ready("a")
			if w.now() >= due+1000 { // it took long, so one of them may have been late
				require.Nil(t, w.Mini, "only the real clock goes on meanwhile")
				return
			}
			require.Equal(t, []queue.Role{queue.Standby, queue.Other}, early)
			require.Empty(t, ready)
			w.pass(333 * time.Millisecond)
		}
		w.passUntil(due + 1001)
		turn := w.promote(standby)
		require.Equal(t, queue.Holder, turn.Role, "a second after a missed event anyone may take the lease")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, map[string]string{"holder": standby}, w.Client.HGetAll(ctx, w.keys.Scheduler()).Val())
		require.Equal(t, queue.Standby, w.promote(holder).Role, "the late one is not the holder any more")
	}, "a")
}

func TestAnyProcessMayTakeTheLeaseOfALateHolder(t *testing.T) {
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

func TestMessagesClaimedTogetherComeBackTogether(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		length := 20 * time.Millisecond
		if w.Mini == nil {
			length = 2 * time.Second // its clock goes on while the test looks
		}
		claimed := held(s.claim(3, lease(length)))
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
		// The order of due times is not that of the ids.
		w.publish(in("3", 3*time.Millisecond), in("1", time.Millisecond), in("2", 2*time.Millisecond),
			in("6", 6*time.Millisecond), in("5", 5*time.Millisecond), in("4", 4*time.Millisecond))
		w.pass(6 * time.Millisecond)
		w.promoteAll()
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
		require.Equal(t, []string{"holder", "next"}, slices.Sorted(maps.Keys(w.Client.HGetAll(ctx, w.keys.Scheduler()).Val())))
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

// The standby of the holder's process would end with it.
func TestStandbyIsOfAnotherProcessThanTheHolderIfThereIsAny(t *testing.T) {
	inBothModes(t, func(t *testing.T, w *world, _ func(...message)) {
		one, other := w.Prefix+"-one", w.Prefix+"-other"
		w.process(one)
		end := w.process(other)
		require.Equal(t, queue.Holder, w.promote(one+"|1").Role)
		require.Equal(t, queue.Standby, w.promote(one+"|2").Role)
		require.Equal(t, queue.Other, w.promote(one+"|3").Role)
		require.Equal(t, queue.Standby, w.promote(other+"|1").Role)
		require.Equal(t, queue.Other, w.promote(one+"|2").Role)
		require.Equal(t, queue.Other, w.promote("third|1").Role)
		require.Equal(t, queue.Standby, w.promote(other+"|1").Role)
		require.Equal(t, queue.Holder, w.promote(one+"|1").Role)
		end()
		require.Equal(t, queue.Standby, w.promote("third|1").Role, "the standby is gone")
	})
}

// A backlog is not done in one step. Whoever works on it is not late.
func TestHolderKeepsABacklogThatIsOverdueToItself(t *testing.T) {
	inBothModes(t, func(t *testing.T, w *world, publish func(...message)) {
		var backlog []message
		for _, m := range names("%04d", 0, 1200) {
			backlog = append(backlog, in(m, time.Second))
		}
		publish(backlog...)
		w.travel(time.Minute)
		one := w.inbox().address("1") // a holder that nobody hears loses its place sooner
		turn := w.promote(one)
		require.Equal(t, queue.Holder, turn.Role)
		require.LessOrEqual(t, turn.Wait, time.Duration(0))
		require.Equal(t, queue.Standby, w.promote("other|1").Role)
		for w.anyDue() {
			require.Equal(t, queue.Holder, w.promote(one).Role)
		}
	})
}

// inBothModes runs a test on a topic with a group, and on one with a stream.
func inBothModes(t *testing.T, test func(t *testing.T, w *world, publish func(...message))) {
	t.Run("group", func(t *testing.T) {
		both(t, func(t *testing.T, w *world) { test(t, w, w.publish) }, "a")
	})
	t.Run("stream", func(t *testing.T) {
		bothStreaming(t, func(t *testing.T, w *world) { test(t, w, w.send) })
	})
}

func TestNotedFaultIsBoundedAndGoesWithTheNextPromotion(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		fault := func() string { return w.Client.HGet(ctx, w.keys.Scheduler(), "fault").Val() }
		require.NoError(t, w.topic.NoteFault(ctx, errors.New(strings.Repeat("ü", 600))))
		at, text, _ := strings.Cut(fault(), " ")
		require.Regexp(t, `^\d{13}$`, at)
		require.Equal(t, strings.Repeat("ü", 254)+"...", text)
		w.promote("s|1")
		require.Empty(t, fault())

		w.publish(now("x"))
		w.sub("a").claim(1)
		w.travel(2 * time.Hour)
		require.NoError(t, w.topic.NoteFault(ctx, errors.New("y")))
		require.True(t, w.promote("s|1").Expired)
		require.NotEmpty(t, fault(), "work is left")
		w.expireAll()
		w.promote("s|1")
		require.Empty(t, fault())

		none := topicOf(w.Client, w.Prefix, "none")
		require.NoError(t, none.NoteFault(ctx, errors.New("y")))
		require.Zero(t, w.Client.Exists(ctx, none.Keys().Scheduler()).Val(), "a deleted topic stays away")
	}, "a")
}
