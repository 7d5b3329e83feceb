package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// limitTo registers a group with a limit.
func (w *world) limitTo(group string, limit queue.GroupLimit, edits ...func(*queue.GroupOptions)) {
	w.t.Helper()
	o := standard
	o.Limit = limit
	for _, edit := range edits {
		edit(&o)
	}
	require.NoError(w.t, w.topic.Register(ctx, group, o))
}

// woken has a claim be one of a subscription that was woken, and that could hand out so many
// messages.
func woken(slots int, address string) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Slots, c.Address, c.Turn = slots, address, true }
}

// settling has a claim be one that goes with settlements: nobody woke the subscription.
func settling(slots int, address string) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Slots, c.Address = slots, address }
}

func perSecond(rate float64, burst int) queue.GroupLimit {
	return queue.GroupLimit{Rate: rate, Burst: burst}
}

// aToken is the time of a token of slowly. However busy the machine is, no test earns one unless it
// travels.
const aToken = 10*time.Second + time.Millisecond

func slowly(burst int) queue.GroupLimit { return perSecond(0.1, burst) }

func (w *world) limited(group string) (addresses []string) {
	w.t.Helper()
	addresses, err := w.Client.ZRange(ctx, w.keys.Limited(group), 0, -1).Result()
	require.NoError(w.t, err)
	return addresses
}

func TestBurstAndRateAreShared(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(3))
		w.publishNow(names("%d", 0, 20)...)
		first, second := w.sub("a"), w.sub("a")
		box := w.inbox()

		got := first.claim(9, woken(2, box.address("first")))
		require.Equal(t, []string{"0", "1"}, bodies(got), "no more than it could hand out at once")
		require.Equal(t, queue.RateLimited, got.Limits)
		require.True(t, got.More)
		got = second.claim(9, woken(9, box.address("second")))
		require.Equal(t, []string{"2"}, bodies(got))
		require.True(t, got.Waits)
		require.Equal(t, []string{box.address("second")}, w.limited("a"))
		w.travel(aToken)
		require.Equal(t, []string{"3"}, bodies(second.claim(9, woken(9, box.address("second")))))
		require.Empty(t, bodies(first.claim(9, woken(9, box.address("first")))))
	})
}

func TestNextTokenIsAnEventAndWakesInTurn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(1))
		w.publishNow(names("%d", 0, 9)...)
		box := w.inbox()
		for i, name := range []string{"first", "second", "third"} {
			require.True(t, w.sub("a").claim(9, woken(9, box.address(name)), patient(time.Hour+time.Duration(i)*time.Second)).Waits)
		}
		nextToken := func() { // the next other event is the end of a lease, in an hour
			require.LessOrEqual(t, w.next(), w.now()+aToken.Milliseconds())
		}
		nextToken()
		require.Positive(t, w.promote("scheduler|1").Wait)
		nextToken()
		require.Empty(t, box.received())
		for _, name := range []string{"first", "second", "third"} {
			w.travel(aToken)
			w.promote("scheduler|1")
			require.Equal(t, []string{name}, box.received(), "as many as there are tokens, first come first")
			if len(w.limited("a")) > 0 {
				nextToken()
			}
			require.Len(t, w.sub("a").claim(1, woken(1, box.address("another"))).Messages, 1)
		}
		require.Empty(t, w.limited("a"))
	})
}

func patient(d time.Duration) func(*queue.Claim) {
	return func(c *queue.Claim) { c.Patience = d }
}

func TestThoseWokenTogetherShareTheTokens(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(4))
		w.publishNow(names("%d", 0, 30)...)
		box := w.inbox()
		subs := []*sub{w.sub("a"), w.sub("a")}
		require.Len(t, subs[0].claim(9, woken(9, box.address("0"))).Messages, 4)
		require.Empty(t, subs[1].claim(9, woken(9, box.address("1"))).Messages)
		w.travel(4 * aToken)
		w.promote("scheduler|1")
		require.Equal(t, []string{"0", "1"}, box.received())
		for i, s := range subs {
			require.Len(t, s.claim(9, woken(9, box.address(fmt.Sprint(i)))).Messages, 2)
		}
	})
}

