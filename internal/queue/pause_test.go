package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestPausedGroupGetsNothingAndRests(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		inbox.wait("a", "1")
		since, err := w.topic.Pause(ctx, "a", "", "", 0)
		require.NoError(t, err)
		again, err := w.topic.Pause(ctx, "a", "", "", 0)
		require.NoError(t, err)
		require.Equal(t, since.Text("since"), again.Text("since"))
		w.publishNow("x", "y")
		require.Equal(t, []string{"1"}, inbox.received(), "it was waiting before")

		a, b := w.sub("a"), w.sub("b")
		claimed := a.claim(9, idle(9, inbox.channel+"|2"))
		require.Empty(t, claimed.Messages)
		require.True(t, claimed.Waits)
		require.False(t, claimed.More)
		require.Equal(t, []string{"x", "y"}, bodies(b.claim(9)))
		w.publishNow("z")
		require.Empty(t, inbox.received(), "publishing wakes nobody")

		was, err := w.topic.Resume(ctx, "a")
		require.NoError(t, err)
		require.True(t, was)
		require.Equal(t, []string{"2"}, inbox.received())
		require.Equal(t, []string{"x", "y", "z"}, bodies(a.claim(9)))
		was, err = w.topic.Resume(ctx, "a")
		require.NoError(t, err)
		require.False(t, was)
		_, err = w.topic.Pause(ctx, "unknown", "", "", 0)
		require.ErrorIs(t, err, queue.ErrNotFound)
		_, err = w.topic.Resume(ctx, "unknown")
		require.ErrorIs(t, err, queue.ErrNotFound)
	}, "a", "b")
}

func TestGroupOfAPausedTopicRestsUntilBothGoOn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		w.publishNow("x")
		a, b := w.sub("a"), w.sub("b")
		a.claim(1, idle(1, inbox.channel+"|a"))
		b.claim(1, idle(1, inbox.channel+"|b"))
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		require.Equal(t, []string{"b"}, inbox.received())
		require.Empty(t, a.claim(1).Messages)
		require.Len(t, b.claim(1).Messages, 1)
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Empty(t, inbox.received())
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		require.Equal(t, []string{"a"}, inbox.received())
		require.Len(t, a.claim(1).Messages, 1)
	}, "a", "b")
}

func TestPauseStopsNothingButClaims(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		query := s.query(4)
		claimed := held(s.ask(query))
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		again := s.ask(query)
		require.Len(t, again.Messages, 4, "a repeat brings what was claimed before")
		require.Equal(t, 1, s.ack(claimed[0]))
		require.Equal(t, 1, s.release(claimed[1]))
		require.Equal(t, 1, s.nack(failed(claimed[2], after(time.Minute))))
		w.do(s.group.ExtendCalls(claimed[3:], time.Minute)...)
		w.publish(in("5", time.Minute))
		w.travel(2 * time.Minute)
		require.True(t, w.promote("s|1").Expired)
		require.False(t, w.expire())
		require.ElementsMatch(t, []string{"2", "3", "4", "5"}, w.ready("a"))
	}, "a")
}

// All are woken, in chunks, and none is left.
func TestResumeWakesAllThatRest(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		inbox := w.inbox()
		want := names("%d", 0, 1200)
		for _, name := range want {
			w.sub("a").claim(1, idle(1, inbox.channel+"|"+name))
		}
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		woken := inbox.received()
		if w.Mini == nil { // the embedded server loses one now and then of so many at once
			require.ElementsMatch(t, want, woken)
		}
		require.Zero(t, w.Client.Exists(ctx, w.keys.Resting("a"), w.keys.Paused()).Val())
	}, "a")
}

func TestCountsOfSubscriptionsAreAddedUp(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		query := s.query(1, counting)
		s.ask(query)
		s.ask(query) // a repeat
		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		claimed := s.claim(1, counting)
		require.Empty(t, claimed.Messages)
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		g := stats.Groups[0]
		require.Equal(t, []int{6, 4, 6}, []int{delivered(g), g.Counter("lease_lost"), g.Counter("given_up")})
		require.Equal(t, queue.Lateness{2: 4, 5: 2}, g.Lateness())
		latest, _ := g.Latest(stats.Now)
		require.Equal(t, 30*time.Millisecond, latest)
		require.GreaterOrEqual(t, g.Seen().UnixMilli(), w.start)
	}, "a")
}

