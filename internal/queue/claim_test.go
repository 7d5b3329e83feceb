package queue_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestClaimLeasesTheOldestMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y", "z")
		before := w.now()
		s := w.sub("a")
		claimed := s.claim(2, lease(time.Minute))
		after := w.now()
		require.Equal(t, []string{"x", "y"}, bodies(claimed))
		require.True(t, claimed.More)
		require.False(t, claimed.Waits)
		require.Zero(t, claimed.Blocked)
		require.Equal(t, []string{"z"}, w.ready("a"))
		require.Equal(t, []string{"x", "y"}, w.unack("a"))
		require.Equal(t, []string{"x", "y", "z"}, w.ready("b"), "groups do not affect one another")
		for _, m := range claimed.Messages {
			require.Equal(t, w.id[string(m.Body)], m.ID)
			require.Equal(t, fmt.Sprintf("%s:1:%d:%d", s.id, queue.LeasedAt(m.Token).UnixMilli(), m.Due.UnixMilli()), m.Token)
			require.Equal(t, m.Token, w.field(w.keys.Leases("a"), string(m.Body)))
			require.Zero(t, m.Deliveries)
			require.Zero(t, m.Expiries)
			require.Empty(t, m.DelayedFor)
			deadline := w.score(w.keys.Unack("a"), string(m.Body))
			require.GreaterOrEqual(t, deadline, float64(before)+60_000)
			require.LessOrEqual(t, deadline, float64(after)+60_000)
		}
		require.Equal(t, int64(w.score(w.keys.Unack("a"), "x")), w.next(), "the end of the lease is an event")
		require.Equal(t, []string{"z"}, bodies(s.claim(2)))
	}, "a", "b")
}

func TestClaimOfNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		s := w.sub("a")
		w.onlyAsks("a", func() { require.Equal(t, queue.Claimed{}, s.claim(10)) })
		require.Zero(t, w.next())
		w.publishNow("x")
		w.onlyAsks("a", func() { require.Equal(t, queue.Claimed{More: true}, s.claim(0)) })
		w.onlyAsks("a", func() { require.Equal(t, queue.Claimed{More: true}, s.claim(-1)) })
	}, "a")
}

func TestClaimOfAGroupThatDoesNotExist(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("b")
		c := s.query(10, idle(10, "channel|1"))
		call := s.group.ClaimCall(c)
		w.unchanged(func() { w.do(call) })
		_, err := c.ReadClaim(call.Cmd())
		require.ErrorIs(t, err, queue.ErrUnregistered)
	}, "a")
}

func TestRepeatedClaimReturnsTheSameMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5", "6", "7")
		s := w.sub("a")
		c := s.query(3)
		first := s.ask(c)
		require.Equal(t, []string{"1", "2", "3"}, bodies(first))
		w.unchanged(func() { require.Equal(t, first, s.ask(c)) })
		w.unchanged(func() {
			call := s.group.ClaimCall(c)
			w.do(call)
			w.do(call)
			again, err := c.ReadClaim(call.Cmd())
			require.NoError(t, err)
			again.Now = first.Now
			require.Equal(t, first, again)
		})

		require.Equal(t, 1, s.ack(held(first)[1]))
		require.Equal(t, []string{"1", "3"}, bodies(s.ask(c)), "a settled one does not come back")
		require.Equal(t, 1, s.release(held(first)[0]))
		require.Equal(t, []string{"3"}, bodies(s.ask(c)))
		other := w.sub("a")
		require.Equal(t, []string{"1"}, bodies(other.claim(1)))
		require.Equal(t, []string{"3"}, bodies(s.ask(c)), "what another holds now is another's")
		require.Equal(t, 1, s.ack(held(first)[2]))
		require.Empty(t, bodies(s.ask(c)), "the number has brought its messages")
		require.Equal(t, []string{"4"}, bodies(s.claim(1)), "the next number brings others")
	}, "a")
}

