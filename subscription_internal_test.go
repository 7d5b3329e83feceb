package redisdelay

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// notRunning is a subscription that a test makes plan by itself. Nothing is due for it at now.
func notRunning(t *testing.T, maxInFlight int) (s *subscription, now time.Time) {
	t.Helper()
	_, client := redistest.Embedded(t)
	subscriber, err := NewSubscriber(SubscriberConfig{Client: client, MaxInFlight: maxInFlight}, nil)
	require.NoError(t, err)
	subscriber.running, err = subscriber.start()
	require.NoError(t, err)
	s = newSubscription(subscriber, t.Context(), queue.NewTopic(queue.MustClient(client), DefaultKeyPrefix, "t"), "id")
	t.Cleanup(func() {
		s.close()
		for _, timer := range s.endTimers {
			timer.Stop()
		}
		s.watchdog.Stop()
		require.NoError(t, subscriber.Close())
	})
	now = time.Now()
	s.nextPoll, s.nextExtend = now.Add(time.Second), now.Add(time.Second)
	s.waits = true
	return s, now
}

// planned is plan, and what is claimed by it is under way no more.
func (s *subscription) planned(now time.Time) (*exchange, time.Time) {
	x, wake := s.plan(now)
	s.main.claim = nil
	return x, wake
}

func (s *subscription) hold(n int, suspect bool) {
	for range n {
		now := time.Now()
		s.begin(leased{Leased: queue.Leased{Suspect: suspect}, lease: &lease{claimed: now, deadline: now.Add(s.config.LeaseDuration)}}, now)
	}
}

// leases puts a message into the buffer, as a claim does.
func (s *subscription) leases(m queue.Leased, now time.Time) {
	s.buffer.append([]leased{{Leased: m, lease: &lease{claimed: now, deadline: now.Add(s.config.LeaseDuration)}}})
}

// A wake-up in the past would have run turn around without end.
func TestPlanThatSaysNothingSaysWhenToLookAgain(t *testing.T) {
	blocked := func(s *subscription, now time.Time) {
		s.waits, s.blocked, s.blockedUntil = false, true, now.Add(-time.Second)
	}
	for name, prepare := range map[string]func(*subscription, time.Time){
		"idle": func(*subscription, time.Time) {},
		"all in hand": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(2, false)
		},
		"closing": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(1, false)
			s.close()
			s.left = true
		},
		"closing, in a group with an expiry": func(s *subscription, now time.Time) {
			s.options.Expiry = time.Hour
			s.hold(1, false)
			s.close()
			s.left = true
		},
		"that, and nothing in hand": func(s *subscription, now time.Time) {
			s.options.Expiry, s.nextPoll = time.Hour, now
			s.close()
			s.left = true
		},
		"a suspect in hand": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(1, true)
		},
		"more claimed than it may hand out": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(1, false)
			s.leases(queue.Leased{}, now)
		},
		"that, in a group with an expiry": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.options.Expiry = time.Hour
			s.hold(1, false)
			s.leases(queue.Leased{}, now)
		},
		"blocked, while all that it wants is coming": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.main.claim = &queue.Claim{Limit: 2}
		},
		"the consumer takes nothing": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(1, false)
			s.stuck = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := notRunning(t, 2)
			prepare(s, now)
			x, wake := s.planned(now)
			require.Nil(t, x)
			require.True(t, wake.After(now), "%v ago", now.Sub(wake))
		})
	}
}

func TestASuspectIsTakenBesideOthersAfterALease(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(1, false)
	s.waits, s.blocked, s.blockedUntil = true, true, now.Add(time.Millisecond)
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, s.blockedUntil, wake)
	x, _ = s.planned(wake)
	require.NotNil(t, x)
	require.Equal(t, 1, x.claims[0].Limit)
	require.False(t, x.claims[0].Busy)
}

// Who asked whether all is looked at waits for the extension that tells of lost leases.
func TestALostLeaseIsKnownBeforeAnAnswer(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(1, false)
	answered := false
	s.handOver, s.nextExtend, s.asked = true, time.Time{}, []func(){func() { answered = true }}
	x, _ := s.planned(now)
	require.NotEmpty(t, x.extend)
	require.False(t, answered)
	s.asking = false
	s.planned(now)
	require.True(t, answered)
}

