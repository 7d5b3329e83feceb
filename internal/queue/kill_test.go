package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func (w *world) kill(group, name string) string {
	w.t.Helper()
	state, err := w.topic.Kill(ctx, group, w.id[name], "killed: poison")
	require.NoError(w.t, err)
	return state
}

func (w *world) recordOf(group, name string) string { return w.field(w.keys.Deliveries(group), name) }

func TestKilledMessageInHandIsDeadAndItsHolderIsTold(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := held(s.claim(2, signing(inbox.channel+"|7")))
		require.Equal(t, operate.InHand, w.kill("a", "x"))
		require.Equal(t, []string{"7 extend"}, inbox.received())
		require.Equal(t, "0 d - killed: poison", w.recordOf("a", "x"))
		extend := s.group.ExtendCalls(claimed, time.Hour)
		w.do(extend...)
		lost, err := queue.ReadLost(extend[0])
		require.NoError(t, err)
		require.Equal(t, []string{claimed[0].Lease()}, lost)
		require.Equal(t, 1, s.ack(claimed...), "the late ack changes nothing")
		require.Equal(t, []string{"x", "y"}, w.ready("b"), "another group keeps it")
		require.Equal(t, operate.Dead, w.kill("a", "x"))
		require.Equal(t, "1", w.Client.HGet(ctx, w.keys.Stats("a"), "dead_killed").Val())
		n, err := w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}, "a", "b")
}

func TestKilledMessageThatWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour).with(queue.Options{DelayID: "x"}))
		require.Equal(t, operate.Waiting, w.kill("a", "x"))
		for _, g := range []string{"a", "b"} {
			require.Equal(t, "0 - - killed: poison", w.recordOf(g, "x"))
			require.True(t, w.Client.ZScore(ctx, w.keys.Dead(g), w.id["x"]).Err() == nil)
		}
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken(), w.keys.Pending()).Val(), "its delay id is free")
		for _, g := range []string{"a", "b"} {
			n, err := w.topic.Group(g).Discard(ctx, []string{w.id["x"]})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		require.Zero(t, w.Client.Exists(ctx, w.keys.Messages(), w.keys.Refs()).Val())

		w.publishNow("y")
		s := w.sub("a")
		s.nack(failed(held(s.claim(1))[0], after(time.Hour)))
		require.Equal(t, operate.Retrying, w.kill("a", "y"))
		require.Equal(t, "1 - - killed: poison", w.recordOf("a", "y"))
		require.ErrorIs(t, only(w.topic.Kill(ctx, "unknown", w.id["y"], "")), queue.ErrNotFound)
		require.ErrorIs(t, only(w.topic.Kill(ctx, "a", "01M7Y3SQGNBVX5P66MY8JV56FH", "")), queue.ErrNotFound)
	}, "a", "b")
}

func TestKilledReadyMessageIsFoundAndDropped(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var names []string
		for i := range 2500 {
			names = append(names, fmt.Sprint(i))
		}
		w.publishNow(names...)
		for _, name := range []string{"0", "999", "1000", "1499", "1500", "2499"} {
			require.Equal(t, operate.Ready, w.kill("a", name))
			require.Equal(t, operate.Dead, w.kill("a", name))
		}
		claimed := w.sub("a").claim(1000)
		require.Equal(t, "1", string(claimed.Messages[0].Body))
		require.Len(t, claimed.Messages, 998)
		done := w.sub("a")
		last := held(done.claim(5))
		require.Equal(t, len(last), done.ack(last...))
		require.ErrorIs(t, only(w.topic.Kill(ctx, "a", last[0].ID, "")), queue.ErrNotFound)
	}, "a")
}

// Subscriptions rest because they hold too many for the suspect that is next. When it is dead, they
// claim again.
func TestKilledSuspectLetsOthersClaim(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x", "y")
		w.suspect("a", 3, "x")
		s := w.sub("a")
		claimed := s.claim(1, idle(1, inbox.channel+"|1"), func(c *queue.Claim) { c.Held, c.Most = 3, 4 })
		require.Empty(t, claimed.Messages)
		require.True(t, claimed.Waits)
		require.Equal(t, operate.Ready, w.kill("a", "x"))
		require.Equal(t, []string{"1"}, inbox.received())
		require.Empty(t, w.field(w.keys.Suspects("a"), "x"))
		require.Equal(t, []string{"y"}, bodies(s.claim(2)))
	}, "a")
}
