package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// shortLived is of a group that is removed after an hour without use.
var shortLived = queue.GroupOptions{MaxDeliveries: 5, Retention: 10 * time.Hour, Expiry: time.Hour}

func (w *world) registerFor(group string, options queue.GroupOptions) {
	w.t.Helper()
	require.NoError(w.t, w.topic.Register(ctx, group, options))
}

// end is when an unused group is removed; 0: never.
func (w *world) end(group string) int64 {
	w.t.Helper()
	return int64(w.Client.ZScore(ctx, w.keys.Idle(), group).Val())
}

func (w *world) registered() []string {
	w.t.Helper()
	groups, err := topicOf(w.Client, w.Prefix, w.topic.Name).Groups(ctx)
	require.NoError(w.t, err)
	return groups.Names
}

// fill gives the group a message in every state.
func (w *world) fill(group string, edits ...func(*queue.Claim)) []*queue.Leased {
	w.t.Helper()
	w.publish(now("dead").with(queue.Options{MaxDeliveries: 3}), now("retried"), now("leased"), now("ready"))
	s := w.sub(group)
	claimed := held(s.claim(3, edits...))
	require.Len(w.t, claimed, 3)
	require.Equal(w.t, 2, s.nack(failed(claimed[0], dead), failed(claimed[1], after(time.Hour))))
	return claimed[2:]
}

func (w *world) empty(group string) {
	w.t.Helper()
	for _, key := range keysOfTopic(w.keys, group, "", "")[ofTopic:] {
		require.Zero(w.t, w.Client.Exists(ctx, key).Val(), key)
	}
	require.Zero(w.t, w.end(group))
	require.NotContains(w.t, w.registered(), group)
}

func TestRemovedGroupLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		w.publish(in("pending", time.Hour))
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Waiters("a"), redis.Z{Score: 3e12, Member: "channel|1"}).Err())
		before, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.NoError(t, w.topic.Remove(ctx, "a"))
		w.empty("a")
		require.Equal(t, []string{"pending"}, w.stored())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Options()).Val())
		require.NotEqual(t, before.Version, w.Client.HGet(ctx, w.keys.Meta(), "groups").Val())
		require.Equal(t, []string{"pending"}, w.pending(), "waits for another group")
	}, "a")
}

func TestRemovalOfAGroupKeepsBodiesThatOtherGroupsNeed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		require.NoError(t, w.topic.Remove(ctx, "a"))
		w.empty("a")
		require.Equal(t, []string{"dead", "leased", "ready", "retried"}, w.stored())
		require.Equal(t, []string{"dead", "retried", "leased", "ready"}, w.ready("b"))
		require.Equal(t, "2", w.field(w.keys.Refs(), "ready"))
		require.NoError(t, w.topic.Remove(ctx, "b"))
		require.Equal(t, "1", w.field(w.keys.Refs(), "ready"))
		c := w.sub("c")
		require.Equal(t, 4, c.ack(held(c.claim(4))...))
		require.Empty(t, w.stored())
	}, "a", "b", "c")
}

func TestRepeatedRemovalChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		r := w.record()
		require.NoError(t, w.topic.Remove(ctx, "a"))
		calls := r.take()
		require.Len(t, calls, 1)
		w.unchanged(func() {
			require.Equal(t, int64(0), w.Client.Do(ctx, calls[0]...).Val())
			require.NoError(t, w.topic.Remove(ctx, "a"))
			require.NoError(t, w.topic.Remove(ctx, "never registered"))
		})
	}, "a", "b")
}

// The answer was lost, and a subscriber came before the call was sent again.
func TestRepeatedRemovalLeavesAGroupThatCameBack(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.fill("a")
		r := w.record()
		require.NoError(t, w.topic.Remove(ctx, "a"))
		call := r.take()[0]
		w.register("a")
		w.publishNow("new")
		w.unchanged(func() { require.Equal(t, int64(0), w.Client.Do(ctx, call...).Val()) })
		require.Equal(t, []string{"new"}, w.ready("a"))
	}, "a", "b")
}

func TestSettlingInARemovedGroupChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		leased := w.fill("a")
		require.NoError(t, w.topic.Remove(ctx, "a"))
		s := w.sub("a")
		w.unchanged(func() {
			require.Zero(t, s.ack(leased...))
			require.Zero(t, s.nack(failed(leased[0])))
			require.Zero(t, s.release(leased...))
			w.do(s.group.ExtendCalls(leased, time.Hour)...)
			c := s.query(1, idle(1, "channel|1"), func(c *queue.Claim) { c.Expiry = time.Hour })
			call := s.group.ClaimCall(c)
			w.do(call)
			_, err := c.ReadClaim(call.Cmd())
			require.ErrorIs(t, err, queue.ErrUnregistered)
		})
	}, "a", "b")
}

func TestOthersNoticeThatAGroupWasRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Remove(ctx, "a"))
		w.publishNow("y")
		require.Empty(t, w.ready("a"))
		require.Equal(t, []string{"x", "y"}, w.ready("b"))
		require.Empty(t, w.field(w.keys.Refs(), "y"))
		w.register("a")
		w.publishNow("z")
		require.Equal(t, []string{"z"}, w.ready("a"), "what came before it existed again is not its")
	}, "a", "b")
}

// removeSome runs the first call of a removal, as a process that ends then. It tells whether there
// would have been more.
func (w *world) removeSome(group string) (more bool) {
	w.t.Helper()
	first, ends := context.WithCancel(ctx)
	defer ends()
	w.Client.AddHook(hook{name: "evalsha", do: ends})
	return topicOf(w.Client, w.Prefix, w.topic.Name).Remove(first, group) != nil
}

func TestRemovalOfMoreThanTenThousand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		w.publishNow(names("%05d", 0, n)...)
		a := w.sub("a")
		claimed := held(a.claim(1000))
		require.Equal(t, 500, a.nack(failures(claimed[:500], after(time.Hour))...))
		r := w.record()
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.Len(t, r.take(), n/queue.Budget+1)
		w.empty("a")
		require.Len(t, w.stored(), n)
		require.NoError(t, w.topic.Remove(ctx, "b"))
		require.Empty(t, w.stored())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Refs()).Val())
	}, "a", "b")
}

func failures(messages []*queue.Leased, edits ...func(*queue.Failure)) (failures []queue.Failure) {
	for _, m := range messages {
		failures = append(failures, failed(m, edits...))
	}
	return failures
}

func TestInterruptedRemovalGoesOnWithTheScheduler(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%04d", 0, 2500)...)
		require.True(t, w.removeSome("a"))
		require.NotContains(t, w.registered(), "a")
		require.Len(t, w.ready("a"), 2500-queue.Budget)
		queuetest.Check(t, w.Client, w.Prefix)
		w.publishNow("x")
		require.Len(t, w.ready("a"), 2500-queue.Budget, "nothing more comes to it")

		for calls := 1; ; calls++ {
			turn := w.promote("scheduler|1")
			if len(turn.Unused) == 0 {
				require.Equal(t, 3, calls)
				break
			}
			require.Equal(t, []string{"a"}, turn.Unused)
			require.Zero(t, turn.Wait)
			_, err := w.topic.RemoveUnused(ctx, turn.Unused...)
			require.NoError(t, err)
			queuetest.Check(t, w.Client, w.Prefix)
		}
		w.empty("a")
		require.Len(t, w.stored(), 2501)
	}, "a", "b")
}

// A subscriber that registers the group again finishes the removal first. Later steps of the
// remover leave the new group alone.
func TestGroupThatComesBackInTheMiddleOfItsRemovalIsEmpty(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%04d", 0, 2500)...)
		back := false
		hooked := redis.NewClient(w.Client.(*redis.Client).Options())
		t.Cleanup(func() { _ = hooked.Close() })
		hooked.AddHook(hook{name: "evalsha", do: func() {
			if back {
				return
			}
			back = true // after the first thousand
			w.register("a")
			require.Empty(t, w.ready("a"))
			w.publishNow("new")
		}})
		require.NoError(t, topicOf(hooked, w.Prefix, "topic").Remove(ctx, "a"))
		require.True(t, back)
		require.Contains(t, w.registered(), "a")
		require.Equal(t, []string{"new"}, w.ready("a"))
		require.Len(t, w.ready("b"), 2501)
		require.Empty(t, w.promote("scheduler|1").Unused)
	}, "a", "b")
}

// Expiry.