func TestAClaimThatNobodyWokeLeavesTokensToThoseThatWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", queue.GroupLimit{AtOnce: 2})
		w.publishNow(names("%d", 0, 9)...)
		box := w.inbox()
		first, second := w.sub("a"), w.sub("a")
		got := first.claim(9, woken(5, box.address("first")))
		require.Equal(t, []string{"0", "1"}, bodies(got))
		require.Equal(t, queue.AtOnceLimited, got.Limits)
		require.True(t, second.claim(9, woken(5, box.address("second"))).Waits)

		first.ack(held(got)[0])
		again := first.claim(9, settling(4, box.address("first")))
		require.Empty(t, again.Messages)
		require.True(t, again.Waits)
		require.Equal(t, []string{"first"}, box.received(), "it has waited longest")
		w.pass(time.Millisecond)
		require.Equal(t, []string{"2"}, bodies(first.claim(9, woken(4, box.address("first")))))
		first.ack(held(got)[1])
		require.Empty(t, first.claim(9, settling(4, box.address("first"))).Messages)
		require.Equal(t, []string{"second"}, box.received())
		require.Equal(t, []string{"3"}, bodies(second.claim(9, woken(5, box.address("second")))))
	})
}

// All that ends leases makes room for others.
func TestEndsOfLeasesMakeRoom(t *testing.T) {
	for name, end := range map[string]func(w *world, s *sub, m *queue.Leased){
		"killed": func(w *world, s *sub, m *queue.Leased) {
			_, err := w.topic.Kill(ctx, "a", m.ID, "reason")
			require.NoError(w.t, err)
			w.promote("scheduler|1")
		},
		"expired": func(w *world, s *sub, m *queue.Leased) {
			w.travel(time.Minute)
			w.expire()
			w.promote("scheduler|1")
		},
		"lifted": func(w *world, s *sub, m *queue.Leased) {
			w.setLimit("a", &queue.GroupLimit{})
			w.promote("scheduler|1")
		},
		"raised": func(w *world, s *sub, m *queue.Leased) {
			w.setLimit("a", &queue.GroupLimit{AtOnce: 2})
			w.promote("scheduler|1")
		},
		"registered anew": func(w *world, s *sub, m *queue.Leased) {
			w.limitTo("a", queue.GroupLimit{AtOnce: 2})
			w.promote("scheduler|1")
		},
		"released":         func(w *world, s *sub, m *queue.Leased) { s.release(m); s.claim(0) },
		"closed with acks": func(w *world, s *sub, m *queue.Leased) { s.ack(m); s.claim(0) },
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", queue.GroupLimit{AtOnce: 1})
				w.publishNow("x", "y", "z")
				box := w.inbox()
				s := w.sub("a")
				got := s.claim(1, woken(1, w.Prefix+":nowhere|1"), lease(30*time.Second))
				require.Len(t, got.Messages, 1)
				require.True(t, w.sub("a").claim(1, woken(1, box.address("waits")), patient(100*time.Hour)).Waits)
				require.Empty(t, box.received())
				end(w, s, held(got)[0])
				require.Equal(t, []string{"waits"}, box.received())
				require.Len(t, w.sub("a").claim(1, woken(1, box.address("waits"))).Messages, 1)
			})
		})
	}
}

func (w *world) setLimit(group string, limit *queue.GroupLimit) (before, after queue.GroupOptions) {
	w.t.Helper()
	call := w.topic.LimitCall(group, limit)
	w.do(call)
	reply, err := call.Read()
	require.NoError(w.t, err)
	require.Empty(w.t, reply.Refusal)
	return queue.ParseGroupOptions(reply.Text("before")), queue.ParseGroupOptions(reply.Text("after"))
}

func TestLimitOfAnOperatorLasts(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		own, set := perSecond(50, 5), queue.GroupLimit{Rate: 1.0 / 3, Burst: 2, AtOnce: 7}
		w.limitTo("a", own)
		before, after := w.setLimit("a", &set)
		require.Equal(t, own, before.Effective())
		require.Equal(t, set, after.Effective())
		require.Equal(t, own, after.Limit)
		w.limitTo("a", perSecond(9, 9))
		w.register("a")
		before, after = w.setLimit("a", &queue.GroupLimit{})
		require.Equal(t, set, before.Effective())
		require.Zero(t, before.Limit)
		require.Zero(t, after.Effective())
		require.NotNil(t, after.Set, "it is lifted, whatever subscribers ask for")
		w.limitTo("a", own)
		_, after = w.setLimit("a", nil)
		require.Equal(t, own, after.Effective())
		require.Nil(t, after.Set)

		call := w.topic.LimitCall("b", nil)
		w.do(call)
		reply, err := call.Read()
		require.NoError(t, err)
		require.Equal(t, "unregistered", reply.Refusal)
	})
}