func TestRepeatedClaimOfMessagesDeliveredBefore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], func(f *queue.Failure) { f.DelayedFor = "15s" })))
		c := s.query(1)
		first := s.ask(c)
		require.Equal(t, 1, first.Messages[0].Deliveries)
		require.Equal(t, "15s", first.Messages[0].DelayedFor)
		require.Equal(t, first, s.ask(c))
	}, "a")
}

func TestLastClaimIsForgottenAfterAnHourOrByTheNext(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := s.claim(2)
		left := w.Client.PTTL(ctx, w.keys.Claim(s.id)).Val()
		require.Greater(t, left, queue.Memory-time.Minute)
		require.LessOrEqual(t, left, queue.Memory)
		require.Equal(t, 2, s.ack(held(claimed)...))
		s.claim(1)
		require.Zero(t, w.Client.Exists(ctx, w.keys.Claim(s.id)).Val())
	}, "a")
}

func TestClaimsTakeAThousandAtMostFromMoreThanTenThousand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		all := names("%05d", 0, n)
		w.publishNow(all...)
		s := w.sub("a")
		var got []string
		for {
			claimed := s.claim(n)
			require.LessOrEqual(t, len(claimed.Messages), 1000)
			got = append(got, bodies(claimed)...)
			if !claimed.More {
				break
			}
		}
		sameOrder(t, all, got)
		require.Empty(t, w.ready("a"))
		require.EqualValues(t, n, w.Client.ZCard(ctx, w.keys.Unack("a")).Val())
	}, "a")
}

func TestClaimTakesNoMoreBytesThanAsked(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		ten := func(s string) string { return strings.Repeat(s, 10) }
		w.publishNow(ten("1"), ten("2"), ten("3"), ten("4"), strings.Repeat("5", 1000), ten("6"))
		s := w.sub("a")
		require.Equal(t, []string{ten("1"), ten("2")}, bodies(s.claim(9, upTo(20))))
		require.Equal(t, []string{ten("3")}, bodies(s.claim(9, upTo(19))))
		require.Equal(t, []string{ten("4")}, bodies(s.claim(9, upTo(1009))))
		claimed := s.claim(9, upTo(1))
		require.Equal(t, []string{strings.Repeat("5", 1000)}, bodies(claimed), "the first is always taken")
		require.True(t, claimed.More)
		require.Equal(t, []string{ten("6")}, bodies(s.claim(9, upTo(0))))
	}, "a")
}

func TestClaimCountsBytesAcrossPortions(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		all := names("%010d", 0, 200)
		w.publishNow(all...)
		s := w.sub("a")
		for _, c := range []struct{ from, to int }{{0, 31}, {31, 63}, {63, 96}, {96, 161}} {
			claimed := s.claim(1000, upTo((c.to-c.from)*10))
			require.Equal(t, all[c.from:c.to], bodies(claimed))
			require.True(t, claimed.More)
		}
	}, "a")
}

// Small bodies are no sign that those behind them are small: what is read in vain stops the server
// for others, by 10 ms for each of 8 MiB.
func TestClaimReadsFewBodiesThatItDoesNotReturn(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in.Client(t), Prefix: "own"}, "topic", "a")
	w.publishNow(slices.Concat(names("%010d", 0, 100), names("%01000d", 100, 300))...)
	inVain := func(do func() (got int)) int {
		commands := monitor(t, in)
		read := -do()
		for words, lua := range commands() {
			if lua && words[0] == "HMGET" && words[1] == w.keys.Messages() {
				read += len(words) - 2
			}
		}
		return read
	}
	require.LessOrEqual(t, inVain(func() int {
		page, err := w.topic.List(ctx, "a", operate.Ready, "", 300, 3000)
		require.NoError(t, err)
		require.Len(t, page.Messages, 102)
		return 102
	}), 8)
	require.LessOrEqual(t, inVain(func() int {
		claimed := w.sub("a").claim(300, upTo(3000))
		require.Len(t, claimed.Messages, 102)
		return 102
	}), 8)
}