// Its handler may run for hours.
func TestASuspectIsAloneForALease(t *testing.T) {
	s, now := notRunning(t, 2)
	s.nextPoll, s.nextExtend = now.Add(time.Hour), now.Add(time.Hour)
	s.waits, s.more = false, true
	s.hold(1, true)
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, s.aloneUntil(), wake)
	require.WithinDuration(t, now.Add(s.config.LeaseDuration), wake, time.Second)
	x, _ = s.planned(wake)
	require.NotNil(t, x)
	require.Positive(t, x.claims[0].Limit)
	require.True(t, x.claims[0].Busy, "beside no other suspect")
}

// Either may be the one that ends the process.
func TestASuspectIsTakenBesideAnotherAfterALease(t *testing.T) {
	s, now := notRunning(t, 4)
	s.nextPoll, s.nextExtend = now.Add(time.Hour), now.Add(time.Hour)
	s.waits, s.blocked, s.blockedUntil = true, true, now.Add(-time.Second)
	s.hold(1, false)
	s.leases(queue.Leased{Suspect: true}, now)
	end := now.Add(s.config.LeaseDuration)
	require.Equal(t, end, s.aloneUntil())
	s.take()
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, end, wake)
	x, _ = s.planned(end)
	require.NotEmpty(t, x.claims)
	require.False(t, x.claims[0].Busy)
}

// A run of suspects has all that is behind it wait for a LeaseDuration, not for one each.
func TestSuspectsThatComeOneAfterTheOtherWaitTogether(t *testing.T) {
	s, now := notRunning(t, 2)
	first, later := now.Add(s.config.LeaseDuration), now.Add(time.Hour)
	s.noteBlocked(true, false, now)
	require.True(t, s.blocked)
	s.noteBlocked(false, true, later)
	require.False(t, s.blocked, "none is next, as far as is known")
	s.noteBlocked(true, false, later)
	require.True(t, s.blocked)
	require.Equal(t, first, s.blockedUntil)
	s.noteBlocked(false, false, later)
	s.noteBlocked(true, false, later)
	require.Equal(t, later.Add(s.config.LeaseDuration), s.blockedUntil, "others came in between")
}

// What is claimed ahead goes back when a message is nacked in its place. A handler that often fails would have all
// of it come and go each time.
func TestNoMoreIsClaimedAheadThanWasDoneSinceANackInPlace(t *testing.T) {
	s, now := notRunning(t, 1)
	s.pace.observe(time.Microsecond)
	limit := func() int {
		s.woken = true
		free, prefetch := s.wanted()
		x, _ := s.planned(now)
		require.Equal(t, min(free+prefetch, mostClaimed), x.claims[0].Limit)
		return free + prefetch
	}
	require.Equal(t, 1+mostAhead, limit())
	s.holdFor(queue.In(time.Second))
	require.Equal(t, 1+mostAhead, limit(), "it does not come back in its place")
	s.holdFor(queue.In(0))
	require.Equal(t, 1, limit())
	for range 3 {
		d := s.begin(leased{lease: &lease{claimed: now, deadline: now.Add(time.Hour)}}, now)
		d.ending.end(errSettled)
		s.ack(d)
	}
	s.settled = settlements{}
	require.Equal(t, 1+3, limit())
	late := s.begin(leased{lease: &lease{claimed: now, deadline: now.Add(time.Hour)}}, now)
	late.tooLate, s.server = time.Unix(1, 0), now
	verdict, _ := s.judge(late)
	require.Equal(t, tooLate, verdict)
	s.settled = settlements{}
	require.Equal(t, 1+4, limit(), "what is dropped is done, too")
}

// Its claim left no slots, so that Redis did not note it, and then it has some: nobody would tell it of anything.
func TestWhoHasRoomBehindASuspectAndIsNotNotedAsks(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(2, false)
	s.waits = false // no more than its claim, which left no slots, told
	s.noteBlocked(true, false, now)
	x, _ := s.planned(now)
	require.Nil(t, x, "it has no room")
	s.ack(s.inHand[0])
	x, _ = s.planned(now)
	require.NotEmpty(t, x.claims)
	require.Positive(t, x.claims[0].Slots)
}

// Who has taken it in hand wakes the others.
func TestAWakeUpAsksWhetherASuspectIsStillNext(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(1, false)
	s.waits, s.blocked, s.blockedUntil = true, true, now.Add(time.Hour)
	x, _ := s.planned(now)
	require.Nil(t, x)
	s.woken = true
	x, _ = s.planned(now)
	require.NotEmpty(t, x.claims)
	require.Equal(t, 1, x.claims[0].Limit)
	require.Equal(t, 1, x.claims[0].Slots)
	require.True(t, x.claims[0].Busy, "if it is, it waits on")
}

