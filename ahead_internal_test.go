package redisdelay

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// underLoad is a subscription whose claim is under way for fewer messages than it wants by now, and more are ready.
func underLoad(t *testing.T, maxInFlight int) *subscription {
	t.Helper()
	s, _ := notRunning(t, maxInFlight)
	s.hold(1, false)
	s.more, s.asking = true, true
	s.main.claim = &queue.Claim{Subscription: s.main.id, Limit: maxInFlight / 4, Busy: true}
	return s
}

func TestMoreIsClaimedAheadUnderLoad(t *testing.T) {
	s := underLoad(t, 256)
	s.address = "mailbox|1"
	acked := &queue.Leased{}
	s.settled.acks = []*queue.Leased{acked}
	x := s.planAhead()
	require.NotNil(t, x)
	require.Equal(t, []*queue.Leased{acked}, x.acks)
	require.Empty(t, s.settled.acks)
	require.Len(t, x.claims, 1)
	claim := x.claims[0]
	require.Equal(t, 255-64, claim.Limit, "what is coming need not be claimed")
	require.NotEqual(t, s.main.id, claim.Subscription)
	require.True(t, claim.Busy, "it may not bring what is to be alone in hand")
	require.Zero(t, claim.Slots)
	require.Empty(t, claim.Address, "it is not to be woken, nor to keep the other lane from being")
	require.Equal(t, 255, s.coming())
	require.Nil(t, s.planAhead(), "nothing is wanted any more")
}

func TestNothingIsClaimedAheadElse(t *testing.T) {
	for name, change := range map[string]func(s *subscription){
		"nothing more is ready":               func(s *subscription) { s.more = false },
		"one is ahead":                        func(s *subscription) { s.claimAheadOf(1) },
		"in order":                            func(s *subscription) { s.config.MaxInFlight = 1 },
		"run claims nothing":                  func(s *subscription) { s.main.claim = nil },
		"run may get a suspect":               func(s *subscription) { s.main.claim.Busy = false },
		"run says that it can take nothing":   func(s *subscription) { s.main.claim.Limit = 0 },
		"more than two thirds are coming":     func(s *subscription) { s.main.claim.Limit = 171 },
		"more than two thirds are here":       func(s *subscription) { s.buffer.append(make([]leased, 171-64)) },
		"few are wanted":                      func(s *subscription) { s.few(2*crowd - 1) },
		"the last one failed":                 func(s *subscription) { s.stumbled = true },
		"a claim has no answer":               func(s *subscription) { s.main.unanswered = time.Now() },
		"a suspect is next":                   func(s *subscription) { s.blocked = true },
		"a suspect is in hand":                func(s *subscription) { s.inHand[0].Suspect = true },
		"the consumer takes nothing":          func(s *subscription) { s.stuck = true },
		"a nacked message is to come first":   func(s *subscription) { s.held = true },
		"it is closing":                       func(s *subscription) { s.close() },
		"its context has ended":               func(s *subscription) { s.ctx = ended() },
		"nothing will be handed out any more": func(s *subscription) { s.handOver = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := underLoad(t, 256)
			change(s)
			require.Nil(t, s.planAhead())
		})
	}
	s := underLoad(t, 256)
	s.few(2 * crowd)
	require.NotNil(t, s.planAhead(), "just enough")
	s = underLoad(t, 256)
	s.main.claim.Limit = 170
	require.NotNil(t, s.planAhead(), "a third")
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// few has the subscription want n messages, of which all but a crowd are coming.
func (s *subscription) few(n int) { s.room, s.main.claim.Limit = n, crowd }

// twoClaims plans an exchange of run and one ahead, each to bring some of a hundred messages or more.
func twoClaims(t *testing.T) (s *subscription, mine, ahead *exchange) {
	t.Helper()
	s, now := notRunning(t, 256)
	s.publishMessages(t, 300)
	s.hold(1, false)
	s.woken, s.more, s.room = true, true, 100
	mine, _ = s.plan(now)
	require.Equal(t, 100, mine.claims[0].Limit)
	s.room = 256
	ahead = s.planAhead()
	require.NotNil(t, ahead)
	require.Equal(t, 155, ahead.claims[0].Limit)
	return s, mine, ahead
}

// claimedOnce checks that the buffer has n messages, each once, and that they are all that is leased.
func (s *subscription) claimedOnce(t *testing.T, n int) {
	t.Helper()
	seen := map[string]bool{}
	last := uint64(0)
	for _, m := range s.buffer.all() {
		require.False(t, seen[m.ID])
		seen[m.ID] = true
		require.Greater(t, m.sequence, last)
		last = m.sequence
	}
	require.Len(t, seen, n)
	require.Empty(t, s.settled.releases)
	leased, err := s.config.Client.HLen(t.Context(), DefaultKeyPrefix+":{t}:leases:"+s.group.Name).Result()
	require.NoError(t, err)
	require.Equal(t, int64(n), leased)
	require.Nil(t, s.main.claim)
	require.Nil(t, s.ahead.claim)
}