// The latest of all time would stay after one bad night.
func TestTheLatestDeliveryIsOfThisHourAndTheOneBefore(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that can be set")
		}
		hour := time.UnixMilli(w.now()).Truncate(time.Hour).Add(time.Hour)
		s := w.sub("a")
		told := func(late time.Duration) {
			s.claim(1, func(c *queue.Claim) { c.Counts = queue.Counts{Lateness: queue.Lateness{1}, Latest: late} })
		}
		at := func(d, want time.Duration) {
			t.Helper()
			w.Mini.SetTime(hour.Add(d))
			stats, err := w.topic.Stats(ctx)
			require.NoError(t, err)
			latest, since := stats.Groups[0].Latest(stats.Now)
			require.Equal(t, want, latest)
			require.Equal(t, hour.Add(d).Truncate(time.Hour).Add(-time.Hour).UnixMilli(), since.UnixMilli())
		}
		at(0, 0)
		told(3 * time.Second)
		told(2 * time.Second)
		at(time.Hour-time.Millisecond, 3*time.Second)
		at(time.Hour, 3*time.Second)
		at(2*time.Hour-time.Millisecond, 3*time.Second)
		told(time.Second)
		at(2*time.Hour-time.Millisecond, 3*time.Second)
		at(2*time.Hour, time.Second)
		at(3*time.Hour, 0)
		told(time.Millisecond)
		at(3*time.Hour, time.Millisecond)
		at(0, 0) // the clock was set back
		told(2 * time.Millisecond)
		at(0, 2*time.Millisecond)
	}, "a")
}

// The holder of a topic's handle may not know that the topic was erased.
func TestErasedTopicLeavesNothingBehindWhenItIsPausedOrResumed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		other := topicOf(w.Client, w.Prefix, "topic")
		require.NoError(t, only(other.Pause(ctx, "", "", "", 0)))
		require.True(t, wasPaused(t, other))
		w.publish(in("y", time.Hour))
		w.Client.HDel(ctx, w.keys.Scheduler(), "next")
		audit := w.auditing(nil)
		require.Len(t, audit.Violations, 1)
		forgotten := audit.Violations[0]
		require.Equal(t, operate.FaultScheduler, forgotten.Fault)
		require.NoError(t, w.topic.Erase(ctx))
		require.ErrorIs(t, only(other.Pause(ctx, "", "", "", 0)), queue.ErrNotFound)
		require.ErrorIs(t, only(other.Pause(ctx, "a", "", "", 0)), queue.ErrNotFound)
		require.ErrorIs(t, only(other.Resume(ctx, "")), queue.ErrNotFound)
		require.NoError(t, only(other.Mend(ctx, forgotten)))
		require.NotContains(t, w.dump(), w.keys.Paused())
		require.NotContains(t, w.dump(), w.keys.Scheduler())
		w.register("a")
		w.publishNow("x")
		require.Equal(t, []string{"x"}, bodies(w.sub("a").claim(1)))
	}, "a")
}

func wasPaused(t *testing.T, topic *operate.Topic) bool {
	t.Helper()
	was, err := topic.Resume(ctx, "")
	require.NoError(t, err)
	return was
}

func TestSecondPauseKeepsItsBeginOnly(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		first, err := w.topic.Pause(ctx, "a", "ann b", "100 % why", time.Hour)
		require.NoError(t, err)
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		since, until := first.Text("since"), first.Text("until_ms")
		require.Equal(t, time.Hour, first.Time("until_ms").Sub(first.Time("since")))
		require.Equal(t, until+" "+since+" "+queue.EncodeName("ann b")+" 100 % why", stats.Groups[0].Text("paused"))
		require.Empty(t, stats.Text("paused"))

		second, err := w.topic.Pause(ctx, "a", "", "", 0)
		require.NoError(t, err)
		require.Equal(t, []string{since, ""}, []string{second.Text("since"), second.Text("until_ms")})
		w.travel(2 * time.Hour)
		ended, _, err := w.topic.EndPauses(ctx)
		require.NoError(t, err)
		require.Empty(t, ended, "it has no end any more")
		stats, err = w.topic.Stats(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, stats.Groups[0].Text("paused"))
	}, "a")
}

// The scheduler waits for the end of a pause, and then ends it: all that rest are woken.
func TestPauseEndsOnTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x")
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 2*time.Minute)))
		require.NoError(t, only(w.topic.Pause(ctx, "b", "", "", time.Minute)))
		for _, g := range []string{"a", "b"} {
			w.sub(g).claim(1, idle(1, inbox.channel+"|"+g))
		}
		turn := w.promote("scheduler|1")
		require.False(t, turn.Resume)
		require.InDelta(t, time.Minute, turn.Wait, float64(10*time.Second))

		w.travel(time.Minute + time.Millisecond)
		require.True(t, w.promote("scheduler|1").Resume)
		ended, more, err := w.topic.EndPauses(ctx)
		require.NoError(t, err)
		require.False(t, more)
		require.Equal(t, []string{"b"}, ended)
		require.Empty(t, inbox.received(), "the topic is still paused")
		turn = w.promote("scheduler|1")
		require.False(t, turn.Resume)
		require.InDelta(t, time.Minute, turn.Wait, float64(10*time.Second))

		w.travel(time.Minute)
		require.True(t, w.promote("scheduler|1").Resume)
		ended, _, err = w.topic.EndPauses(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{""}, ended)
		require.ElementsMatch(t, []string{"a", "b"}, inbox.received())
		require.Len(t, w.sub("b").claim(1).Messages, 1)
		require.Zero(t, w.Client.Exists(ctx, w.keys.Paused(), w.keys.Resumes()).Val())
	}, "a", "b")
}
