package queue_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// exclusively are the settings of a group of which one subscription claims at a time.
var exclusively = queue.GroupOptions{MaxDeliveries: 5, Retention: time.Hour, SingleActive: true}

// bothSingle runs a test on both servers, with a group of which one subscription claims at a time.
func bothSingle(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	both(t, func(t *testing.T, w *world) {
		w.registerFor("a", exclusively)
		test(t, w)
	})
}

// active is what is known about the active subscription of a group.
func (w *world) active(group string) queue.Active {
	w.t.Helper()
	text, err := w.Client.HGet(ctx, w.keys.Active(), group).Result()
	if err != redis.Nil {
		require.NoError(w.t, err)
	}
	return queue.ReadActive(text)
}

// succession is one look of a scheduler, with all that it finds to do. It returns the subscriptions
// that failed.
func (w *world) succession() []string {
	w.t.Helper()
	owners := []string{}
	for {
		turn := w.promote("scheduler|1")
		if turn.Expired {
			require.False(w.t, w.expire())
			continue
		}
		if len(turn.Failed) == 0 {
			return owners
		}
		failed, err := w.topic.Succeed(ctx, turn.Failed...)
		require.NoError(w.t, err)
		for _, owner := range failed {
			owners = append(owners, owner)
		}
	}
}

// takeTurns takes a group with SingleActive through its transitions.
func (w *world) takeTurns(m *wake.Mailbox) {
	r := queuetest.ReceiveFor(w.t, m, w.topic.Topic)
	defer r.Stop()
	r.Connected(w.Client)
	w.registerFor("a", exclusively)
	first, second := w.turns("a"), w.turns("a")
	require.True(w.t, first.claim(9, idle(9, w.Prefix+":nowhere|1"), lease(5*time.Millisecond)).Waits)
	require.True(w.t, second.claim(9, idle(9, r.Address), lease(5*time.Millisecond)).Waits)
	w.publishNow("x")
	require.Len(w.t, first.claim(1, lease(5*time.Millisecond)).Messages, 1)
	w.pass(10 * time.Millisecond)
	require.Equal(w.t, []string{first.id}, w.succession())
	require.Equal(w.t, "", r.Argument())
	claimed := second.claim(9)
	require.Equal(w.t, 1, second.ack(held(claimed)...))
	require.NoError(w.t, second.group.StandDown(ctx, second.id))
	for _, s := range []*sub{first, second} { // Redis forgets their last claims
		s.claim(0)
	}
	require.NoError(w.t, w.topic.Remove(ctx, "a"))
}

func TestGroupKeepsItsSettingOfSingleActive(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "plain", standard))
		require.Equal(t, queue.Layout, w.Client.HGet(ctx, w.keys.Meta(), "layout").Val())
		require.NoError(t, w.topic.Register(ctx, "a", exclusively))
		require.Equal(t, queue.Layout+" single", w.Client.HGet(ctx, w.keys.Meta(), "layout").Val(), "older versions refuse it")
		w.unchanged(func() {
			require.ErrorIs(t, w.topic.Register(ctx, "a", standard), queue.ErrGroupMode)
			require.ErrorIs(t, w.topic.Register(ctx, "plain", exclusively), queue.ErrGroupMode)
		})
		require.NoError(t, w.topic.Register(ctx, "plain", standard))
		require.NoError(t, w.topic.Register(ctx, "other", standard))
		require.Equal(t, queue.Layout+" single", w.Client.HGet(ctx, w.keys.Meta(), "layout").Val())
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.True(t, stats.Groups[0].Options().SingleActive)
		require.False(t, stats.Groups[1].Options().SingleActive)

		// A subscription from before the group was made anew has to register, and is refused.
		other := w.sub("a")
		w.publishNow("x")
		call := other.group.ClaimCall(other.query(1))
		w.do(call)
		require.ErrorIs(t, only(queue.Claim{}.ReadClaim(call.Cmd())), queue.ErrUnregistered)
		plain := w.turns("plain")
		call = plain.group.ClaimCall(plain.query(1))
		w.do(call)
		require.ErrorIs(t, only(queue.Claim{}.ReadClaim(call.Cmd())), queue.ErrUnregistered)
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.NoError(t, w.topic.Register(ctx, "a", standard))
	})
}