// Older programs would not see the limit.
func TestFirstLimitMarksTheTopic(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		layout := func() string { return w.Client.HGet(ctx, w.keys.Meta(), "layout").Val() }
		w.register("a")
		require.Equal(t, queue.Layout, layout())
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		w.setLimit("a", &queue.GroupLimit{AtOnce: 3})
		require.Equal(t, queue.Layout+" limits", layout())
		require.NotEqual(t, groups.Version, w.Client.HGet(ctx, w.keys.Meta(), "groups").Val(), "all read it again")
		w.registerFor("s", exclusively)
		require.Equal(t, queue.Layout+" single limits", layout())
		w.setLimit("a", nil)
		w.register("a")
		require.Equal(t, queue.Layout+" single limits", layout(), "it stays")
		w.topic.Overwrite(nil)
		groups, err = w.topic.Groups(ctx)
		require.NoError(t, err)
		require.True(t, groups.Single && groups.Bounded)
	})
}

func TestTokensGoBackUnlessAClaimTookOneSince(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", perSecond(1.0/60, 4))
		w.publishNow(names("%d", 0, 9)...)
		first, second := w.sub("a"), w.sub("a")
		giveBack := func(s *sub, c queue.Claimed) { w.count(s.group.ReleaseCalls(held(c), true)...) }
		got := first.claim(9, woken(2, w.Prefix+":nowhere|1"))
		require.Len(t, got.Messages, 2)
		giveBack(first, got)
		got = first.claim(9, woken(3, w.Prefix+":nowhere|1"))
		require.Len(t, got.Messages, 3, "two came back")
		require.Len(t, second.claim(9, woken(1, w.Prefix+":nowhere|1")).Messages, 1)
		giveBack(first, got)
		require.Empty(t, first.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages, "the tokens are lost")
	})
}

func TestAClockThatIsSetBackStallsNoGroup(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Mini: mini, Prefix: "own"}, "topic")
	w.limitTo("a", perSecond(1, 2))
	w.publishNow(names("%d", 0, 9)...)
	s := w.sub("a")
	require.Len(t, s.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages, 2)
	back := time.UnixMilli(w.now()).Add(-24 * time.Hour)
	w.start = back.UnixMilli()
	mini.SetTime(back)
	require.Empty(t, s.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages)
	mini.SetTime(back.Add(time.Second))
	require.Len(t, s.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages, 1)
}

func TestLimitedGroupsAreCounted(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", perSecond(10, 1))
		w.publishNow("x", "y")
		s := w.sub("a")
		require.Len(t, s.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages, 1)
		stat := func(field string) int { n, _ := w.Client.HGet(ctx, w.keys.Stats("a"), field).Int(); return n }
		require.Equal(t, 1, stat("limited"))
		w.pass(100 * time.Millisecond)
		require.Len(t, s.claim(9, woken(9, w.Prefix+":nowhere|1")).Messages, 1)
		require.Equal(t, 1, stat("limited"))
		require.GreaterOrEqual(t, stat("limited_ms"), 100)
	})
}

// When nothing is ready, who waited for the limit waits for messages.
func TestThoseWhoWaitAreWokenForMessagesOnceNoneIsReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", queue.GroupLimit{AtOnce: 1})
		w.publishNow("x", "y")
		box := w.inbox()
		first, second, third := w.sub("a"), w.sub("a"), w.sub("a")
		got := first.claim(1, woken(1, box.address("first")))
		require.True(t, second.claim(1, woken(1, box.address("second"))).Waits)
		require.True(t, third.claim(1, woken(1, box.address("third"))).Waits)
		first.ack(held(got)...)
		w.pass(time.Millisecond)
		first.claim(1, settling(1, box.address("first")))
		require.Equal(t, []string{"second"}, box.received())
		require.Len(t, second.claim(1, woken(1, box.address("second"))).Messages, 1)
		require.Empty(t, w.limited("a"))
		waiters, err := w.Client.ZRange(ctx, w.keys.Waiters("a"), 0, -1).Result()
		require.NoError(t, err)
		require.ElementsMatch(t, []string{box.address("first"), box.address("third")}, waiters)
	})
}

func TestOwnerThatWaitsForATokenStaysActive(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(1), func(o *queue.GroupOptions) { o.SingleActive = true })
		w.publishNow("x", "y", "z")
		box := w.inbox()
		owner, standby := w.turns("a"), w.turns("a")
		got := owner.claim(1, woken(1, box.address("owner")))
		require.Len(t, got.Messages, 1)
		owner.ack(held(got)...)
		require.True(t, owner.claim(1, settling(1, box.address("owner")), patient(9*time.Hour)).Waits)
		require.True(t, standby.claim(1, woken(1, box.address("standby"))).Waits)
		require.Zero(t, w.active("a").Ends, "no deadline runs")
		w.travel(time.Minute)
		require.Empty(t, w.promote("scheduler|1").Failed)
		require.Equal(t, []string{"owner"}, box.received())
		require.NotZero(t, w.active("a").Ends)
		require.Equal(t, []string{"y"}, bodies(owner.claim(1, woken(1, box.address("owner")))))
	})
}

