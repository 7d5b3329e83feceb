package redisdelay

import (
	"testing"
	"time"

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
	s = newSubscription(subscriber, t.Context(), queue.NewTopic(client, DefaultKeyPrefix, "t"), "id")
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

func (s *subscription) hold(n int, suspect bool) {
	for range n {
		m := queue.Leased{Suspect: suspect}
		s.inHand.add(s.newDelivery(m, time.Now(), time.Now()))
	}
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
		"a suspect in hand": func(s *subscription, now time.Time) {
			blocked(s, now)
			s.hold(1, true)
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
			x, wake := s.plan(now)
			require.Nil(t, x)
			require.True(t, wake.After(now), "%v ago", now.Sub(wake))
		})
	}
}

func TestASuspectIsTakenBesideOthersAfterALease(t *testing.T) {
	s, now := notRunning(t, 2)
	s.hold(1, false)
	s.waits, s.blocked, s.blockedUntil = false, true, now.Add(time.Millisecond)
	x, wake := s.plan(now)
	require.Nil(t, x)
	require.Equal(t, s.blockedUntil, wake)
	x, _ = s.plan(wake)
	require.NotNil(t, x)
	require.Equal(t, 1, x.claim.Limit)
	require.False(t, x.claim.Busy)
}

// A consumer that reads one message after the other is not given a hundred again and again.
func TestClaimsFollowWhatTheConsumerTakes(t *testing.T) {
	s, now := notRunning(t, 100)
	s.more = true
	x, _ := s.plan(now)
	require.Equal(t, 100, x.claim.Limit)
	s.hold(2, false)
	for range 98 {
		s.buffer = append(s.buffer, s.newDelivery(queue.Leased{}, now, now))
	}

	later := now.Add(2 * hoard)
	x, _ = s.plan(later)
	require.Len(t, x.releases, 98)
	require.Nil(t, x.claim, "it takes nothing now")
	s.stuck = false // it took one
	x, _ = s.plan(later)
	require.Equal(t, 2, x.claim.Limit)

	for _, want := range []int{4, 8, 16, 32, 64, 100 - 2} { // it takes all it is given
		s.buffer = append(s.buffer, s.newDelivery(queue.Leased{}, later, later))
		s.inHand.remove(s.take())
		x, _ = s.plan(later)
		require.Equal(t, want, x.claim.Limit)
	}
}