// Else nobody tells when it is gone.
func TestThePollAsksWhetherASuspectIsStillNext(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(1, false)
	s.waits, s.blocked, s.blockedUntil = true, true, now.Add(time.Hour)
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, s.nextPoll, wake)
	x, _ = s.planned(wake)
	require.NotEmpty(t, x.claims)
	require.Equal(t, 1, x.claims[0].Limit)
	require.True(t, x.claims[0].Busy, "if it is, it waits on")
}

// A consumer that reads one message after the other is not given a hundred again and again.
func TestClaimsFollowWhatTheConsumerTakes(t *testing.T) {
	s, now := notRunning(t, 100)
	s.more = true
	x, _ := s.planned(now)
	require.Equal(t, 100, x.claims[0].Limit)
	s.hold(2, false)
	for range 98 {
		s.leases(queue.Leased{}, now)
	}

	later := now.Add(2 * hoard)
	x, _ = s.planned(later)
	require.Len(t, x.releases, 98)
	require.Empty(t, x.claims, "it takes nothing now")
	s.stuck = false // it took one
	x, _ = s.planned(later)
	require.Equal(t, 2, x.claims[0].Limit)

	for _, want := range []int{4, 8, 16, 32, 64, 100 - 2} { // it takes all it is given
		s.leases(queue.Leased{}, later)
		s.inHand.remove(s.take())
		x, _ = s.planned(later)
		require.Equal(t, want, x.claims[0].Limit)
	}
}

// It has settled one, and handOut has not come to offer it the next before that goes back.
func TestAConsumerThatIsOfferedNothingIsGivenMore(t *testing.T) {
	s, now := notRunning(t, 3)
	s.hold(2, false)
	for _, d := range s.inHand {
		d.handed = now
	}
	s.more, s.waits = true, false
	s.leases(queue.Leased{}, now)
	x, _ := s.planned(now.Add(2 * hoard))
	require.Len(t, x.releases, 1)
	require.False(t, s.stuck)
	require.NotEmpty(t, x.claims)
	require.Equal(t, 1, x.claims[0].Limit)
}

// What doubles does not overflow.
func TestAConsumerWithoutLimitIsGivenMoreEachTime(t *testing.T) {
	s, now := notRunning(t, math.MaxInt)
	s.room = 1
	for range 200 {
		before := s.room
		s.leases(queue.Leased{}, now)
		s.inHand.remove(s.take())
		require.GreaterOrEqual(t, s.room, before)
	}
	require.Equal(t, math.MaxInt, s.room)
	s.woken = true
	x, _ := s.planned(now)
	require.Equal(t, 256, x.claims[0].Limit, "the server is kept from others for about a millisecond at a time")
}

// A claim that brought all that it might bring has not noted the subscription as waiting. If the consumer can take
// more, and acks none, nothing but this has it ask again.
func TestMoreIsClaimedWhenTheLastIsTaken(t *testing.T) {
	s, now := notRunning(t, 4)
	s.waits, s.more = false, false
	s.leases(queue.Leased{}, now)
	s.leases(queue.Leased{}, now)
	s.take()
	require.Empty(t, s.kick)
	x, _ := s.planned(now)
	require.Nil(t, x, "one is left")
	s.take()
	require.Len(t, s.kick, 1)
	x, _ = s.planned(now)
	require.Len(t, x.claims, 1)
}

// buffered puts a message into the buffer, as a claim does.
func (s *subscription) buffered(t *testing.T, now time.Time) {
	t.Helper()
	body, err := BinaryMarshaler{}.Marshal("t", message.NewMessage("1", nil))
	require.NoError(t, err)
	s.leases(queue.Leased{Body: body}, now)
}

// taken is a message that handOut is about to offer.
func (s *subscription) taken(t *testing.T, now time.Time) *delivery {
	t.Helper()
	s.buffered(t, now)
	d := s.take()
	require.NotNil(t, d)
	require.True(t, s.unmarshal(d))
	return d
}

// read has a consumer wait for a message.
func (s *subscription) read(t *testing.T) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.out:
		case <-s.closing:
		}
	}()
	t.Cleanup(func() { s.close(); <-ended })
	for range 1000 {
		runtime.Gosched() // so that it does wait, mostly
	}
}

