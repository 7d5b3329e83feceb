package queue_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// suspected is a message's entry in suspects, or "".
func (w *world) suspected(group, name string) string {
	w.t.Helper()
	return w.field(w.keys.Suspects(group), name)
}

// noSuspect requires that the group has no suspect.
func (w *world) noSuspect(group string) {
	w.t.Helper()
	require.Empty(w.t, w.Client.HGetAll(ctx, w.keys.Suspects(group)).Val())
}

// expireAll has all leases run out.
func (w *world) expireAll() {
	w.t.Helper()
	w.travel(2 * time.Hour)
	require.False(w.t, w.expire())
}

func TestEachExpiryAfterTheFirstHalvesTheCompany(t *testing.T) {
	t.Parallel()
	for most := 1; most <= 300; most++ {
		want := most
		for expiries := range 13 {
			got := (&queue.Leased{Expiries: expiries}).Company(most)
			if expiries < 2 {
				require.Equal(t, math.MaxInt, got)
				continue
			}
			want /= 2
			require.Equal(t, max(want, 1), got, "%d expiries, %d at most", expiries, most)
		}
	}
	require.Equal(t, 1, (&queue.Leased{Expiries: math.MaxInt}).Company(math.MaxInt))
}

func TestClaimScriptHasTheSameRuleOfCompany(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		for _, m := range []int{1, 2, 3, 4, 7, 64, 255, 256, 300} {
			for _, expiries := range []int{0, 1, 2, 3, 5, 9, 12, 5000} {
				w.Client.Del(ctx, w.keys.Deliveries("a"), w.keys.Suspects("a"))
				if expiries > 0 {
					w.suspect("a", expiries, "x")
				}
				company := (&queue.Leased{Expiries: expiries}).Company(m)
				what := fmt.Sprint(expiries, " expiries, ", m, " at most")
				if company == math.MaxInt {
					company = 1000 // messages beside it do not matter
				} else {
					require.Equal(t, queue.Claimed{More: true, Blocked: company}, s.claim(1, holding(company), most(m)), what)
				}
				claimed := s.claim(1, holding(company-1), most(m))
				require.Equal(t, []string{"x"}, bodies(claimed), what)
				require.Equal(t, expiries, claimed.Messages[0].Expiries, what)
				alone := map[bool]string{true: " alone -", false: " - -"}[company == 1]
				if expiries > 0 {
					require.Equal(t, fmt.Sprint(expiries, alone), w.suspected("a", "x"), what)
				}
				require.Equal(t, 1, s.release(held(claimed)...))
			}
		}
	}, "a")
}

func TestMessagesOfACrashedProcessComeBackTogether(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		all := names("%d", 1, 9)
		w.publishNow(all...)
		require.Len(t, w.sub("a").claim(6, most(6)).Messages, 6)
		w.expireAll()
		claimed := w.sub("a").claim(9, most(6), holding(5))
		require.Equal(t, all, bodies(claimed))
		for i, m := range claimed.Messages {
			require.Equal(t, i < 6, m.Expiries == 1)
			require.Equal(t, i < 6, m.Delivered)
			require.Zero(t, m.Deliveries)
		}
	}, "a")
}

func TestClaimEndsBeforeASuspectThatWouldBeOneTooMany(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5", "6")
		w.suspect("a", 2, "4") // which may be among 2 of 4
		s := w.sub("a")
		claimed := s.claim(9, most(4), idle(9, "nobody|1"))
		require.Equal(t, []string{"1", "2", "3"}, bodies(claimed))
		require.True(t, claimed.More)
		require.Zero(t, claimed.Blocked, "it got some")
		require.False(t, claimed.Waits)
		require.Equal(t, queue.Claimed{More: true, Blocked: 2}, s.claim(9, most(4), holding(3)))
		require.Equal(t, queue.Claimed{More: true, Blocked: 2}, s.claim(9, most(4), holding(2)))
		require.Equal(t, []string{"4"}, bodies(s.claim(9, most(4), holding(1))), "a fresh one behind it would be one too many")
		require.Equal(t, []string{"5", "6"}, bodies(s.claim(9, most(4), holding(2))))
	}, "a")
}

func TestSuspectInTheMiddleOfAClaimIsTakenWhereItIsAmongFew(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		w.suspect("a", 2, "2")
		require.Equal(t, []string{"1", "2", "3"}, bodies(w.sub("a").claim(9, most(6))), "3 of 6")
		w.suspect("a", 1, "4")
		require.Equal(t, []string{"4", "5"}, bodies(w.sub("a").claim(9, most(2), holding(2))), "one expiry restricts nothing")
	}, "a")
}