// A subscription that was woken may be frozen, or gone without a word.
func TestAWakeUpThatNobodyFollowsStopsNoOthers(t *testing.T) {
	for name, limit := range map[string]queue.GroupLimit{"at once": {AtOnce: 1}, "rate": slowly(1)} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", limit)
				w.publishNow("w", "x", "y", "z")
				box := w.inbox()
				s := w.sub("a")
				got := s.claim(1, woken(1, box.address("works")))
				require.Len(t, got.Messages, 1)
				require.True(t, w.sub("a").claim(1, woken(1, box.address("frozen"))).Waits)
				w.pass(time.Millisecond)
				require.True(t, w.sub("a").claim(1, woken(1, box.address("waits"))).Waits)
				s.ack(held(got)...)
				s.claim(0)
				for range 2 {
					if limit.Rate > 0 {
						w.travel(aToken)
					} else {
						w.pass(101 * time.Millisecond) // one that was woken has a tenth of a second
					}
					w.promote("scheduler|1")
				}
				require.Equal(t, []string{"frozen", "waits"}, box.received())
			})
		})
	}
}

func TestAPauseLosesNoRoomForThoseThatWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", queue.GroupLimit{AtOnce: 1})
		w.publishNow("x", "y", "z")
		box := w.inbox()
		s, leaver := w.sub("a"), w.sub("a")
		got := s.claim(1, woken(1, box.address("works")))
		require.True(t, leaver.claim(1, woken(1, box.address("leaves"))).Waits)
		w.pass(time.Millisecond)
		require.True(t, w.sub("a").claim(1, woken(1, box.address("waits"))).Waits)
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		leaver.claim(0, func(c *queue.Claim) { c.Address = box.address("leaves") })
		s.ack(held(got)...)
		s.claim(0)
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		w.promote("scheduler|1")
		require.Equal(t, []string{"waits"}, box.received())
	})
}

// A message that finds no token is one subscription's matter.
func TestIdleSubscriptionsAreNotWokenWithoutATokenForThem(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(1))
		box := w.inbox()
		for i := range 9 {
			require.True(t, w.sub("a").claim(1, woken(1, box.address(fmt.Sprint(i)))).Waits)
			w.pass(time.Millisecond)
		}
		s := w.sub("a")
		w.publishNow("x")
		require.Len(t, s.claim(1, woken(1, box.address("works"))).Messages, 1)
		box.received()
		w.publishNow("y")
		require.Len(t, box.received(), 1)
		require.True(t, s.claim(1, woken(1, box.address("works"))).Waits)
		require.Empty(t, box.received())
	})
}

// One that was woken for a message is frozen. An idle one is there, and no token.
func TestAnIdleSubscriptionWaitsForATokenIfNobodyElseDoes(t *testing.T) {
	for name, limit := range map[string]queue.GroupLimit{"at-once": {AtOnce: 1}, "rate": slowly(1)} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", limit)
				box := w.inbox()
				frozen, works, idler := w.sub("a"), w.sub("a"), w.sub("a")
				for i, s := range []*sub{frozen, works, idler} {
					require.True(t, s.claim(1, woken(1, box.address(fmt.Sprint(i)))).Waits)
					w.pass(2 * time.Millisecond)
				}
				w.publishNow("x")
				require.Equal(t, []string{"0"}, box.received())
				w.publishNow("y")
				require.Equal(t, []string{"1"}, box.received())
				got := works.claim(1, woken(1, box.address("1")))
				require.Equal(t, []string{"x"}, bodies(got))
				require.Equal(t, []string{"2"}, box.received())
				require.True(t, idler.claim(1, woken(1, box.address("2"))).Waits)
				works.ack(held(got)...)
				works.claim(0)
				w.travel(aToken)
				w.promote("scheduler|1")
				require.Equal(t, []string{"2"}, box.received())
				require.Equal(t, []string{"y"}, bodies(idler.claim(1, woken(1, box.address("2")))))
			})
		})
	}
}

