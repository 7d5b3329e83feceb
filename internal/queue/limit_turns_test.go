package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// A subscription that rests has had its turn: those that were woken with it share all tokens.
func TestOneThatRestsLeavesItsShareOfTheTokens(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.limitTo("a", slowly(4))
		w.publishNow(names("%d", 0, 30)...)
		box := w.inbox()
		rests, claims := w.sub("a"), w.sub("a")
		require.Len(t, rests.claim(9, woken(9, box.address("rests"))).Messages, 4)
		w.pass(time.Millisecond)
		require.Empty(t, claims.claim(9, woken(9, box.address("claims"))).Messages)
		w.travel(4 * aToken)
		w.promote("scheduler|1")
		require.Equal(t, []string{"rests", "claims"}, box.received())

		require.NoError(t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		require.Empty(t, rests.claim(9, woken(9, box.address("rests"))).Messages)
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Len(t, claims.claim(9, woken(9, box.address("claims"))).Messages, 4)
	})
}

// With another limit the state of the old one goes, so what messages have waited is counted first.
func TestAChangeOfTheLimitCountsForHowLongMessagesHaveWaited(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"set":        func(w *world) { w.setLimit("a", &queue.GroupLimit{AtOnce: 2}) },
		"lifted":     func(w *world) { w.setLimit("a", &queue.GroupLimit{}) },
		"registered": func(w *world) { w.limitTo("a", queue.GroupLimit{AtOnce: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", queue.GroupLimit{AtOnce: 1})
				w.publishNow("x", "y")
				require.Len(t, w.sub("a").claim(1, woken(1, w.Prefix+":nowhere|1")).Messages, 1)
				require.True(t, w.sub("a").claim(1, woken(1, w.Prefix+":nowhere|2")).Waits)
				waited := func() int { n, _ := w.Client.HGet(ctx, w.keys.Stats("a"), "limited_ms").Int(); return n }
				w.pass(100 * time.Millisecond)
				require.Zero(t, waited())
				change(w)
				once := waited()
				require.GreaterOrEqual(t, once, 100)
				w.pass(100 * time.Millisecond)
				w.promote("scheduler|1")
				require.Equal(t, once, waited(), "it counts once")
			})
		})
	}
}

// A script wakes 16 at most, and the others have their turn next.
func TestSixteenAreWokenAtATime(t *testing.T) {
	const all = 20
	for name, c := range map[string]struct {
		limit int
		free  func(w *world, s *sub, got queue.Claimed)
	}{
		"by-a-claim": {all, func(w *world, s *sub, got queue.Claimed) {
			s.ack(held(got)...)
			s.claim(0)
		}},
		"by-a-scheduler": {1, func(w *world, s *sub, got queue.Claimed) {
			w.setLimit("a", &queue.GroupLimit{AtOnce: all + 1})
			w.promote("scheduler|1")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.limitTo("a", queue.GroupLimit{AtOnce: c.limit})
				w.publishNow(names("%d", 0, 3*all)...)
				box := w.inbox()
				s := w.sub("a")
				got := s.claim(all, woken(all, w.Prefix+":nowhere|1"))
				require.Len(t, got.Messages, c.limit)
				for i := range all {
					require.True(t, w.sub("a").claim(1, woken(1, box.address(fmt.Sprint(i))), patient(time.Hour)).Waits)
				}
				c.free(w, s, got)
				require.Len(t, box.received(), 16)
				w.pass(101 * time.Millisecond)
				w.promote("scheduler|1")
				require.Len(t, box.received(), all-16)
			})
		})
	}
}