func TestOnlyTheActiveSubscriptionGetsMessages(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		claimed := first.claim(1, idle(1, inbox.address("1")))
		require.True(t, claimed.Waits)
		require.GreaterOrEqual(t, claimed.Epoch, w.start)
		require.Equal(t, queue.Active{Subscription: first.id, Epoch: claimed.Epoch}, w.active("a"), "no deadline runs")
		waits := second.claim(1, idle(1, inbox.address("2")))
		require.Equal(t, queue.Claimed{Waits: true}, waits)

		w.publishNow("x", "y")
		require.Equal(t, []string{"1"}, inbox.received())
		require.InDelta(t, w.now()+time.Hour.Milliseconds(), w.active("a").Ends.UnixMilli(), 5000)
		require.LessOrEqual(t, w.next(), w.active("a").Ends.UnixMilli())
		require.Empty(t, second.claim(1, idle(1, inbox.address("2"))).Messages)
		got := first.claim(1, idle(1, inbox.address("1")))
		require.Equal(t, []string{"x"}, bodies(got))
		require.Equal(t, claimed.Epoch, got.Epoch)
		require.Equal(t, 1, first.ack(held(got)...))
		require.Empty(t, second.claim(1).Messages, "also between two claims")
		lane := w.turns("a")
		lane.id = queue.SecondLane(first.id)
		require.Equal(t, []string{"y"}, bodies(lane.claim(1)), "the second lane is the same owner")
		require.Empty(t, inbox.received())
	})
}

func TestSubscriptionThatClosesHandsOver(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		w.publishNow("x", "y")
		got := first.claim(1)
		second.claim(1, idle(1, inbox.address("2")))
		w.unchanged(func() { require.NoError(t, first.group.StandDown(ctx, first.id)) }) // it holds a message
		require.Equal(t, 1, first.ack(held(got)...))
		w.unchanged(func() { require.NoError(t, second.group.StandDown(ctx, second.id)) })
		require.NoError(t, first.group.StandDown(ctx, first.id))
		require.Equal(t, []string{"2"}, inbox.received())
		w.unchanged(func() { require.NoError(t, first.group.StandDown(ctx, first.id)) })
		next := second.claim(9, idle(9, inbox.address("2")))
		require.Equal(t, []string{"y"}, bodies(next))
		require.Greater(t, next.Epoch, got.Epoch)
		require.Zero(t, w.Client.Exists(ctx, w.keys.Standby("a")).Val())
		require.Empty(t, first.claim(9).Messages)
	})
}

func TestStandbyWithFullHandsPassesTheFreePlaceOn(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second, third := w.turns("a"), w.turns("a"), w.turns("a")
		first.claim(1)
		second.claim(1, idle(1, inbox.address("2")))
		w.pass(2 * time.Millisecond)
		third.claim(1, idle(1, inbox.address("3")))
		w.publishNow("x")
		require.NoError(t, first.group.StandDown(ctx, first.id))
		require.Equal(t, []string{"2"}, inbox.received())
		second.claim(0, idle(0, inbox.address("2")))
		require.Equal(t, []string{"3"}, inbox.received())
		require.False(t, w.active("a").Ends.IsZero(), "if the third one does not claim, another has to be woken")
		second.claim(0, idle(0, inbox.address("2")))
		require.Empty(t, inbox.received(), "nobody stands by")
		require.Equal(t, []string{"x"}, bodies(third.claim(1)))
		second.claim(0, idle(0, inbox.address("2")))
		require.Equal(t, third.id, w.active("a").Subscription)
	})
}

// The next one gets what the owner held first, and in order.
func TestLeasesOfAFailedOwnerEndTogetherBeforeAnotherClaims(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		w.publishNow("1", "2", "3", "4")
		one := first.claim(1, lease(time.Minute))
		first.claim(2, lease(time.Hour))
		second.claim(1, idle(1, inbox.address("2")))
		w.publishNow("5")
		require.Empty(t, w.succession())
		w.travel(time.Minute + time.Millisecond)
		require.Empty(t, second.claim(9, idle(9, inbox.address("2"))).Messages, "nobody knows yet")
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("a"))
		got := second.claim(9)
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, bodies(got))
		require.Zero(t, first.ack(held(one)...))
		late := first.claim(9, idle(9, inbox.address("1")))
		require.Equal(t, queue.Claimed{Waits: true}, late, "a frozen owner that wakes stands by")
		require.Greater(t, got.Epoch, one.Epoch)
	})
}