func TestRegisteringNotesWhenAnUnusedGroupEnds(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.promote(inbox.address("holder"))
		before := w.now()
		w.registerFor("a", shortLived)
		require.GreaterOrEqual(t, w.end("a"), before+3600_000)
		require.LessOrEqual(t, w.end("a"), w.now()+3600_000)
		require.Equal(t, w.end("a"), w.next())
		told := inbox.received()
		require.Len(t, told, 1)
		require.InDelta(t, 3600_000, wait(t, told[0], "holder"), 1)
		require.Equal(t, map[string]string{"a": "5 36000000 -1"}, w.Client.HGetAll(ctx, w.keys.Groups()).Val())

		w.register("b")
		require.Zero(t, w.end("b"), "others stay")
		first := w.end("a")
		w.pass(3 * time.Millisecond)
		w.registerFor("a", shortLived)
		require.Greater(t, w.end("a"), first)
		w.registerFor("a", standard)
		require.Zero(t, w.end("a"), "it is to stay from now on")
	})
}

func TestClaimShowsThatTheGroupIsUsed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.register("b")
		uses := func(c *queue.Claim) { c.Expiry = 2 * time.Hour }
		for i, limit := range []int{0, 1, 1} { // of a busy subscription, of an idle one, of one that gets something
			if i == 2 {
				w.publishNow("x")
			}
			before := w.now()
			require.Len(t, w.sub("a").claim(limit, uses).Messages, i/2)
			require.GreaterOrEqual(t, w.end("a"), before+7200_000)
			require.LessOrEqual(t, w.end("a"), w.now()+7200_000)
		}
		last := w.end("a")
		w.pass(3 * time.Millisecond)
		w.sub("a").claim(1)
		require.Equal(t, last, w.end("a"), "one that does not know of the group's end does not move it")
		w.sub("b").claim(1)
		require.Zero(t, w.end("b"))
	})
}

// Subscribers may differ in when the group ends. That of none comes before its time, whoever
// subscribes or claims after it.
func TestEndOfAGroupIsOnlyMovedOn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", queue.GroupOptions{Expiry: 24 * time.Hour})
		w.promote("holder|1")
		for _, stop := range []bool{false, true} {
			if stop {
				require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
			}
			first := w.end("a")
			w.pass(3 * time.Millisecond)
			w.sub("a").claim(1, knows(2*time.Minute))
			require.Equal(t, first, w.end("a"), "not back by a claim")
			w.registerFor("a", queue.GroupOptions{Expiry: 2 * time.Minute})
			require.Equal(t, first, w.end("a"), "nor by who subscribes")
			require.LessOrEqual(t, w.next(), first, "the scheduler looks then")
			w.sub("a").claim(1, knows(24*time.Hour))
			require.Greater(t, w.end("a"), first)
			first = w.end("a")
			w.pass(3 * time.Millisecond)
			w.registerFor("a", queue.GroupOptions{Expiry: 24 * time.Hour})
			require.Greater(t, w.end("a"), first)
		}
		w.register("a")
		require.Zero(t, w.end("a"), "it is to stay")
		w.registerFor("a", queue.GroupOptions{Expiry: 2 * time.Minute})
		require.InDelta(t, w.now()+120_000, w.end("a"), 5000, "and is not again")
	})
}

// A waiter at the end of the group would pass for a subscriber that knows of no expiry, though it
// is gone like all others.
func TestGroupWhoseSubscribersDifferInItsEndKeepsOne(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		long, short := queue.GroupOptions{Expiry: time.Hour}, queue.GroupOptions{Expiry: 2 * time.Minute}
		for group, last := range map[string]func(){
			"claims":    func() { w.sub("claims").claim(0, knows(short.Expiry)) },
			"registers": func() { w.registerFor("registers", short) },
		} {
			w.registerFor(group, short)
			w.registerFor(group, long)
			waits := w.sub(group).claim(1, idle(1, "channel|1"), knows(long.Expiry), func(c *queue.Claim) { c.Patience = 3 * time.Minute })
			require.True(t, waits.Waits)
			last()
			w.travel(2*time.Minute + time.Second)
			w.removeUnused(group)
			require.NotZero(t, w.end(group), "one who %s", group)
			w.travel(time.Hour)
			w.endUnused(group)
			w.empty(group)
		}
	})
}