func TestMessagesWithoutBodyAreDropped(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x", "lost 1", "y", "lost 2", "z")
		s := w.sub("a")
		claimed := s.claim(1)
		require.Equal(t, 1, s.nack(failed(held(claimed)[0]))) // x has a record of deliveries
		w.Client.HDel(ctx, w.keys.Messages(), w.id["lost 1"], w.id["lost 2"])
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["lost 1"], "1 - -")

		claimed = s.claim(2)
		require.Len(t, claimed.Messages, 1)
		require.Equal(t, 1, claimed.Orphans)
		require.True(t, claimed.More)
		claimed = s.claim(4)
		require.Equal(t, 1, claimed.Orphans)
		require.Len(t, claimed.Messages, 2)
		require.False(t, claimed.More)
		require.EqualValues(t, 1, w.Client.HLen(ctx, w.keys.Deliveries("a")).Val())
	}, "a")
}

func TestClaimOfMessagesThatAllLostTheirBodies(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		w.Client.Del(ctx, w.keys.Messages())
		s := w.sub("a")
		claimed := s.claim(2, idle(2, "channel|1"))
		require.Equal(t, queue.Claimed{Orphans: 2, More: true}, claimed)
		claimed = s.claim(2, idle(2, "channel|1"))
		require.Equal(t, queue.Claimed{Orphans: 1, Waits: true}, claimed)
	}, "a")
}

func TestIdleSubscriptionWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		address := w.inbox().address("1")
		s := w.sub("a")
		before := w.now()
		claimed := s.claim(3, idle(3, address))
		require.Equal(t, queue.Claimed{Waits: true}, claimed)
		require.Equal(t, []string{address}, w.waiters("a"))
		deadline := int64(w.Client.ZScore(ctx, w.keys.Waiters("a"), address).Val())
		require.GreaterOrEqual(t, deadline, before+time.Hour.Milliseconds())
		require.LessOrEqual(t, deadline, w.now()+time.Hour.Milliseconds())

		require.Equal(t, queue.Claimed{Waits: true}, s.claim(3, idle(3, address)))
		require.Len(t, w.waiters("a"), 1, "a repeat renews the entry")
	}, "a")
}

func TestSubscriptionWaitsOnlyForSlotsThatStayFree(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		address := w.inbox().address("1")
		s := w.sub("a")
		w.publishNow("1", "2")
		claimed := s.claim(5, idle(2, address))
		require.Len(t, claimed.Messages, 2)
		require.False(t, claimed.Waits, "both slots are taken")
		w.publishNow("3")
		claimed = s.claim(5, idle(2, address))
		require.Len(t, claimed.Messages, 1)
		require.True(t, claimed.Waits)
		require.Empty(t, bodies(s.claim(5, idle(0, address))))
	}, "a")
}

func TestClaimDropsWaitersThatGaveUp(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		s := w.sub("a")
		s.claim(1, idle(1, inbox.address("impatient")), func(c *queue.Claim) { c.Patience = time.Millisecond })
		w.pass(2 * time.Millisecond)
		s.claim(1, idle(1, inbox.address("patient")))
		require.Equal(t, []string{inbox.address("patient")}, w.waiters("a"))
		w.publishNow("x")
		require.Equal(t, []string{"patient"}, inbox.received())
	}, "a")
}

func TestExpiredWaitersAreNotWoken(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		s := w.sub("a")
		s.claim(1, idle(1, inbox.address("impatient")), func(c *queue.Claim) { c.Patience = time.Millisecond })
		w.pass(2 * time.Millisecond)
		w.publishNow("x")
		require.Empty(t, inbox.received())
		require.Empty(t, w.waiters("a"))
	}, "a")
}