// An owner that is woken and frozen, or killed, has a lease's time to claim.
func TestWokenOwnerThatDoesNotClaimIsReplaced(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second, third := w.turns("a"), w.turns("a"), w.turns("a")
		first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		second.claim(1, idle(1, inbox.address("2")))
		third.claim(1, idle(1, inbox.address("3")))
		w.travel(time.Minute / 2)
		require.Empty(t, w.succession(), "while idle no deadline runs")
		w.publish(in("x", time.Minute))
		w.travel(time.Minute + 2*time.Millisecond) // delays are rounded up
		require.Empty(t, w.succession())
		require.Equal(t, []string{"1"}, inbox.received(), "promote wakes the owner")
		require.InDelta(t, time.Minute, time.UnixMilli(w.next()).Sub(time.UnixMilli(w.now())), float64(10*time.Second))
		w.travel(time.Minute + time.Millisecond)
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		require.Empty(t, w.active("a").Subscription)
		w.travel(time.Minute + time.Millisecond)
		require.Empty(t, w.succession(), "there is no owner that failed")
		require.Equal(t, []string{"3"}, inbox.received(), "the next standby, if the first one does not come")
		require.Equal(t, []string{"x"}, bodies(third.claim(9, idle(9, inbox.address("3")))))
	})
}

// The server knows at once that nobody listens where a killed owner waited.
func TestOwnerThatNobodyHearsIsReplacedAtOnce(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		first.claim(1, idle(1, queue.MailboxChannel(w.Prefix, "gone")+"|1"))
		second.claim(1, idle(1, inbox.address("2")))
		w.publishNow("x")
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		require.Equal(t, []string{"x"}, bodies(second.claim(1)))
	})
}

func TestOwnerWhoseHandlerRunsLongStaysActive(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		first, second := w.turns("a"), w.turns("a")
		w.publishNow("x", "y")
		got := first.claim(1, lease(time.Minute))
		second.claim(1, idle(1, "nobody|2"))
		for range 5 {
			w.travel(time.Minute - time.Second)
			w.do(first.group.ExtendCalls(held(got), time.Minute)...)
			require.Empty(t, w.succession())
		}
		require.Equal(t, 1, first.nack(failed(held(got)[0])))
		require.Empty(t, w.succession())
		require.Equal(t, []string{"x"}, bodies(first.claim(1)))
	})
}

// Without a standby the owner that failed may come back, with a new epoch.
func TestOwnerThatFailedMayComeBack(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first := w.turns("a")
		before := first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		w.publishNow("x")
		w.travel(time.Minute + time.Millisecond)
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, queue.Active{Epoch: before.Epoch}, w.active("a"))
		got := first.claim(1)
		require.Equal(t, []string{"x"}, bodies(got))
		require.Greater(t, got.Epoch, before.Epoch)
	})
}

// Its messages come again, so what it did before must not count against what comes now.
func TestOwnerWhoseLeasesRanOutGetsANewEpoch(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		first := w.turns("a")
		w.publishNow("x")
		before := first.claim(1, lease(time.Minute))
		w.travel(time.Minute + time.Millisecond)
		require.False(t, w.expire())
		again := first.claim(1)
		require.Equal(t, []string{"x"}, bodies(again))
		require.Greater(t, again.Epoch, before.Epoch)
	})
}

// A lease that is over takes the others with it when the scheduler comes to it. So an owner that
// stood still, and is back before the scheduler, gets nothing that another gets next.
func TestOwnerWithALeaseThatIsOverGetsNothing(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		w.publishNow("1", "2", "3")
		before := first.claim(1, lease(time.Minute))
		first.claim(1, lease(time.Hour))
		second.claim(1, idle(1, inbox.address("2")))
		w.travel(time.Minute + time.Millisecond)
		require.Equal(t, queue.Claimed{Waits: true}, first.claim(9, idle(9, inbox.address("1"))))
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		got := second.claim(9)
		require.Equal(t, []string{"1", "2", "3"}, bodies(got))
		require.Greater(t, got.Epoch, before.Epoch)
	})
}