// The clock of the server is set back while an end that has come is put off.
func TestSubscriptionKeepsItsGroupWhereTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Prefix: "own", Mini: mini}, "topic")
	w.registerFor("a", shortLived)
	w.travel(2 * time.Hour)
	w.removeUnused("a")
	put := w.end("a")
	mini.SetTime(time.UnixMilli(w.now()).Add(-90 * time.Minute))
	s := w.sub("a")
	for w.now() < put {
		s.claim(0, knows(time.Hour))
		w.pass(time.Minute)
	}
	w.removeUnused("a")
	require.Contains(t, w.registered(), "a")
	require.Greater(t, w.end("a"), put, "it was moved on")
	w.travel(time.Hour)
	w.endUnused("a")
	w.empty("a")
}

func TestUnusedGroupIsRemovedAfterItsTimeAndNotEarlier(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", queue.GroupOptions{MaxDeliveries: 5, Retention: 10 * time.Hour, Expiry: 15 * time.Millisecond})
		w.fill("a", knows(15*time.Millisecond))
		ends := w.end("a")
		for {
			before := w.now()
			turn := w.promote("scheduler|1")
			if len(turn.Unused) == 0 {
				require.Less(t, before, ends)
				require.Equal(t, min(ends, w.next()), w.next())
				w.passUntil(before + 1)
				continue
			}
			require.GreaterOrEqual(t, w.now(), ends)
			require.Equal(t, []string{"a"}, turn.Unused)
			require.Zero(t, turn.Wait)
			break
		}
		w.endUnused("a")
		w.empty("a")
		require.Empty(t, w.promote("scheduler|1").Unused)
		require.Equal(t, []string{"dead", "retried", "leased", "ready"}, w.ready("b"))
	}, "b")
}

func TestGroupThatIsUsedAgainInTimeStays(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.publishNow("x")
		w.unchanged(func() {
			left, err := w.topic.RemoveUnused(ctx, "a")
			require.NoError(t, err)
			require.Empty(t, left, "it is not time yet")
		})
		w.travel(2 * time.Hour)
		require.Equal(t, []string{"a"}, w.promote("scheduler|1").Unused)
		w.sub("a").claim(0, func(c *queue.Claim) { c.Expiry = time.Hour })
		w.unchanged(func() {
			left, err := w.topic.RemoveUnused(ctx, "a")
			require.NoError(t, err)
			require.Empty(t, left)
		})
		require.Empty(t, w.promote("scheduler|1").Unused)
		w.unchanged(func() {
			for _, group := range []string{"b", "never registered"} {
				left, err := w.topic.RemoveUnused(ctx, group)
				require.NoError(t, err)
				require.Empty(t, left)
			}
		})
	}, "b")
}

// knows has the claim be of a subscription that knows of its group's end.
func knows(expiry time.Duration) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Expiry = expiry }
}

// unaware is a subscription's claim that does not know of its group's end.
func (w *world) unaware(group string, limit int) []*queue.Leased {
	return held(w.sub(group).claim(limit, idle(limit, "channel|1"), lease(4*time.Hour),
		func(c *queue.Claim) { c.Patience = 4 * time.Hour }))
}

func (w *world) removeUnused(group string) {
	w.t.Helper()
	left, err := w.topic.RemoveUnused(ctx, group)
	require.NoError(w.t, err)
	require.Empty(w.t, left)
}

// endUnused removes a group whose end has come, when its respite is over.
func (w *world) endUnused(group string) {
	w.t.Helper()
	w.removeUnused(group)
	w.respiteOver(group)
	w.removeUnused(group)
}

// hasRespite tells whether the end of a group is that of a respite.
func (w *world) hasRespite(group string) bool {
	w.t.Helper()
	return strings.HasPrefix(w.Client.HGet(ctx, w.keys.Stats(group), "ending").Val(), fmt.Sprint(w.end(group), " "))
}

// respiteOver has the respite of a group whose end has come be over now.
func (w *world) respiteOver(group string) {
	w.t.Helper()
	require.True(w.t, w.hasRespite(group))
	require.Greater(w.t, w.end(group), w.now())
	now := fmt.Sprint(w.now())
	require.NoError(w.t, w.Client.HSet(ctx, w.keys.Stats(group), "ending", now+" 1").Err())
	require.NoError(w.t, w.Client.Do(ctx, "ZADD", w.keys.Idle(), now, group).Err())
}