func TestTwoClaimsUnderWayBringEachMessageOnce(t *testing.T) {
	for name, order := range map[string]func(mine, ahead *exchange) []*exchange{
		"run's first": func(mine, ahead *exchange) []*exchange { return []*exchange{mine, ahead} },
		"run's last":  func(mine, ahead *exchange) []*exchange { return []*exchange{ahead, mine} },
	} {
		t.Run(name, func(t *testing.T) {
			s, mine, ahead := twoClaims(t)
			for _, x := range order(mine, ahead) {
				require.NoError(t, s.tell(x))
			}
			s.claimedOnce(t, 255)
			require.Equal(t, uint64(2), s.main.claims)
			require.Equal(t, uint64(2), s.ahead.claims)
		})
	}
}

// Each lane's claim is sent again as it was, by run, until it is known what it has brought.
func TestClaimsWithoutAnAnswerAreSentAgain(t *testing.T) {
	for name, lost := range map[string]struct{ mine, ahead bool }{
		"run's": {mine: true}, "ahead": {ahead: true}, "both": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, mine, ahead := twoClaims(t)
			network := &losing{}
			s.reaches(t, network)
			asked := 0
			mine.asked = []func(){func() { asked++ }}
			for _, c := range []struct {
				x    *exchange
				lost bool
			}{{mine, lost.mine}, {ahead, lost.ahead}} {
				if network.to = nil; c.lost {
					network.to, network.sent = io.EOF, true
				}
				require.Equal(t, c.lost, s.tell(c.x) != nil)
			}
			require.Equal(t, lost.mine, s.main.isUnanswered())
			require.Equal(t, lost.ahead, s.ahead.isUnanswered())
			require.Nil(t, s.planAhead())

			// What is refused then may have brought something the first time.
			for _, network.to = range []error{io.EOF, refusal("BUSY"), refusal("ERR"), io.EOF} {
				network.sent = false
				x, _ := s.plan(time.Now())
				if lost.mine {
					require.Contains(t, x.claims, mine.claims[0])
				}
				if lost.ahead {
					require.Contains(t, x.claims, ahead.claims[0])
				}
				if !lost.mine {
					x.asked = nil // there is a claim in its place, perhaps
				}
				require.False(t, s.perform(x))
				if lost.mine {
					require.Zero(t, asked)
					require.Len(t, s.asked, 1)
				}
				require.Equal(t, lost.ahead, s.ahead.claim != nil)
			}
			network.to = nil
			x, _ := s.plan(time.Now())
			require.True(t, s.perform(x))
			require.Equal(t, 1, asked)
			s.claimedOnce(t, 255)
			require.Equal(t, uint64(2), s.main.claims)
			require.Equal(t, uint64(2), s.ahead.claims)
		})
	}
}

// Else it would claim again at once, and fail again.
func TestNothingIsClaimedAheadAfterAFailureUntilRunHasGotThrough(t *testing.T) {
	s, mine, ahead := twoClaims(t)
	network := &losing{to: refusal("ERR")}
	s.reaches(t, network)
	s.others.Add(1)
	s.claimAhead(ahead)
	require.Equal(t, ahead.claims[0], s.ahead.claim)
	require.True(t, s.ahead.isUnanswered(), "an attempt of the client may have done it all the same")
	require.True(t, s.stumbled)
	require.Len(t, s.kick, 1)
	network.to = nil
	require.True(t, s.perform(mine))
	require.False(t, s.stumbled)
	require.Nil(t, s.planAhead())

	s.settled.nacks = []queue.Failure{{Leased: &queue.Leased{}}}
	x, _ := s.plan(time.Now())
	require.Equal(t, ahead.claims[0], x.claims[0])
	require.Len(t, x.nacks, 1, "they do not wait for it")
	require.True(t, s.perform(x))
	s.claimedOnce(t, 255)
}

// A group that is gone is registered once, by run.
func TestAGroupThatIsGoneIsLeftToRun(t *testing.T) {
	s, mine, ahead := twoClaims(t)
	require.NoError(t, s.config.Client.FlushAll(t.Context()).Err())
	require.ErrorIs(t, s.tell(ahead), queue.ErrUnregistered)
	require.Equal(t, mine.claims[0], s.main.claim)
	require.Nil(t, s.ahead.claim)
	require.ErrorIs(t, s.tell(ahead), queue.ErrUnregistered)
	require.True(t, s.perform(mine))
	s.claimAll(t)
	s.claimedOnce(t, 0)
}

