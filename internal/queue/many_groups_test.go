package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// With Broadcast every subscription has a group. Redis's Lua passes 7,999 texts to one command at
// most; the embedded one has another limit.
func TestTopicWithMoreGroupsThanLuaCanPassToOneCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"}, "topic", "a")
	fields := []any{}
	for _, g := range names("%05d", 0, 8000) {
		fields = append(fields, g, "5 1 -1")
	}
	require.NoError(t, w.Client.HSet(ctx, w.keys.Groups(), fields...).Err())
	w.topic = topicOf(w.Client, w.Prefix, "topic")

	w.publish(in("x", time.Second/4))
	w.pass(time.Second / 4)
	w.promote("scheduler|1")
	for _, g := range []string{"a", "00000", "07999"} {
		require.Equal(t, []string{"x"}, w.ready(g))
	}
	s := w.sub("07999")
	require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], dead)))
	w.pass(2 * time.Millisecond)
	require.True(t, w.promote("scheduler|1").Purge, "by the retention of the last group")
	w.purge()
	require.Empty(t, w.dead("07999"))
	w.expire()
	require.NoError(t, only(w.topic.Stats(ctx)))
	require.NoError(t, w.topic.Erase(ctx))
	queuetest.Check(t, w.Client, w.Prefix)
}