// Subscribers that are configured to let the group end, and others that are not, as in the course
// of a deployment.
func TestGroupWithAWaitingSubscriptionLosesItsExpiryInsteadOfBeingRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for name, stop := range map[string]bool{"waiting": false, "resting": true} {
			w.registerFor("a", shortLived)
			if stop {
				require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
			}
			w.unaware("a", 1)
			w.travel(2 * time.Hour)
			require.Equal(t, []string{"a"}, w.promote("scheduler|1").Unused)
			w.removeUnused("a")
			require.Contains(t, w.registered(), "a", name)
			require.Zero(t, w.end("a"), name)
			require.Empty(t, w.promote("scheduler|1").Unused)
		}
	})
}

func TestGroupThatHoldsALeaseEndsWithIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.publishNow("x")
		held := held(w.sub("a").claim(1, lease(4*time.Hour)))
		require.Len(t, held, 1)
		w.travel(2 * time.Hour)
		w.removeUnused("a")
		require.Contains(t, w.registered(), "a")
		require.Equal(t, int64(w.score(w.keys.Unack("a"), "x"))+1, w.end("a"))
		turn := w.promote("scheduler|1")
		require.Empty(t, turn.Unused)
		require.LessOrEqual(t, w.next(), w.end("a"), "the scheduler looks then")
		w.travel(3 * time.Hour)
		require.Equal(t, []string{"a"}, w.promote("scheduler|1").Unused)
		w.endUnused("a")
		w.empty("a")
	})
}

func TestClaimGivesAGroupNoEndThatItLost(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		uses := func(c *queue.Claim) { c.Expiry = time.Hour }
		w.registerFor("a", shortLived)
		w.register("a")
		w.sub("a").claim(1, uses)
		require.Zero(t, w.end("a"))
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		w.sub("a").claim(1, uses)
		require.Zero(t, w.end("a"), "while it is paused")

		// In the other order: the one that knows the end came last.
		w.registerFor("a", shortLived)
		before := w.now()
		w.sub("a").claim(1, uses)
		require.GreaterOrEqual(t, w.end("a"), before+3600_000)
	})
}

// In a group in which all who ever claimed know of its end, a lease is of one that is gone.
func TestGroupThatAlwaysHadAnExpiryDoesNotOutlastItByALease(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for _, first := range []queue.GroupOptions{shortLived, standard} {
			w.registerFor("a", first) // by who never claims, as SubscribeInitialize
			w.registerFor("a", shortLived)
			w.publishNow("x")
			require.Len(t, w.sub("a").claim(1, lease(4*time.Hour), knows(time.Hour)).Messages, 1)
			w.travel(2 * time.Hour)
			w.endUnused("a")
			w.empty("a")
		}
	})
}

// The group was lost, and who lets it end was the first to make it again. So the others did not
// register it.
func TestGroupStaysForASubscriptionThatDoesNotKnowItsExpiry(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for group, claim := range map[string]func(s *sub){
			"takes":           func(s *sub) { require.Len(t, s.claim(1).Messages, 1) },
			"takes and tells": func(s *sub) { require.Len(t, s.claim(1, counting).Messages, 1) },
			"has no room":     func(s *sub) { require.Empty(t, s.claim(0).Messages) },
			"tells":           func(s *sub) { require.Empty(t, s.claim(0, counting).Messages) },
			"is stopped": func(s *sub) {
				require.NoError(t, only(w.topic.Pause(ctx, "is stopped", "", "", 0)))
				require.Empty(t, s.claim(1).Messages)
			},
		} {
			w.registerFor(group, shortLived)
			w.publishNow("x")
			w.travel(2 * time.Hour)
			claim(w.sub(group))
			w.removeUnused(group)
			require.Contains(t, w.registered(), group)
			require.False(t, w.hasRespite(group), "somebody who %s", group)
			require.InDelta(t, w.now()+90_000, w.end(group), 5000, "it is looked at again when he would have asked again")
			require.NoError(t, w.topic.Remove(ctx, group))
		}
	})
}

// A process that has died is not taken for a subscriber, however long its address would be valid.
func TestAddressOfASubscriptionThatKnowsTheEndIsNotValidForLonger(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.sub("a").claim(1, idle(1, "channel|1"), func(c *queue.Claim) { c.Expiry, c.Patience = time.Hour, 9*time.Hour })
		w.travel(2 * time.Hour)
		w.endUnused("a")
		w.empty("a")
	})
}