func TestAdjacentSuspects(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		w.suspect("a", 2, "1", "2", "4")
		w.suspect("a", 3, "3")
		s := w.sub("a")
		require.Equal(t, []string{"1", "2"}, bodies(s.claim(9, most(4))), "both may be among 2")
		require.Equal(t, queue.Claimed{More: true, Blocked: 1}, s.claim(9, most(4), holding(1)))
		require.Equal(t, []string{"3"}, bodies(s.claim(9, most(4))))
		require.Equal(t, []string{"4", "5"}, bodies(s.claim(9, most(4))))
		require.Equal(t, "2 - -", w.suspected("a", "1"))
		require.Equal(t, "3 alone -", w.suspected("a", "3"))
	}, "a")
}

// The smaller company counts, whichever comes first.
func TestNeighbourOfASuspectMayNeedFewer(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5", "6")
		w.suspect("a", 2, "1") // among 4 of 8
		w.suspect("a", 3, "2") // among 2 of 8
		require.Equal(t, []string{"1", "2"}, bodies(w.sub("a").claim(9, most(8))))
		w.suspect("a", 3, "3")
		w.suspect("a", 2, "4")
		require.Equal(t, []string{"3", "4"}, bodies(w.sub("a").claim(9, most(8))))
	}, "a")
}

func TestOnlyTheExpiryOfAMessageHeldAloneCounts(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("alone", "beside")
		w.suspect("a", 2, "alone", "beside")
		alone := w.sub("a").claim(1, most(3))
		beside := w.sub("a").claim(1, most(4))
		require.Equal(t, "2 alone -", w.suspected("a", "alone"))
		require.Equal(t, "2 - -", w.suspected("a", "beside"))
		w.expireAll()
		require.Equal(t, "1 d -", w.field(w.keys.Deliveries("a"), "alone"))
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "beside"))
		require.Equal(t, "3 - "+alone.Messages[0].Token, w.suspected("a", "alone"))
		require.Equal(t, "3 - "+beside.Messages[0].Token, w.suspected("a", "beside"))
	}, "a")
}

// A message whose every delivery ends its process is dead after so many expiries.
func TestPoisonDiesAfterABoundedNumberOfExpiries(t *testing.T) {
	for _, c := range []struct{ most, expiries int }{{1, 2 + 3}, {2, 2 + 3}, {4, 3 + 3}, {64, 7 + 3}, {100, 7 + 3}} {
		t.Run(fmt.Sprint(c.most), func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 3, Retention: time.Hour}))
				w.publishNow("x")
				for range c.expiries {
					require.Empty(t, w.dead("a"))
					require.Equal(t, []string{"x"}, bodies(w.sub("a").claim(1, most(c.most))))
					w.expireAll()
				}
				require.Equal(t, []string{"x"}, w.dead("a"))
				w.noSuspect("a")
			})
		})
	}
}

func TestClaimOfAConsumerOfMoreIsNotAlone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.suspect("a", 2, "x")
		s := w.sub("a")
		require.Equal(t, 1, s.release(held(s.claim(1, most(2)))...))
		require.Equal(t, "2 alone -", w.suspected("a", "x"), "a release leaves it")
		s.claim(1, most(4))
		require.Equal(t, "2 - -", w.suspected("a", "x"))
		w.expireAll()
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "x"), "no delivery is counted")
	}, "a")
}

func TestReleaseOfALostLeaseTakesBackOneExpiry(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		w.suspect("a", 1, "1")
		w.suspect("a", 2, "2")
		s := w.sub("a")
		lost := held(s.claim(3, most(9)))
		w.expireAll()
		for i, name := range []string{"1", "2", "3"} {
			require.Equal(t, fmt.Sprint([]int{2, 3, 1}[i], " - ", lost[i].Token), w.suspected("a", name))
		}
		wrong := *lost[1]
		wrong.Token = "S:9:" + wrong.Token
		none := *lost[1]
		none.Token = "-"
		w.unchanged(func() { require.Zero(t, s.release(&wrong, &none)) })

		require.Zero(t, s.release(lost...), "they are in ready already")
		require.Equal(t, []string{"1", "2", "3", "4"}, w.ready("a"))
		require.Equal(t, "1 - -", w.suspected("a", "1"))
		require.Equal(t, "2 - -", w.suspected("a", "2"))
		require.Empty(t, w.suspected("a", "3"))
		w.unchanged(func() { require.Zero(t, s.release(lost...)) })
		w.unchanged(func() { require.Zero(t, s.release(&none)) })
		claimed := w.sub("a").claim(3, most(9)).Messages
		require.Equal(t, []int{1, 2, 0}, []int{claimed[0].Expiries, claimed[1].Expiries, claimed[2].Expiries})
		require.True(t, claimed[2].Delivered, "it may have been delivered all the same")
	}, "a")
}