// An exchange that extends leases may hand messages back as well, which are claimed ahead before its answer is there.
func TestALeaseThatIsLostIsNotTheOneThatWasClaimedSince(t *testing.T) {
	s, _ := notRunning(t, 256)
	s.address = "nobody|1"
	s.publishMessages(t, 1)
	s.claimAll(t)
	before := s.buffer.first().Leased
	x := &exchange{extend: []*queue.Leased{&before}, extendTo: s.sequence}
	s.releaseBuffer()
	releases := s.settled
	s.settled = settlements{}
	require.NoError(t, s.tell(&exchange{settlements: releases}))
	claim := s.claim(&s.ahead, 10, 0, true)
	require.NoError(t, s.tell(&exchange{claims: []*queue.Claim{claim}}))
	require.Equal(t, 1, s.buffer.len())
	require.Equal(t, before.ID, s.buffer.first().ID)
	deadline := s.buffer.first().deadline

	require.NoError(t, s.tell(x))
	require.Equal(t, 1, s.buffer.len())
	require.Equal(t, deadline, s.buffer.first().deadline, "it was not extended")
}

// Its leases end earlier than all that was watched when run had no answer.
func TestWhatIsClaimedAheadIsWatchedToo(t *testing.T) {
	s, now := notRunning(t, 256)
	s.publishMessages(t, 1)
	s.watched, s.watchAt = true, now.Add(s.config.LeaseDuration/4)
	s.watchdog.Reset(time.Hour)
	ahead := func() {
		require.NoError(t, s.tell(&exchange{claims: []*queue.Claim{s.claimAheadOf(10)}}))
	}
	ahead()
	require.Equal(t, 1, s.buffer.len())
	require.Equal(t, now.Add(s.config.LeaseDuration/4), s.watchAt, "it is looked at then")

	s.watchAt = now.Add(time.Hour)
	s.publishMessages(t, 1)
	ahead()
	require.Equal(t, 2, s.buffer.len())
	require.Equal(t, s.buffer.first().deadline.Add(time.Millisecond), s.watchAt)
	s.unwatch()
}

// Or what they bring would stay leased, and what Redis remembers of them stay there.
func TestASubscriptionEndsWhenNoClaimIsUnderWay(t *testing.T) {
	s, _ := notRunning(t, 256)
	s.handOver, s.left = true, true
	require.True(t, s.finished())
	s.ahead.remembered = true
	require.False(t, s.finished())
	s.close()
	x, _ := s.plan(time.Now())
	require.Len(t, x.claims, 1, "it is to be forgotten")
	require.Equal(t, s.ahead.id, x.claims[0].Subscription)
	require.Zero(t, x.claims[0].Limit)
	s.ahead.remembered = false
	require.False(t, s.finished())
}

func TestAClaimCountsAsComingWithWhatItMayBring(t *testing.T) {
	s, now := notRunning(t, 3*mostClaimed)
	s.pace.observe(time.Microsecond)
	s.woken = true
	x, _ := s.plan(now)
	require.Equal(t, mostClaimed, x.claims[0].Limit)
	require.Equal(t, mostClaimed, s.coming())
}

// A claim of run that had no answer, and then was refused, may have brought something all the same.
func TestWhatAClaimMayHaveBroughtIsAskedForBeforeTheEnd(t *testing.T) {
	s, _, _ := twoClaims(t)
	s.main.claim, s.ahead.claim, s.inHand, s.address = nil, nil, nil, "nobody|1"
	network := &losing{to: io.EOF, sent: true}
	s.reaches(t, network)
	s.woken = true
	for _, network.to = range []error{io.EOF, refusal("ERR")} {
		x, _ := s.plan(time.Now())
		require.Len(t, x.claims, 1)
		require.False(t, s.perform(x))
		network.sent = false
	}
	network.to = nil
	s.close()
	s.handOver = true
	for !s.finished() {
		x, _ := s.plan(time.Now())
		require.NotNil(t, x)
		require.True(t, s.perform(x))
	}
	leased, err := s.config.Client.HLen(t.Context(), DefaultKeyPrefix+":{t}:leases:"+s.group.Name).Result()
	require.NoError(t, err)
	require.Zero(t, leased)
}

func TestNothingIsTakenFromTheBufferOnceTheContextHasEnded(t *testing.T) {
	s := underLoad(t, 256)
	for range 2 {
		s.buffered(t, time.Now())
	}
	require.NotNil(t, s.take())
	s.ctx = ended()
	require.Nil(t, s.take())
}

// Nothing here has ended those leases: the process was frozen until now.
func TestNothingIsTakenFromTheBufferWhoseLeaseIsOver(t *testing.T) {
	s := underLoad(t, 256)
	s.buffered(t, time.Now().Add(-time.Hour))
	s.buffered(t, time.Now())
	require.Nil(t, s.take())
	require.Equal(t, 1, s.buffer.len())
	require.Len(t, s.feed, 1, "handOut looks again")
	require.NotNil(t, s.take())
}