// One that had been offered for long was given up at once.
func TestAHandlersTimeBeginsWhenItHasTheMessage(t *testing.T) {
	s, now := notRunning(t, 2)
	d := s.taken(t, now)
	d.taken = now.Add(-time.Hour)
	s.read(t)
	require.True(t, s.offer(nil, d))
	require.False(t, d.handed.Before(now))
}

func TestAMessageWhoseLeaseIsLostIsNotHandedOut(t *testing.T) {
	s, now := notRunning(t, 2)
	d := s.taken(t, now)
	s.abandon(d, ErrLeaseLost) // while it was unmarshaled
	s.read(t)
	require.False(t, s.offer(nil, d))
}

// What was not handed out had gone back, and the consumer waited for the next poll.
func TestAConsumerThatTakesAgainIsGivenMore(t *testing.T) {
	s, now := notRunning(t, 2)
	d := s.taken(t, now)
	s.stuck = true
	for len(s.kick) > 0 {
		<-s.kick
	}
	s.handed(d)
	require.Len(t, s.kick, 1)
	s.waits = false
	x, _ := s.planned(now)
	require.NotNil(t, x)
	require.Equal(t, 1, x.claims[0].Limit)
}

// handOut may be in the Unmarshaler with the next message, and not have noticed.
func TestAMessageThatIsAckedIsNotGivenUp(t *testing.T) {
	s, now := notRunning(t, 2)
	acked, running := s.taken(t, now), s.taken(t, now)
	s.handed(acked)
	s.handed(running)
	require.True(t, acked.msg.Ack())
	later := now.Add(s.config.LeaseDuration + s.config.MaxExtension + time.Second)
	acked.deadline, running.deadline = later.Add(time.Hour), later.Add(time.Hour)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, []*queue.Leased{&acked.Leased}, s.planExtend(later))
	require.Equal(t, []*delivery{running}, s.tired)
}

// Its handler may be writing to its metadata.
func TestAMessageThatIsGivenUpWaitsAsItSaysItself(t *testing.T) {
	s, now := notRunning(t, 2)
	msg := message.NewMessage("1", nil)
	SetBackoff(msg, 7*time.Second, 7*time.Second)
	body, err := BinaryMarshaler{}.Marshal("t", msg)
	require.NoError(t, err)
	s.leases(queue.Leased{Body: body}, now)
	d := s.take()
	require.True(t, s.unmarshal(d))
	delete(d.msg.Metadata, BackoffKey)
	s.mu.Lock()
	s.giveUp(d)
	s.mu.Unlock()
	s.failTired()
	require.Equal(t, queue.In(7*time.Second), s.settled.nacks[0].Retry)
}

// A call costs Redis as much as a dozen messages, so what comes in quick succession goes together.
func TestAcksWaitForOthersAfterAnExchange(t *testing.T) {
	s, now := notRunning(t, 2)
	s.answered = now
	s.settled.acks = []*queue.Leased{{}}
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, now.Add(gather), wake)
	require.False(t, s.urgent(), "another ack need not have run look")

	s.woken = true // a claim takes them along
	x, _ = s.planned(now)
	require.Len(t, x.acks, 1)
	require.NotEmpty(t, x.claims)

	s.settled.acks = []*queue.Leased{{}}
	x, _ = s.planned(wake)
	require.Len(t, x.acks, 1)
	require.Empty(t, x.claims)
}

func TestAClaimWaitsForMoreAfterOneThatBroughtMany(t *testing.T) {
	s, now := notRunning(t, 256)
	claims := func(at time.Time) bool {
		t.Helper()
		s.woken = true
		x, wake := s.planned(at)
		if x == nil {
			require.Equal(t, s.answered.Add(gather), wake)
		}
		return x != nil && len(x.claims) > 0
	}
	s.answered, s.brought = now, crowd-1
	require.True(t, claims(now), "few came")
	s.brought = crowd
	require.False(t, claims(now))
	require.True(t, claims(now.Add(gather)))

	s.more = true // more was ready than it could take
	require.True(t, claims(now))
	s.more = false
	s.settled.nacks = []queue.Failure{{}} // an exchange is due anyway
	require.True(t, claims(now))
	require.False(t, claims(now))
	s.nextExtend = now
	s.hold(1, false)
	require.True(t, claims(now), "leases are extended anyway")
	require.False(t, claims(now))
	s.nextPoll = now
	require.True(t, claims(now), "the poll is due")
	require.False(t, claims(now))
	s.close()
	require.True(t, claims(now))
}

