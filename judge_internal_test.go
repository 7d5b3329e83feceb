package redisdelay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Who asks whether all was judged by a new time is not answered while something is on offer that was judged by an
// earlier one.
func TestNobodyIsAnsweredWhileSomethingIsOnOffer(t *testing.T) {
	t.Parallel()
	answered := 0
	asked := []func(){func() { answered++ }}
	s := &subscription{kick: make(chan struct{}, 1), server: time.UnixMilli(1000), sent: time.Now()}
	s.answer(asked)
	require.Equal(t, 1, answered, "nothing is")

	d := &delivery{tooLate: time.UnixMilli(1000).Add(time.Hour), leased: leased{Leased: queue.Leased{ID: "x"}}}
	v, left := s.judge(d)
	require.Equal(t, inTime, v)
	require.Greater(t, left, 59*time.Minute)
	s.answer(asked)
	require.Equal(t, 1, answered, "it may be taken yet")
	s.withdrawn()
	require.Equal(t, 2, answered)
	s.answer(asked)
	require.Equal(t, 3, answered)

	// The program's clock says that it is too late, and the server has not said so.
	s.sent = s.sent.Add(-2 * time.Hour)
	v, _ = s.judge(d)
	require.Equal(t, unknown, v)
	require.True(t, s.woken, "it is asked")
	s.answer(asked)
	require.Equal(t, 4, answered, "nothing is on offer meanwhile")

	s.asked = asked
	s.answerAll()
	require.Equal(t, 5, answered, "when it ends")
	require.True(t, s.gone)
}

// To the millisecond: it is on offer for as long as the server's clock can be before the time, and given up when the
// server said that it is not.
func TestVerdictsAreExact(t *testing.T) {
	t.Parallel()
	end := time.UnixMilli(1000)
	for _, test := range []struct {
		server, since time.Duration // how long before the end the server's clock was, and how long ago
		want          verdict
		left          time.Duration
	}{
		{time.Millisecond, 0, inTime, time.Millisecond},
		{time.Hour, time.Hour - time.Nanosecond, inTime, time.Nanosecond},
		{time.Millisecond, time.Millisecond, unknown, 0},
		{time.Millisecond, time.Hour, unknown, 0},
		{0, 0, tooLate, 0},
		{-time.Millisecond, 0, tooLate, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &subscription{kick: make(chan struct{}, 1), server: end.Add(-test.server), sent: time.Now().Add(-test.since)}
			v, left := s.judge(&delivery{tooLate: end})
			require.Equal(t, test.want, v, "%v before, %v ago", test.server, test.since)
			if v == inTime {
				require.Equal(t, test.left, left)
			}
		})
	}
}

// The server told its time when it had the claim, which may be long before its answer was there.
func TestTheServersTimeIsAsOldAsTheClaim(t *testing.T) {
	s, now := notRunning(t, 1)
	s.address = "nobody|1"
	s.publishMessages(t, 1)
	claim := s.claim(&s.main, 10, 0, false)
	call := s.group.ClaimCall(*claim)
	require.NoError(t, queue.Do(t.Context(), s.client, call))
	require.NoError(t, s.claimed(claim, call, now.Add(-time.Second)))
	require.False(t, s.serverNow(now).Before(s.server.Add(time.Second)))

	// It may also have been long until the server had it. Then what has just come is not late.
	s.handed(&delivery{leased: leased{Leased: queue.Leased{Due: s.server}}})
	require.Less(t, s.counts.Latest, time.Second)
}

// The sum of a thousand lateness of months is more than a time.Duration has room for.
func TestLatenessHasNoEnd(t *testing.T) {
	s, now := notRunning(t, 1)
	d := s.taken(t, now)
	const months = 150 * 24 * time.Hour
	s.server, s.sent, s.heard = now, now, now
	d.Due = now.Add(-months)
	for range 1000 {
		s.handed(d)
	}
	require.GreaterOrEqual(t, s.counts.LatenessMicros, 1000*months.Microseconds())
	require.Less(t, s.counts.LatenessMicros, 1001*months.Microseconds())
}
