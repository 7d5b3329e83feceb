package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// fullWorld is a topic on a server that reaches its memory limit when full is called.
func fullWorld(t *testing.T, groups ...string) (w *world, full func()) {
	t.Helper()
	t.Parallel()
	client := redistest.Start(t, "--maxmemory-policy", "noeviction").Client(t)
	w = newWorld(t, redistest.Server{Client: client, Prefix: "own"}, "topic", groups...)
	return w, func() {
		t.Helper()
		require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
		require.ErrorContains(t, client.Set(ctx, "x", "x", 0).Err(), "OOM")
	}
}

func TestPublishToAFullServerPublishesNothing(t *testing.T) {
	w, full := fullWorld(t, "a", "b")
	w.publishNow("before")
	full()
	w.unchanged(func() {
		for _, messages := range [][]message{{now("x")}, {in("x", time.Hour)}, {now("x"), in("y", time.Hour)}} {
			require.ErrorIs(t, w.topic.Publish(ctx, "P", 1, w.make(messages...)), refusal.ErrServerFull)
		}
	})
	require.NoError(t, w.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	require.NoError(t, w.topic.Publish(ctx, "P", 1, w.make(now("x"))), "the number was not used up")
	require.Equal(t, []string{"before", "x"}, w.ready("b"))
	queuetest.Check(t, w.Client, w.Prefix)
}

func TestRepeatedPublishToAFullServerSucceeds(t *testing.T) {
	w, full := fullWorld(t, "a")
	messages := w.make(now("x"))
	require.NoError(t, w.topic.Publish(ctx, "P", 1, messages))
	full()
	w.unchanged(func() { require.NoError(t, w.topic.Publish(ctx, "P", 1, messages)) })
}

func TestNewTopicOnAFullServerFails(t *testing.T) {
	w, full := fullWorld(t)
	full()
	require.ErrorIs(t, w.topic.Publish(ctx, "P", 1, w.make(now("x"))), refusal.ErrServerFull)
	require.ErrorIs(t, w.topic.Register(ctx, "a", standard), refusal.ErrServerFull)
	require.Empty(t, w.dump())
}

func TestGroupOfAFullServer(t *testing.T) {
	w, full := fullWorld(t, "a")
	w.publish(in("x", time.Hour))
	full()
	w.unchanged(func() {
		require.NoError(t, w.topic.Register(ctx, "a", standard), "one that exists may come back")
		topic := topicOf(w.Client, w.Prefix, "topic")
		require.NoError(t, topic.Register(ctx, "a", standard))
		_, err := topicOf(w.Client, w.Prefix, "topic").Groups(ctx)
		require.NoError(t, err)
		require.ErrorIs(t, w.topic.Register(ctx, "new", standard), refusal.ErrServerFull)
	})
}

func TestRepeatedNackOnAFullServerChangesNothing(t *testing.T) {
	w, full := fullWorld(t, "a")
	w.publishNow(names("%d", 1, 21)...)
	s := w.sub("a")
	var nacks []queue.Failure
	for _, m := range held(s.claim(20)) {
		nacks = append(nacks, failed(m, after(time.Hour)))
	}
	require.Equal(t, 20, s.nack(nacks...))
	full()
	w.unchanged(func() { require.Zero(t, s.nack(nacks...)) })
}

func TestEndOfAGroupIsPutOffOnAFullServer(t *testing.T) {
	w, full := fullWorld(t)
	w.registerFor("a", queue.GroupOptions{Expiry: time.Millisecond})
	w.passUntil(w.end("a"))
	full()
	w.removeUnused("a")
	require.Greater(t, w.end("a"), w.now())
}

func TestFullServerDrains(t *testing.T) {
	w, full := fullWorld(t, "a", "b")
	w.publishNow("1", "2", "3", "4", "5", "6", "7", "8")
	w.registerFor("c", queue.GroupOptions{Expiry: time.Millisecond})
	w.publishNow("9")
	w.publish(in("pending", time.Millisecond), in("later", time.Hour))
	w.die("b", 1)
	a, b := w.sub("a"), w.sub("b")
	held1 := held(a.claim(4))
	lost := held(b.claim(1, lease(time.Millisecond)))
	w.suspect("b", 1, "2")
	w.pass(3 * time.Millisecond)
	w.removeUnused("c") // its end is put off
	w.respiteOver("c")
	full()

	// Promotion of what is due, the scheduling lease, expiry, retention.
	turn := w.promote("s|1")
	require.Equal(t, queue.Holder, turn.Role)
	require.True(t, turn.Expired)
	require.Equal(t, queue.Standby, w.promote("s|2").Role)
	require.Equal(t, []string{"later"}, w.pending())
	require.False(t, w.expire())
	require.Equal(t, []string{"2", "3", "4", "5", "6", "7", "8", "9", "pending"}, w.ready("b"))
	require.Equal(t, "0 d -", w.field(w.keys.Deliveries("b"), "2"))
	require.Equal(t, "2 - "+lost[0].Token, w.suspected("b", "2"))
	require.Zero(t, b.release(lost...))
	require.Equal(t, "1 - -", w.suspected("b", "2"))
	w.shiftDead("b", time.Hour)
	require.True(t, w.promote("s|1").Purge)
	require.False(t, w.purge())
	require.Empty(t, w.dead("b"))
	w.do(w.topic.ResignCall("s|1"))
	require.Equal(t, queue.Holder, w.promote("s|2").Role)

	// The end of a group.
	require.Equal(t, []string{"c"}, w.promote("s|2").Unused)
	w.removeUnused("c")

	// Claims, settling, extension.
	w.do(a.group.ExtendCalls(held1, 2*time.Hour)...)
	require.Equal(t, 1, a.ack(held1[0]))
	require.Equal(t, 3, a.nack(failed(held1[1]), failed(held1[2], after(time.Millisecond)), failed(held1[3], dead)))
	require.Equal(t, []string{"2", "5", "6", "7", "8", "9", "pending"}, w.ready("a"))
	claimed := a.claim(2)
	require.Equal(t, []string{"2", "5"}, bodies(claimed))
	require.Equal(t, 2, a.release(held(claimed)...))
	w.pass(3 * time.Millisecond)
	w.promote("s|2")
	require.Equal(t, []string{"2", "5", "6", "7", "8", "9", "pending", "3"}, w.ready("a"))
	for _, s := range []*sub{a, b} {
		for {
			claimed := s.claim(100, idle(100, "channel|1"))
			if len(claimed.Messages) == 0 {
				require.True(t, claimed.Waits)
				break
			}
			require.Equal(t, len(claimed.Messages), s.ack(held(claimed)...))
		}
	}
	a.claim(0, idle(0, "channel|1"))
	require.Empty(t, w.waiters("a"))
	require.Equal(t, []string{"4", "later"}, w.stored())
	queuetest.Check(t, w.Client, w.Prefix)
}

// shiftDead moves the deaths of a group's messages back, which a full server allows.
func (w *world) shiftDead(group string, d time.Duration) {
	w.t.Helper()
	for _, id := range w.Client.ZRange(ctx, w.keys.Dead(group), 0, -1).Val() {
		const script = "redis.call('ZREM', KEYS[1], '') return redis.call('ZINCRBY', KEYS[1], ARGV[1], ARGV[2])"
		require.NoError(w.t, w.Client.Eval(ctx, script, []string{w.keys.Dead(group)}, -d.Milliseconds(), id).Err())
	}
}