// The only one that waits for a token is frozen.
func TestATokenThatNobodyElseWaitsForWakesOneThatIsIdle(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(2))
		w.publishNow("x", "y", "z")
		box := w.inbox()
		require.Len(t, w.sub("a").claim(3, woken(3, box.address("frozen"))).Messages, 2)
		require.Equal(t, []string{box.address("frozen")}, w.limited("a"))
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Waiters("a"), redis.Z{Score: float64(w.now() + 60_000), Member: box.address("idle")}).Err())
		w.publishNow("v", "w")
		box.received()
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Waiters("a"), redis.Z{Score: float64(w.now() + 60_000), Member: box.address("idle")}).Err())
		w.travel(2 * aToken)
		w.promote("scheduler|1")
		require.Equal(t, []string{"frozen", "idle"}, box.received())
	})
}

// A token of once an hour finds those who wait for it, whatever else comes and goes.
func TestThoseWhoWaitForLongStayInTheLine(t *testing.T) {
	for name, single := range map[string]bool{"single": true, "many": false} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", queue.GroupLimit{Rate: 1.0 / 3600, Burst: 1}, func(o *queue.GroupOptions) { o.SingleActive = single })
				w.publishNow("x", "y", "z")
				box := w.inbox()
				s, standby := w.sub("a"), w.sub("a")
				if single {
					s, standby = w.turns("a"), w.turns("a")
				}
				short := func(c *queue.Claim) { c.Lease, c.Patience = time.Second, 15*time.Second }
				got := s.claim(1, woken(1, box.address("first")))
				require.Len(t, got.Messages, 1)
				s.ack(held(got)...)
				for range 30 { // 210 s
					require.True(t, s.claim(1, woken(1, box.address("first")), short).Waits)
					w.travel(6900 * time.Millisecond)
					require.True(t, standby.claim(1, woken(1, box.address("second")), short).Waits)
					require.Zero(t, w.active("a").Ends)
					require.Contains(t, w.limited("a"), box.address("first"))
					w.travel(100 * time.Millisecond)
				}
			})
		})
	}
}

// A subscription that asks again keeps its place.
func TestAPollKeepsThePlaceInTheLine(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", perSecond(0.1, 1))
		w.publishNow("x", "y", "z")
		box := w.inbox()
		first, second := w.sub("a"), w.sub("a")
		require.Len(t, first.claim(9, woken(9, box.address("first"))).Messages, 1)
		w.travel(time.Second)
		require.True(t, second.claim(9, woken(9, box.address("second"))).Waits)
		w.travel(time.Second)
		require.True(t, first.claim(9, woken(9, box.address("first"))).Waits)
		require.Equal(t, []string{box.address("first"), box.address("second")}, w.limited("a"))
	})
}

// Messages wait for the limit from the first claim that it stops until there is room for all that
// ask.
func TestLimitedSinceIsTheBeginOfTheWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", perSecond(10, 1))
		w.publishNow(names("%d", 0, 29)...)
		box := w.inbox()
		s := w.sub("a")
		stat := func() int { n, _ := w.Client.HGet(ctx, w.keys.Stats("a"), "limited_ms").Int(); return n }
		since := func() int64 {
			stats, err := w.topic.Stats(ctx)
			require.NoError(t, err)
			return stats.Groups[0].LimitedSince().UnixMilli()
		}
		for i := range 20 {
			require.Len(t, s.claim(9, woken(9, box.address("s"))).Messages, 1)
			require.GreaterOrEqual(t, w.now()-since(), int64(i*101))
			w.travel(101 * time.Millisecond)
		}
		require.Zero(t, stat(), "it is counted at the end")
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		w.travel(100 * time.Millisecond)
		require.Empty(t, s.claim(9, woken(9, box.address("s"))).Messages)
		waited := stat()
		require.GreaterOrEqual(t, waited, 20*101+100)
		w.travel(time.Minute)
		s.claim(9, woken(9, box.address("s")))
		require.Equal(t, waited, stat(), "a pause is no wait for the limit")
		require.Negative(t, since())
	})
}

func TestAnEventThatIsTooLateIsNow(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Mini: mini, Prefix: "own"}, "topic")
	w.limitTo("a", perSecond(1, 1))
	w.publishNow("x", "y")
	box := w.inbox()
	require.Len(t, w.sub("a").claim(1, woken(1, box.address("works"))).Messages, 1)
	require.True(t, w.sub("a").claim(1, woken(1, box.address("waits"))).Waits)
	back := time.UnixMilli(w.now()).Add(-24 * time.Hour)
	w.start = back.UnixMilli()
	mini.SetTime(back)
	w.promote("scheduler|1")
	mini.SetTime(back.Add(2 * time.Second))
	w.promote("scheduler|1")
	require.Equal(t, []string{"waits"}, box.received())
}