// While there was no Redis nobody could say that he is there. So an end that has come is put off by
// two minutes, in which every subscription asks for messages; and again, if nobody looked when they
// were over.
func TestEndThatHasComeIsPutOffOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.publishNow("x")
		w.travel(2 * time.Hour)
		for range 2 {
			require.Equal(t, []string{"a"}, w.promote("scheduler|1").Unused)
			before := w.now()
			w.removeUnused("a")
			require.InDelta(t, before+120_000, w.end("a"), 5000)
			turn := w.promote("scheduler|1")
			require.Empty(t, turn.Unused)
			require.LessOrEqual(t, w.next(), w.end("a"), "the scheduler looks then")
			w.travel(2*time.Minute + 10*time.Second)
		}
		w.removeUnused("a")
		w.sub("a").claim(0, func(c *queue.Claim) { c.Expiry = time.Hour })
		require.InDelta(t, w.now()+3600_000, w.end("a"), 5000, "the subscription is there")
		w.travel(time.Hour)
		require.Equal(t, []string{"a"}, w.promote("scheduler|1").Unused)
		w.removeUnused("a")
		require.Contains(t, w.registered(), "a", "it was used since the end that was put off")
		w.respiteOver("a")
		w.removeUnused("a")
		w.empty("a")
	})
}

// A subscription that was just woken is no waiter any more, and has no message yet.
func TestGroupWithAJustWokenSubscriptionLosesItsExpiryInsteadOfBeingRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		w.registerFor("a", shortLived)
		w.travel(2 * time.Hour)
		w.removeUnused("a")
		w.unaware("a", 1)
		w.respiteOver("a")
		w.publishNow("x")
		require.Zero(t, w.Client.ZCard(ctx, w.keys.Waiters("a")).Val())
		w.removeUnused("a")
		require.Contains(t, w.registered(), "a")
		require.InDelta(t, w.now()+90_000, w.end("a"), 5000, "it is looked at again when they would have asked again")
		w.unaware("a", 2) // takes the one, and waits for another
		w.travel(2 * time.Minute)
		w.removeUnused("a")
		require.Zero(t, w.end("a"), "they wait")
	})
}

// A subscription that closes claims nothing, and then is gone.
func TestGroupWhoseLastSubscriberHasJustGoneStillEnds(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		w.registerFor("a", shortLived)
		w.travel(2 * time.Hour)
		w.sub("a").claim(0)
		w.removeUnused("a")
		require.Contains(t, w.registered(), "a")
		w.travel(2 * time.Minute)
		w.endUnused("a")
		w.empty("a")
	})
}

// Processes may live for less than a respite, each of which looks too late.
func TestEndIsPutOffThreeTimesAtMost(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", shortLived)
		w.travel(2 * time.Hour)
		for range 3 {
			w.removeUnused("a")
			require.True(t, w.hasRespite("a"))
			w.travel(5 * time.Minute)
		}
		w.removeUnused("a")
		w.empty("a")
	})
}

func TestUnusedGroupsEndTogetherManyAtATime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		publish := func(n int) {
			messages := make([]message, n)
			for i := range messages {
				messages[i] = now(fmt.Sprint(n, " ", i))
			}
			w.publish(messages...)
		}
		var groups []string
		for i := range 36 {
			groups = append(groups, fmt.Sprint(i))
			w.registerFor(groups[i], queue.GroupOptions{Expiry: time.Duration(i+1) * time.Minute})
			if i == 0 {
				publish(1990)
			}
		}
		publish(10)
		w.travel(35*time.Minute + time.Second)
		end := func(want []string, left ...[]string) {
			unused := w.promote("scheduler|1").Unused
			require.Equal(t, want, unused)
			require.Empty(t, must(w.topic.RemoveUnused(ctx, unused...)))
			for _, g := range unused {
				require.Contains(t, w.registered(), g, "it has a respite")
				w.respiteOver(g)
			}
			for _, l := range left {
				unused = must(w.topic.RemoveUnused(ctx, unused...))
				require.Equal(t, l, unused)
			}
			for _, g := range want {
				w.empty(g)
			}
		}
		// Of each of them a share of a thousand messages, then of the large one alone.
		end(groups[:32], groups[:1], groups[:1], nil)
		end(groups[32:35], nil)
		require.Equal(t, groups[35:], w.registered())
		require.Empty(t, w.promote("scheduler|1").Unused)
		require.Len(t, w.stored(), 10)
	})
}