func TestReleaseOfALostLeaseWhileAnotherHoldsTheMessage(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		w.suspect("a", 2, "x")
		s, other := w.sub("a"), w.sub("a")
		lost := held(s.claim(1, most(4)))
		w.expireAll()
		holds := held(other.claim(1, most(4)))
		require.Equal(t, "3 alone "+lost[0].Token, w.suspected("a", "x"))
		own := held(s.claim(1, most(4)))
		require.Equal(t, 1, s.release(lost[0], own[0]), "one of them is live")
		require.Equal(t, "2 alone -", w.suspected("a", "x"), "it was claimed alone")
		require.Equal(t, []string{"x"}, w.unack("a"))
		w.expireAll()
		require.Equal(t, "3 - "+holds[0].Token, w.suspected("a", "x"))
		require.Equal(t, "1 d -", w.field(w.keys.Deliveries("a"), "x"))
		w.unchanged(func() { require.Zero(t, s.release(lost...)) }) // a later lease is the lost one
	}, "a")
}

func TestReleaseOfALeaseLeavesTheExpiries(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		w.suspect("a", 3, "x")
		s := w.sub("a")
		claimed := held(s.claim(2, most(16)))
		before := w.suspected("a", "x")
		require.Equal(t, 2, s.release(claimed...))
		require.Equal(t, before, w.suspected("a", "x"))
		w.unchanged(func() { require.Zero(t, s.release(claimed...)) })
		require.Equal(t, 3, s.claim(1, most(16)).Messages[0].Expiries)
	}, "a")
}

func TestNothingIsLeftInSuspects(t *testing.T) {
	for name, end := range map[string]func(w *world, s *sub, claimed []*queue.Leased){
		"ack":  func(_ *world, s *sub, claimed []*queue.Leased) { s.ack(claimed...) },
		"nack": func(_ *world, s *sub, claimed []*queue.Leased) { s.nack(failed(claimed[0]), failed(claimed[1])) },
		"nack with a delay": func(_ *world, s *sub, claimed []*queue.Leased) {
			s.nack(failed(claimed[0], after(time.Hour)), failed(claimed[1], after(time.Hour)))
		},
		"death": func(_ *world, s *sub, claimed []*queue.Leased) {
			s.nack(failed(claimed[0], dead), failed(claimed[1], dead))
		},
		"death without a delivery": func(_ *world, s *sub, claimed []*queue.Leased) {
			for _, m := range claimed {
				s.nack(failed(m, func(f *queue.Failure) { f.Nobody, f.Reason = queue.TooLate, "too late" }))
			}
		},
		"death by expiry": func(w *world, _ *sub, _ []*queue.Leased) {
			for range 9 {
				w.expireAll()
				for len(w.sub("a").claim(1).Messages) > 0 {
				}
			}
			require.Len(w.t, w.dead("a"), 2)
		},
		"remove": func(w *world, _ *sub, _ []*queue.Leased) { require.NoError(w.t, w.topic.Remove(ctx, "a")) },
		"erase":  func(w *world, _ *sub, _ []*queue.Leased) { require.NoError(w.t, w.topic.Erase(ctx)) },
		"bodies that are lost": func(w *world, s *sub, claimed []*queue.Leased) {
			s.release(claimed...)
			w.Client.Del(ctx, w.keys.Messages())
			require.Equal(w.t, 2, s.claim(2, most(9)).Orphans)
			w.Client.Del(ctx, w.keys.Options(), w.keys.Refs(), w.keys.Ready("b"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publish(now("1").with(queue.Options{MaxDeliveries: 3}), now("2").with(queue.Options{MaxDeliveries: 3}))
				w.suspect("a", 2, "1", "2")
				s := w.sub("a")
				claimed := held(s.claim(2, most(4)))
				require.Len(t, claimed, 2)
				end(w, s, claimed)
				require.Zero(t, w.Client.Exists(ctx, w.keys.Suspects("a")).Val())
			}, "a", "b")
		})
	}
}