func TestClaimThatLeavesMessagesWakesOneOther(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2", "3", "4")
		inbox.wait("a", "x", "y", "z")
		s := w.sub("a")
		require.True(t, s.claim(1).More)
		require.Equal(t, []string{"x"}, inbox.received())
		require.True(t, s.claim(0).More)
		require.Equal(t, []string{"y"}, inbox.received(), "a woken one without a free slot passes it on")
		require.True(t, s.claim(9, upTo(1)).More)
		require.Equal(t, []string{"z"}, inbox.received())

		inbox.wait("a", "x")
		require.False(t, s.claim(9).More)
		require.False(t, s.claim(0).More)
		require.Empty(t, inbox.received())
		require.Len(t, w.waiters("a"), 1)
	}, "a")
}

func TestRepeatedClaimTakesNothingMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2")
		s := w.sub("a")
		c := s.query(1)
		s.ask(c)
		inbox.wait("a", "x")
		w.unchanged(func() { require.True(t, s.ask(c).More) })
	}, "a")
}

// It was on its way while later ones were answered, and whoever made it is told nothing any more.
func TestAClaimBeforeTheLastOneLeasesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		stray, never := s.query(1), s.query(1)
		s.ask(stray)
		s.number += 7 // as text, 10 comes before 2
		last := s.query(1)
		want := s.ask(last)
		for _, c := range []queue.Claim{stray, never} {
			w.unchanged(func() {
				got := s.ask(c)
				require.Empty(t, got.Messages)
				require.True(t, got.More)
			})
		}
		require.Equal(t, want, s.ask(last))
	}, "a")
}

func TestWakeUpsPassOverAddressesWithoutAReceiver(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		dead := &inbox{w: w, channel: queue.MailboxChannel(w.Prefix, "dead")}
		inbox := w.inbox()
		dead.wait("a", "1", "2", "3")
		inbox.wait("a", "alive 1", "alive 2")
		w.publishNow("x")
		require.Equal(t, []string{"alive 1"}, inbox.received())
		require.Equal(t, []string{inbox.address("alive 2")}, w.waiters("a"))
		dead.wait("a", "1", "2", "3")
		w.publishNow("x", "y", "z")
		require.Equal(t, []string{"alive 2"}, inbox.received())
		require.Empty(t, w.waiters("a"))
	}, "a")
}

func TestSubscriptionThatCanTakeNoneIsNotWoken(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		s := w.sub("a")
		require.True(t, s.claim(1, idle(1, inbox.address("full"))).Waits)
		require.Equal(t, queue.Claimed{}, s.claim(0, idle(0, inbox.address("full"))))
		w.onlyAsks("a", func() { s.claim(0, idle(0, inbox.address("full"))) })
		require.Empty(t, w.waiters("a"))

		inbox.wait("a", "full", "other")
		w.publishNow("x")
		require.Equal(t, []string{"full"}, inbox.received())
		s.claim(0, idle(0, inbox.address("full")))
		require.Equal(t, []string{"other"}, inbox.received(), "what woke it is passed on, to another")

		inbox.wait("a", "full", "other")
		s.claim(0, idle(0, inbox.address("full")))
		require.Equal(t, []string{"other"}, inbox.received())
		require.Empty(t, w.waiters("a"))
	}, "a")
}

func TestSuspectIsClaimedAlone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["3"], "2 d 15s")
		w.suspect("a", 2, "3")
		s := w.sub("a")
		claimed := s.claim(9, busy)
		require.Equal(t, []string{"1", "2"}, bodies(claimed))
		require.True(t, claimed.More)
		require.Zero(t, claimed.Blocked)
		require.Equal(t, queue.Claimed{More: true, Blocked: 1}, s.claim(9, busy))
		claimed = s.claim(9)
		require.Equal(t, []string{"3"}, bodies(claimed))
		require.Equal(t, 2, claimed.Messages[0].Expiries)
		require.Equal(t, 2, claimed.Messages[0].Deliveries)
		require.Equal(t, "15s", claimed.Messages[0].DelayedFor)
		require.Equal(t, []string{"4"}, bodies(s.claim(9, busy)))
	}, "a")
}

