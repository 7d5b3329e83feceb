package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Lua compares texts by the locale that the server was started in, and Redis sorts by bytes. In
// Danish, AA comes after Z; in Hungarian, CS after CZ.
func TestOrderIsNotThatOfTheServersLocale(t *testing.T) {
	t.Parallel()
	s := redistest.Server{Client: redistest.StartWithLocale(t).Client(t)}
	in := func(name string, groups []string, test func(t *testing.T, w *world)) {
		t.Run(name, func(t *testing.T) {
			s := s
			s.Prefix = name
			w := newWorld(t, s, "topic", groups...)
			test(t, w)
			if !t.Failed() {
				queuetest.Check(t, s.Client, s.Prefix)
			}
		})
	}
	less, err := s.Client.Eval(ctx, "return '1' < '2' and 1 or 0", nil).Int()
	require.NoError(t, err)
	require.Zero(t, less, "the server has the locale")

	in("more is due at once than one call moves", []string{"a", "b"}, func(t *testing.T, w *world) {
		due := w.now() + time.Minute.Milliseconds()
		var messages []message
		all := names("%04d", 0, 2*queue.Budget)
		for _, name := range all {
			messages = append(messages, at(name, due))
		}
		w.publish(messages...)
		w.travel(time.Minute)
		for range 2 * len(all) / queue.Budget {
			w.promote("scheduler|1")
		}
		sameOrder(t, all, w.ready("a"))
	})
	in("retries and others", []string{"a"}, func(t *testing.T, w *world) {
		due := w.now() + time.Minute.Milliseconds()
		messages := w.make(at("0", due), now("1"), at("2", due), now("3"))
		w.calls++
		require.NoError(t, w.topic.Publish(ctx, "PUBLISHER", w.calls, messages))
		sub := w.sub("a")
		until := func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(due)) }
		for _, m := range held(sub.claim(9)) {
			require.Equal(t, 1, sub.nack(failed(m, until)))
		}
		w.travel(time.Minute)
		w.promote("scheduler|1")
		require.Equal(t, []string{"0", "1", "2", "3"}, w.ready("a"))
	})
	in("into a stream", nil, func(t *testing.T, w *world) {
		w.streaming(kept)
		w.send(at("0", w.now()+time.Minute.Milliseconds()), at("1", w.now()+time.Minute.Milliseconds()))
		w.Client.ZAdd(ctx, w.keys.Retry("stream"), w.Client.ZRangeWithScores(ctx, w.keys.Pending(), 1, 1).Val()...)
		w.Client.ZRemRangeByRank(ctx, w.keys.Pending(), 1, 1)
		w.travel(time.Minute)
		w.promote("scheduler|1")
		require.Equal(t, []string{"0", "1"}, w.entries())
	})
	in("pages", nil, func(t *testing.T, w *world) {
		due := w.now() + time.Hour.Milliseconds()
		w.publish(at("0", due), at("1", due), at("2", due), at("3", due), at("4", due))
		var found []string
		for cursor, more := "", true; more; more = cursor != "" && len(found) < 9 {
			page, err := w.topic.List(ctx, "", operate.Waiting, cursor, 2, 1<<20)
			require.NoError(t, err)
			for _, m := range page.Messages {
				found = append(found, w.name[m.ID])
			}
			cursor = page.Next
		}
		require.Equal(t, []string{"0", "1", "2", "3", "4"}, found)
	})
}