// While many come all the time, the next claim does not wait to be woken, and nobody is asked to wake it.
func TestNobodyWakesWhoClaimsAnyhow(t *testing.T) {
	s, now := notRunning(t, 256)
	s.waits, s.answered, s.brought = false, now, crowd
	x, wake := s.planned(now)
	require.Nil(t, x)
	require.Equal(t, now.Add(gather), wake)
	x, _ = s.planned(wake)
	require.Zero(t, x.claims[0].Slots)

	s.brought, s.waits = crowd-1, false
	x, _ = s.planned(wake)
	require.Equal(t, 256, x.claims[0].Slots, "from now on it is to be woken")

	s.brought, s.waits, s.woken = crowd, true, true
	x, _ = s.planned(now.Add(2 * gather))
	require.Equal(t, 256, x.claims[0].Slots, "it has waited to be woken, so not that many come any more")
}

// They were handed out, and lost at once, or came as suspects when their leases were over.
func TestMessagesWhoseLeaseMayBeOverWhenTheyComeGoBack(t *testing.T) {
	s, now := notRunning(t, 2)
	s.publishMessages(t, 2)

	s.config.LeaseDuration = time.Nanosecond // the answer takes longer
	s.woken = true
	x, _ := s.planned(now)
	require.True(t, s.perform(x))
	require.Nil(t, s.take())
	s.config.LeaseDuration = time.Hour
	x, _ = s.planned(now)
	require.Len(t, x.releases, 2)
	require.True(t, s.perform(x))
	s.woken = true
	x, _ = s.planned(now)
	require.True(t, s.perform(x))
	for _, want := range []string{"1", "2"} {
		d := s.take()
		require.True(t, s.unmarshal(d))
		require.Equal(t, want, d.uuid)
		require.False(t, d.Suspect)
	}
}

// They would never be handed out, and nobody would know why.
func TestThatAnswersTakeLongerThanALeaseIsLoggedOnce(t *testing.T) {
	s, _ := notRunning(t, 2)
	log := watermill.NewCaptureLogger()
	s.logger = log
	s.publishMessages(t, 2)
	s.config.LeaseDuration = time.Nanosecond
	logged := func() []watermill.CapturedMessage { return log.Captured()[watermill.ErrorLogLevel] }
	for range 3 {
		s.claimAll(t)
		require.Len(t, logged(), 1)
	}
	require.ErrorIs(t, logged()[0].Err, errSlow)
	require.Equal(t, 2, logged()[0].Fields["messages"])
}

// An outage is another thing, and said otherwise.
func TestAnOutageIsNoSlowAnswer(t *testing.T) {
	s, network, now := unanswered(t, 2)
	log := watermill.NewCaptureLogger()
	s.logger = log
	network.to = nil
	s.main.unanswered = now.Add(-2 * s.config.LeaseDuration)
	s.exchanges(t, 1)
	require.Len(t, s.settled.releases, 2)
	require.Empty(t, log.Captured()[watermill.ErrorLogLevel])
}

// Between two attempts are seconds.
func TestALeaseEndsWhileRedisIsOnlyTriedNowAndThen(t *testing.T) {
	for name, next := range map[string]func(*subscription){
		"before the next attempt":  func(*subscription) {},
		"while that has no answer": func(s *subscription) { s.planned(time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, now := notRunning(t, 2)
			s.config.LeaseDuration = time.Hour
			taken := s.taken(t, now)
			s.buffered(t, now)
			for _, m := range []*leased{&taken.leased, s.buffer.first()} {
				m.deadline = now.Add(50 * time.Millisecond)
			}
			s.cancelCalls() // so that all fails
			s.woken = true
			x, _ := s.planned(now)
			require.False(t, s.perform(x))
			next(s)
			select {
			case <-taken.Done():
			case <-time.After(10 * time.Second):
				require.FailNow(t, "the lease goes on")
			}
			require.ErrorIs(t, context.Cause(taken), ErrLeaseLost)
			require.Eventually(t, func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.buffer.len() == 0
			}, 10*time.Second, time.Millisecond)
		})
	}
}

// What expires is judged again after each answer, and after each failure. Between attempts to reach Redis are pauses.
func TestAMessageThatMayBeTooLateAsksOnce(t *testing.T) {
	s, now := notRunning(t, 1)
	d := s.taken(t, now)
	s.server, s.sent = now, now.Add(-time.Hour)
	d.tooLate = now.Add(time.Minute)
	asks := func() int {
		for len(s.kick) > 0 {
			<-s.kick
		}
		v, _ := s.judge(d)
		require.Equal(t, unknown, v)
		return len(s.kick)
	}
	require.Equal(t, 1, asks())
	require.Zero(t, asks(), "run knows")
	x, _ := s.planned(now)
	require.NotEmpty(t, x.claims)
	require.Equal(t, 1, asks(), "by the next claim's answer it may be too late")
}

