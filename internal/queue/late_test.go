package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestMessagesThatAreTooLateAreDroppedOrBuried(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		soon := time.UnixMilli(w.now()).Add(time.Minute)
		w.publish(
			now("drop").with(queue.Options{Late: queue.Drop, Expires: soon}),
			now("1"),
			now("bury").with(queue.Options{Late: queue.Bury, Lateness: time.Minute, MaxDeliveries: 9}),
			now("2").with(queue.Options{Late: queue.Drop, Lateness: 2 * time.Hour}),
			now("3").with(queue.Options{Lateness: time.Minute}),
			now("behind").with(queue.Options{Late: queue.Drop, Expires: soon}),
		)
		first := w.sub("b")
		require.Equal(t, []string{"drop", "1", "bury", "2", "3", "behind"}, bodies(first.claim(9)), "in time")
		if w.Mini == nil {
			return // the due times in ready cannot be moved
		}
		w.pass(time.Hour)
		s := w.sub("a")
		require.Equal(t, []string{"1", "2"}, bodies(s.claim(2)))
		require.Equal(t, []string{"3", "behind"}, w.ready("a"))
		require.Equal(t, []string{"bury"}, w.dead("a"))
		require.Equal(t, "0 - - not delivered in time", w.field(w.keys.Deliveries("a"), "bury"))
		require.Equal(t, []string{"3"}, bodies(s.claim(9)))
		require.Empty(t, w.ready("a"))
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, stats.Groups[0].Dropped)
		require.Equal(t, 3, stats.Groups[0].Delivered)
		require.Equal(t, 3*time.Hour, stats.Groups[0].Lateness)
		require.Equal(t, time.Hour, stats.Groups[0].Latest)
		require.Zero(t, stats.Groups[1].Dropped)
		require.Equal(t, "1", w.field(w.keys.Refs(), "drop"), "b has it still")
	}, "a", "b")
}

func TestManyThatAreTooLateAreWorkedOffInFewClaims(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var messages []message
		for _, name := range names("%d", 0, 2500) {
			messages = append(messages, now(name).with(queue.Options{Late: queue.Drop, Expires: time.UnixMilli(1)}))
		}
		w.publish(append(messages, now("good"))...)
		s := w.sub("a")
		var got []string
		claims := 0
		for more := true; more; claims++ {
			claimed := s.claim(1)
			got = append(got, bodies(claimed)...)
			more = claimed.More
		}
		require.Equal(t, []string{"good"}, got)
		require.Equal(t, 3, claims, "a thousand are looked at each time")
		require.Equal(t, []string{"good"}, w.stored())
	}, "a")
}

func TestTooLateDoesNotPassASuspectThatHasToWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		late := queue.Options{Late: queue.Drop, Expires: time.UnixMilli(1)}
		w.publish(now("late").with(late), now("suspect"), now("later").with(late), now("x"))
		require.NoError(t, w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["suspect"], "0 s -").Err())
		s := w.sub("a")
		claimed := s.claim(9, busy)
		require.True(t, claimed.Blocked)
		require.Empty(t, claimed.Messages)
		require.Equal(t, []string{"suspect", "later", "x"}, w.ready("a"))
		require.Equal(t, []string{"suspect"}, bodies(s.claim(9)))
	}, "a")
}