func TestBlockedClaimWakesAnother(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1")
		w.suspect("a", 2, "1")
		inbox.wait("a", "x")
		require.Equal(t, 1, w.sub("a").claim(9, busy).Blocked)
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

// A busy subscription with room must not wait for its poll when another takes the suspect.
func TestSubscriptionThatWaitsForASuspectIsWokenWhenAnotherTakesIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1")
		w.suspect("a", 2, "1")
		waits, takes := w.sub("a"), w.sub("a")
		blocked := queue.Claimed{More: true, Blocked: 1, Waits: true}
		require.Equal(t, blocked, waits.claim(9, busy, idle(1, inbox.address("x"))))
		require.Equal(t, blocked, takes.claim(9, busy, idle(1, inbox.address("y"))))
		require.Empty(t, inbox.received(), "they do not wake each other, which would have no end")
		require.Equal(t, []string{"1"}, bodies(takes.claim(9)))
		require.Empty(t, inbox.received(), "nothing is ready")
		w.publishNow("2")
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

func TestSubscriptionThatWaitsForASuspectIsWokenForMessagesBehindIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2")
		w.suspect("a", 2, "1")
		require.True(t, w.sub("a").claim(9, busy, idle(1, inbox.address("x"))).Waits)
		require.Equal(t, []string{"1"}, bodies(w.sub("a").claim(9)))
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

// They would be woken one by the other for each suspect, to find that the next one is not for them
// either.
func TestSubscriptionThatWaitsForSuspectsIsWokenWhenTheLastIsTaken(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2", "3")
		w.suspect("a", 2, "1", "2")
		require.True(t, w.sub("a").claim(9, busy, idle(1, inbox.address("x"))).Waits)
		require.Equal(t, []string{"1"}, bodies(w.sub("a").claim(9)))
		require.Empty(t, inbox.received())
		require.Equal(t, []string{"2"}, bodies(w.sub("a").claim(9)))
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

func TestSubscriptionThatTakesTheSuspectItWaitedForIsNotWoken(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2")
		w.suspect("a", 2, "1")
		a, b := w.sub("a"), w.sub("a")
		sooner := func(c *queue.Claim) { c.Patience = time.Minute } // so that it would be woken first
		require.True(t, a.claim(9, busy, idle(1, inbox.address("a")), sooner).Waits)
		require.True(t, b.claim(9, busy, idle(1, inbox.address("b"))).Waits)
		require.Equal(t, []string{"1"}, bodies(a.claim(9, idle(1, inbox.address("a")))))
		require.Equal(t, []string{"b"}, inbox.received())
	}, "a")
}

func TestGoneSubscriptionThatWaitedForASuspectIsForgotten(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		w.suspect("a", 2, "1")
		short := func(c *queue.Claim) { c.Patience = time.Millisecond }
		for _, gone := range []string{"x", "y"} {
			require.True(t, w.sub("a").claim(9, busy, idle(1, "nowhere|"+gone), short).Waits)
			w.pass(3 * time.Millisecond)
			require.EqualValues(t, 1, w.Client.ZCard(ctx, w.keys.Resting("a")).Val())
		}
		require.Len(t, w.sub("a").claim(9).Messages, 1)
		require.Zero(t, w.Client.Exists(ctx, w.keys.Resting("a")).Val())
	}, "a")
}

func TestSubscriptionThatWaitsForASuspectWaitsForNothingElse(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1")
		w.suspect("a", 2, "1")
		inbox := w.inbox()
		for i, waits := range []string{"other", "a"} {
			w.Client.ZAdd(ctx, w.keys.Waiters("a"), redis.Z{Score: float64(w.now() + 60_000*int64(i+1)), Member: inbox.address(waits)})
		}
		require.Equal(t, 1, w.sub("a").claim(9, busy, idle(1, inbox.address("a"))).Blocked)
		require.Equal(t, []string{"other"}, inbox.received())
		require.Empty(t, w.waiters("a"))
		require.EqualValues(t, 1, w.Client.ZCard(ctx, w.keys.Resting("a")).Val())
	}, "a")
}