// Room for the next claim keeps nothing of the last, or bodies would stay in memory.
func TestRoomForClaimsIsEmpty(t *testing.T) {
	s, now := notRunning(t, 2)
	s.publishMessages(t, 2)
	s.woken = true
	x, _ := s.planned(now)
	require.True(t, s.perform(x))
	require.Len(t, s.buffer.all(), 2)
	require.NotEmpty(t, s.buffer.all()[1].Body)
	require.Equal(t, make([]leased, 2), s.main.arrived[:2])
	s.take()
	require.Zero(t, s.buffer.array[0])
}

// claimAll claims as much as it may, without waiting for a signal.
func (s *subscription) claimAll(t *testing.T) {
	t.Helper()
	s.woken = true
	x, _ := s.planned(time.Now())
	require.NotEmpty(t, x.claims)
	require.True(t, s.perform(x))
}

// Room that a burst needed is given back when nothing is ready any more.
func TestAnEmptyClaimGivesRoomBack(t *testing.T) {
	s, _ := notRunning(t, 500)
	s.address = "nobody|1"
	claimed := func(n int) {
		s.publishMessages(t, n)
		s.claimAll(t)
		for range n - 1 {
			s.inHand.remove(s.take())
		}
		s.claimAll(t)
		require.Equal(t, 1, s.buffer.len(), "it is kept while there is something in it")
		s.inHand.remove(s.take())
		s.claimAll(t)
	}
	claimed(10)
	require.NotZero(t, cap(s.buffer.array), "so little is")
	claimed(100)
	require.Zero(t, cap(s.buffer.array))
	require.Zero(t, cap(s.main.arrived))
}

// Its Unmarshaler may take long.
func TestLeasesAreLookedAfterWhileAMessageIsUnmarshaled(t *testing.T) {
	s, now := notRunning(t, 2)
	s.publishMessages(t, 2)
	s.claimAll(t)
	d := s.take()
	unmarshaled := make(chan struct{})
	go func() {
		defer close(unmarshaled)
		s.unmarshal(d)
	}()
	s.mu.Lock()
	s.planExtend(now)
	s.watchLeases()
	s.mu.Unlock()
	<-unmarshaled
	require.NotNil(t, d.msg)
}

// Redis keeps leases that end together in the order in which they are extended.
func TestAllThatIsHeldIsExtendedInOrder(t *testing.T) {
	s, now := notRunning(t, 10)
	s.publishMessages(t, 5)
	s.claimAll(t)
	var taken []*delivery
	for range 4 {
		taken = append(taken, s.take())
	}
	s.ack(taken[0]) // what is in hand is in no order now
	ids := []string{taken[1].ID, taken[2].ID, taken[3].ID, s.buffer.first().ID}
	extend := func() {
		s.nextExtend = now
		x, _ := s.planned(now)
		require.Len(t, x.extend, len(ids))
		for i, m := range x.extend {
			require.Equal(t, ids[i], m.ID)
		}
		require.True(t, s.perform(x))
	}
	was := s.buffer.first().deadline
	extend()
	require.True(t, s.buffer.first().deadline.After(was))
	for _, d := range taken[1:] {
		require.True(t, d.deadline.After(was))
	}

	key := queue.NewKeys(DefaultKeyPrefix, "t").Leases(s.group.Name)
	require.NoError(t, s.config.Client.HDel(t.Context(), key, ids[1], ids[3]).Err())
	extend()
	require.Zero(t, s.buffer.len())
	require.ErrorIs(t, context.Cause(taken[2]), ErrLeaseLost)
	require.NoError(t, taken[1].Err())
	require.NoError(t, taken[3].Err())
}

// publishMessages has the messages 1 to n be ready for the subscription.
func (s *subscription) publishMessages(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, s.topic.Register(t.Context(), s.group.Name, s.options))
	p, err := NewPublisher(PublisherConfig{Client: s.config.Client}, nil)
	require.NoError(t, err)
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = message.NewMessage(strconv.Itoa(i+1), nil)
	}
	require.NoError(t, p.Publish("t", messages...))
	require.NoError(t, p.Close())
}