func TestRestingSubscriptionIsWokenWhenTheNextSuspectNeedsFewerExpiries(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2", "3", "4")
		w.suspect("a", 4, "1")
		w.suspect("a", 3, "2", "3")
		rests := w.sub("a").claim(9, most(16), holding(3), idle(1, inbox.address("x")))
		require.Equal(t, queue.Claimed{More: true, Blocked: 2, Waits: true}, rests)
		require.Equal(t, []string{"1"}, bodies(w.sub("a").claim(1, most(16))))
		require.Equal(t, []string{"x"}, inbox.received(), "the next one may be among 4")

		rests = w.sub("a").claim(9, most(16), holding(4), idle(1, inbox.address("x")))
		require.Equal(t, queue.Claimed{More: true, Blocked: 4, Waits: true}, rests)
		require.Equal(t, []string{"2"}, bodies(w.sub("a").claim(1, most(16))))
		require.Empty(t, inbox.received(), "the next one needs as few")
		require.Equal(t, []string{"3"}, bodies(w.sub("a").claim(1, most(16))))
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

func TestRestingSubscriptionIsWokenWhenTheExpiryOfTheSuspectWasTakenBack(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2")
		w.suspect("a", 1, "1", "2") // 2 needs no fewer than 1, and restricts nothing
		s := w.sub("a")
		lost := held(s.claim(1))
		w.expireAll()
		require.Equal(t, 1, w.sub("a").claim(9, busy, idle(1, inbox.address("x"))).Blocked)
		require.Zero(t, s.release(lost...))
		require.Equal(t, []string{"1"}, bodies(s.claim(1)))
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

func TestRestingSubscriptionIsWokenWhenTheSuspectHasNoBody(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2")
		w.suspect("a", 4, "1")
		w.suspect("a", 3, "2")
		require.Equal(t, 2, w.sub("a").claim(9, most(16), holding(2), idle(1, inbox.address("x"))).Blocked)
		w.Client.HDel(ctx, w.keys.Messages(), w.id["1"])
		require.Equal(t, 1, w.sub("a").claim(1, most(16)).Orphans)
		require.Equal(t, []string{"x"}, inbox.received())
	}, "a")
}

func TestRepeatedClaimReturnsTheSameExpiries(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		w.suspect("a", 2, "2")
		s := w.sub("a")
		c := s.query(3, most(8))
		first := s.ask(c)
		require.Equal(t, []int{0, 2, 0}, []int{first.Messages[0].Expiries, first.Messages[1].Expiries, first.Messages[2].Expiries})
		w.unchanged(func() { require.Equal(t, first, s.ask(c)) })
	}, "a")
}

func TestEntryInSuspectsThatCannotBeReadRestrictsNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for _, entry := range []string{"", "-", "x - -", "-1 alone -"} {
			w.publishNow("1", "2")
			w.suspect("a", 1, "1")
			w.Client.HSet(ctx, w.keys.Suspects("a"), w.id["1"], entry)
			s := w.sub("a")
			lost := held(s.claim(2, busy))
			require.Len(t, lost, 2, entry)
			w.Client.HSet(ctx, w.keys.Suspects("a"), w.id["1"], entry)
			w.expireAll()
			require.Equal(t, "1 - "+lost[0].Token, w.suspected("a", "1"), entry)
			require.Equal(t, 2, s.ack(held(s.claim(2))...))
			w.noSuspect("a")
		}
	}, "a")
}

func TestStatsCountSuspects(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		suspects := func() []int {
			stats, err := w.topic.Stats(ctx)
			require.NoError(t, err)
			return []int{stats.Groups[0].Number("suspects"), stats.Groups[1].Number("suspects")}
		}
		require.Equal(t, []int{0, 0}, suspects())
		s := w.sub("b")
		lost := held(s.claim(2, most(2)))
		w.expireAll()
		require.Equal(t, []int{0, 2}, suspects())
		require.Zero(t, s.release(lost[0]))
		require.Equal(t, []int{0, 1}, suspects())
	}, "a", "b")
}

// A message without a suspect beside it costs no look at suspects.
func TestSuspectsAreNotReadWhereThereIsNoRecord(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in.Client(t), Prefix: "own"}, "topic", "a")
	w.publishNow("1", "2")
	commands := monitor(t, in)
	s := w.sub("a")
	require.Equal(t, 2, s.ack(held(s.claim(2))...))
	for words, lua := range commands() {
		if lua {
			require.NotContains(t, words, w.keys.Suspects("a"))
		}
	}
}

// A process whose claim had no answer for longer than the lease lives.
func TestARepeatedClaimTakesBackTheExpiryOfWhatItBroughtInVain(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		c := s.query(1, lease(time.Minute))
		lost := held(s.ask(c))
		w.travel(time.Minute + time.Second)
		require.False(t, w.expire())
		require.Equal(t, "1 - "+lost[0].Token, w.suspected("a", "x"))
		require.Empty(t, s.ask(c).Messages)
		w.noSuspect("a")
		require.Equal(t, []string{"x"}, bodies(s.claim(1)))
	}, "a")
}