// Its leases may be settled before the scheduler takes them back. Then nobody waits for them.
func TestOwnerWithALeaseThatIsOverFreesThePlaceWithItsLeases(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		w.publishNow("1", "2")
		before := first.claim(1, lease(time.Minute))
		second.claim(1, idle(1, inbox.address("2")))
		w.travel(time.Minute + time.Millisecond)
		first.claim(1)
		require.LessOrEqual(t, w.next(), w.now())
		require.Equal(t, 1, first.ack(held(before)...))
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		got := second.claim(9)
		require.Equal(t, []string{"2"}, bodies(got))
		require.Greater(t, got.Epoch, before.Epoch)
	})
}

// The pause stops the deadline, and its end starts it again.
func TestPausedGroupKeepsItsOwner(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		got := first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		second.claim(1, idle(1, inbox.address("2")), lease(time.Minute))
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		w.publishNow("x")
		require.Equal(t, []string{"1"}, inbox.received())
		require.True(t, first.claim(1, idle(1, inbox.address("1")), lease(time.Minute)).Waits)
		w.travel(2 * time.Minute)
		require.Empty(t, w.succession())
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Equal(t, []string{"1"}, inbox.received())
		require.False(t, w.active("a").Ends.IsZero())
		again := first.claim(1)
		require.Equal(t, []string{"x"}, bodies(again))
		require.Equal(t, got.Epoch, again.Epoch)
	})
}

// It may have been frozen in the pause, and then it is in waiters no more.
func TestOwnerThatDoesNotComeAfterAPauseIsReplaced(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		second.claim(1, idle(1, inbox.address("2")))
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Equal(t, []string{"1"}, inbox.received())
		w.travel(time.Minute + time.Millisecond)
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
		w.publishNow("x")
		require.Equal(t, []string{"x"}, bodies(second.claim(1)))
	})
}

func TestEpochGrowsAlsoAfterALossOfData(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.registerFor("a", exclusively)
		first := w.turns("a").claim(1)
		w.pass(2 * time.Millisecond)
		require.NoError(t, w.Client.FlushAll(ctx).Err())
		w.topic = topicOf(w.Client, w.Prefix, "topic")
		w.registerFor("a", exclusively)
		require.Greater(t, w.turns("a").claim(1).Epoch, first.Epoch)
	})
}

// A standby scheduler waits a second for the holder. Here it waits less: the holder may be in the
// process that failed.
func TestStandbySchedulerOfATopicWithSingleActiveWaitsForAShortTime(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		require.Equal(t, queue.Holder, w.promote("holder|1").Role)
		first := w.turns("a")
		w.publishNow("x")
		first.claim(1, lease(time.Minute))
		turn := w.promote("standby|1")
		require.Equal(t, queue.Standby, turn.Role)
		require.InDelta(t, 850*time.Millisecond, turn.Wait, float64(500*time.Millisecond), "the next look is sooner than the lease's end")
		require.Less(t, turn.Wait, 851*time.Millisecond+time.Microsecond)
		w.travel(852 * time.Millisecond)
		require.Equal(t, queue.Holder, w.promote("standby|1").Role)
	})
}

func TestStatsShowWhoIsActive(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		first, second := w.turns("a"), w.turns("a")
		got := first.claim(1, idle(1, "nobody|1"))
		second.claim(1, idle(1, "nobody|2"))
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		g := stats.Groups[0]
		require.Equal(t, queue.Active{Subscription: first.id, Epoch: got.Epoch}, g.Active())
		require.Equal(t, []int{1, 1}, []int{g.Number("waiters"), g.Number("standbys")})
		require.True(t, g.Subscribed())
		second.claim(0, idle(0, "nobody|2"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Standby("a")).Val(), "a standby that closes goes")
	})
}