func TestMessagesBehindASuspectAreNotRead(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in.Client(t), Prefix: "own"}, "topic", "a")
	w.publishNow(names("%03d", 0, 500)...)
	w.suspect("a", 2, "000")
	commands := monitor(t, in)
	require.Equal(t, []string{"000"}, bodies(w.sub("a").claim(500)))
	for words, lua := range commands() {
		if lua && words[0] == "HMGET" && slices.Contains([]string{w.keys.Deliveries("a"), w.keys.Suspects("a"), w.keys.Messages()}, words[1]) {
			require.Len(t, words, 3, "one ID: %q", words)
		}
		if lua && words[0] == "LRANGE" {
			require.Equal(t, words[2], words[3], "one entry: %q", words)
		}
	}
}

func TestClaimLowersTheNextEventAndTellsTheScheduler(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x", "y", "z")
		w.promote(inbox.address("holder"))
		w.promote(inbox.address("standby"))
		s := w.sub("a")
		s.claim(1, lease(30*time.Second))
		told := inbox.received()
		require.Len(t, told, 2)
		require.InDelta(t, 800, wait(t, told[0], "holder"), 1)
		require.InDelta(t, 850, wait(t, told[1], "standby"), 1)
		s.claim(1, lease(time.Minute))
		require.Empty(t, inbox.received())
		s.claim(1, lease(10*time.Second))
		require.Len(t, inbox.received(), 2)
	}, "a")
}

func TestParseRecord(t *testing.T) {
	t.Parallel()
	for record, want := range map[string][]any{
		"":                  {0, "", "", ""},
		"3 - -":             {3, "-", "", ""},
		"3 d 1m0s":          {3, "d", "1m0s", ""},
		"3 r - it went out": {3, "r", "", "it went out"},
		"3 - - ":            {3, "-", "", ""},
	} {
		count, flag, delayedFor, reason := queue.ParseRecord(record)
		require.Equal(t, want, []any{count, flag, delayedFor, reason}, record)
	}
}

func TestClaimAfterTheServerLostItsData(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := s.claim(1)
		require.NoError(t, w.Client.FlushAll(ctx).Err())
		c := s.query(1)
		call := s.group.ClaimCall(c)
		w.do(call)
		_, err := c.ReadClaim(call.Cmd())
		require.ErrorIs(t, err, queue.ErrUnregistered)
		require.Zero(t, s.ack(held(claimed)...))
		require.Zero(t, s.release(held(claimed)...))
		require.Zero(t, s.nack(failed(held(claimed)[0])))
		require.Empty(t, w.dump())
	}, "a")
}

// The lease of each message knows when that one was due, however many have the same time.
func TestMessagesGoBackWithTheirOwnDueTimes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("a", "b")
		w.pass(5 * time.Millisecond)
		w.publishNow("c")
		w.pass(5 * time.Millisecond)
		w.publishNow("d", "e")
		ready := func() []string { return w.Client.LRange(ctx, w.keys.Ready("a"), 0, -1).Val() }
		before := ready()
		s := w.sub("a")
		claimed := s.claim(9)
		require.Equal(t, []string{"a", "b", "c", "d", "e"}, bodies(claimed))
		require.Empty(t, ready())
		require.Equal(t, 5, s.release(held(claimed)...))
		require.Equal(t, before, ready())
	}, "a")
}

// Leases are in hash tables, because Redis searches small hashes and sorted sets from end to end.
func TestLeasesAreKeptInTables(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a")
		for i := range 20 {
			w.publishNow(strconv.Itoa(i))
		}
		require.Len(t, w.sub("a").claim(20).Messages, 20)
		require.Equal(t, "hashtable", w.Client.ObjectEncoding(ctx, w.keys.Leases("a")).Val())
		require.Equal(t, "skiplist", w.Client.ObjectEncoding(ctx, w.keys.Unack("a")).Val())
		require.EqualValues(t, 20, w.Client.HLen(ctx, w.keys.Leases("a")).Val())
		require.EqualValues(t, 20, w.Client.ZCard(ctx, w.keys.Unack("a")).Val())
	})
}
