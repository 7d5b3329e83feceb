package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMessageThatCannotBecomeAnEntryIsDead(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		for i, body := range []string{"", "no entry", "1 x", "1 2", "-1 0 x", "2 3 abc", "9 9 x", " 1 1 ab"} {
			m := w.make(in(fmt.Sprint(i), time.Minute))
			m[0].Body = []byte(body)
			w.calls++
			require.NoError(t, w.topic.Publish(ctx, "PUBLISHER", w.calls, m))
			m[0].Due = queue.Due{}
			w.calls++
			w.unchanged(func() {
				require.ErrorContains(t, w.topic.Publish(ctx, "PUBLISHER", w.calls, m), "not in the form of a stream entry")
			})
		}
		w.send(in("x", time.Minute))
		w.travel(2 * time.Minute)
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.entries(), "it holds up none")
		require.Len(t, w.dead(queue.StreamGroup), 8)
	})
}

func TestMessageWithoutABodyIsForgottenAndTold(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("x", time.Minute), in("y", time.Minute))
		require.NoError(t, w.Client.HDel(ctx, w.keys.Messages(), w.id["x"]).Err())
		w.travel(2 * time.Minute)
		require.Equal(t, 1, w.promote("s|1").Lost)
		require.Equal(t, []string{"y"}, w.entries())
		require.Zero(t, w.promote("s|1").Lost)
	})
}

// The last ID that a stream may have.
const lastID = "18446744073709551615-18446744073709551615"

func TestMessagesAreNotPublishedIfTheStreamHasNoIDsLeft(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) { // the embedded server's IDs end elsewhere
		w := newWorld(t, s, "topic").streaming(kept)
		require.NoError(t, w.Client.XAdd(ctx, &redis.XAddArgs{Stream: w.topic.Name, ID: lastID[:len(lastID)-1] + "3", Values: []string{"the", "first"}}).Err())
		w.unchanged(func() {
			require.ErrorContains(t, w.trySend(now("1"), in("2", time.Hour), now("3"), now("4")), "exhausted the last possible ID")
			require.ErrorContains(t, w.trySend(now("5")), "exhausted the last possible ID")
		})
		w.send(in("6", time.Hour))
	})
}

func TestDueMessagesWaitIfTheStreamHasNoIDsLeft(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic").streaming(kept)
		require.NoError(t, w.Client.XAdd(ctx, &redis.XAddArgs{Stream: w.topic.Name, ID: lastID[:len(lastID)-1] + "3", Values: []string{"the", "first"}}).Err())
		w.send(in("1", time.Minute), in("2", time.Minute), in("3", time.Minute))
		w.travel(2 * time.Minute)
		require.Zero(t, w.promote("s|1").Wait)
		require.EqualValues(t, 3, w.Client.XLen(ctx, w.topic.Name).Val())
		require.Equal(t, []string{"3"}, w.pending(), "two IDs were left")
		w.unchanged(func() {
			groups := must(w.topic.Groups(ctx))
			require.ErrorContains(t, do(ctx, w.Client, w.topic.PromoteCall(groups, "s|1", time.Minute, true)), "exhausted the last possible ID")
		})
		queuetest.Check(t, s.Client, s.Prefix)
		require.NoError(t, w.Client.Del(ctx, w.topic.Name).Err())
		w.promote("s|1")
		require.Equal(t, []string{"3"}, w.entries())
	})
}

func TestAFullServerRefusesNewMessagesAndMovesDueOnes(t *testing.T) {
	w, full := fullWorld(t)
	w.streaming(kept)
	w.send(now("0"), in("1", time.Millisecond), in("2", time.Millisecond).with(queue.Options{Expiry: queue.Expiry{Lateness: time.Nanosecond, Dead: true}}))
	w.pass(5 * time.Millisecond)
	fresh := streamTopicOf(w.Client, w.Prefix, "fresh", kept)
	full()
	w.unchanged(func() {
		for _, messages := range [][]message{{now("x")}, {in("x", time.Hour)}, {now("x"), in("y", time.Hour)}} {
			require.ErrorIs(t, w.topic.Publish(ctx, "P", 1, w.makeEntries(messages...)), refusal.ErrServerFull)
		}
		require.ErrorIs(t, only(fresh.Groups(ctx)), refusal.ErrServerFull)
		require.NoError(t, only(streamTopicOf(w.Client, w.Prefix, w.topic.Name, kept).Groups(ctx)))
	})
	require.Equal(t, queue.Holder, w.promote("s|1").Role)
	require.Equal(t, []string{"0", "1"}, w.entries())
	require.Equal(t, []string{"2"}, w.dead(queue.StreamGroup))
	require.NoError(t, only(streamTopicOf(w.Client, w.Prefix, w.topic.Name, queue.StreamOptions{MaxLen: 5}).Groups(ctx)))
	queuetest.Check(t, w.Client, w.Prefix)
}