// The setting is behind the others in the group's options.
func TestGroupWithSingleActiveKeepsDeadLettersForItsRetention(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.turns("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], dead)))
		w.travel(exclusively.Retention - time.Minute)
		require.False(t, w.promote("scheduler|1").Purge)
		w.travel(2 * time.Minute)
		require.True(t, w.promote("scheduler|1").Purge)
		w.purge()
		require.Empty(t, w.dead("a"))
	})
}

// A failover may lose that another subscription took over. A resource that has seen that one's
// epoch must not refuse all that the one before it does.
func TestEpochGrowsAfterAFailoverThatLostATakeover(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		first, second := w.turns("a"), w.turns("a")
		before := first.claim(1)
		record := w.Client.HGet(ctx, w.keys.Active(), "a").Val()
		require.NoError(t, first.group.StandDown(ctx, first.id))
		after := second.claim(1)
		require.Greater(t, after.Epoch, before.Epoch)
		knows := func(c *queue.Claim) { c.Epoch = after.Epoch }

		require.NoError(t, w.Client.HSet(ctx, w.keys.Active(), "a", record).Err())
		require.Zero(t, second.claim(1, knows, idle(1, "nobody|2")).Epoch)
		w.publishNow("x")
		again := first.claim(1)
		require.Equal(t, []string{"x"}, bodies(again))
		require.Greater(t, again.Epoch, after.Epoch)
		require.Zero(t, second.claim(1, knows).Epoch)
		require.Equal(t, again.Epoch, first.claim(1).Epoch, "it grows once")
	})
}

// It is in waiters and not in resting, since no message had it claim in the pause.
func TestIdleOwnerIsWokenAtTheEndOfAPause(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		before := first.claim(1, idle(1, inbox.address("1")), lease(time.Minute))
		second.claim(1, idle(1, inbox.address("2")))
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Equal(t, []string{"1"}, inbox.received())
		require.Equal(t, before.Epoch, first.claim(1, idle(1, inbox.address("1")), lease(time.Minute)).Epoch)
		w.travel(2 * time.Minute)
		require.Empty(t, w.succession())
	})
}

// Other topics pay nothing for the setting: their scripts do not look at its keys.
func TestOtherTopicsDoNotUseTheKeysOfSingleActive(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		own := []string{w.keys.Active(), w.keys.Standby("a")}
		spoil := func() {
			for _, key := range own {
				require.NoError(t, w.Client.Set(ctx, key, "of a wrong type", 0).Err())
			}
		}
		travel := func(d time.Duration) {
			require.NoError(t, w.Client.Del(ctx, own...).Err())
			w.travel(d)
			spoil()
		}
		spoil()
		s := w.sub("a")
		s.claim(9, idle(9, "nobody|1"))
		w.publish(now("x"), in("y", time.Minute), in("z", time.Minute))
		claimed := held(s.claim(9))
		require.Equal(t, 1, s.nack(failed(claimed[0])))
		require.NotEmpty(t, s.release(held(s.claim(9))...))
		travel(2 * time.Minute)
		w.promote("scheduler|1")
		s.claim(9)
		travel(2 * time.Hour)
		w.expire()
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.NoError(t, w.Client.Del(ctx, own...).Err())
	})
}

// A process may end while it waits, and a server that loses writes may lose that it was woken.
func TestIdleOwnerWithoutAValidAddressIsReplaced(t *testing.T) {
	bothSingle(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		first, second := w.turns("a"), w.turns("a")
		forAMinute := func(c *queue.Claim) { c.Patience = time.Minute }
		first.claim(1, idle(1, inbox.address("1")), lease(time.Minute), forAMinute)
		for range 2 {
			second.claim(1, idle(1, inbox.address("2")))
			require.Zero(t, w.active("a").Ends, "its address is valid")
		}
		w.travel(time.Minute + time.Millisecond)
		require.Empty(t, w.succession())
		second.claim(1, idle(1, inbox.address("2")))
		require.Empty(t, w.succession(), "it has its lease's time to claim")
		w.travel(time.Minute + time.Millisecond)
		require.Equal(t, []string{first.id}, w.succession())
		require.Equal(t, []string{"2"}, inbox.received())
	})
}
