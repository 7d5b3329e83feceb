package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// streaming makes the world's topic one with a stream, which has a name of its own on a server that others use.
func (w *world) streaming(options queue.StreamOptions) *world {
	w.t.Helper()
	w.retarget(w.Prefix+"-"+w.topic.Name, options)
	_, err := w.topic.Groups(ctx)
	require.NoError(w.t, err)
	return w
}

// retarget has the world use another topic, one with a stream.
func (w *world) retarget(topic string, options queue.StreamOptions) {
	w.topic = queue.NewStreamTopic(w.Client, w.Prefix, topic, options)
	w.keys = queue.NewKeys(w.Prefix, topic)
}

var kept = queue.StreamOptions{Retention: time.Hour}

// bothStreaming is both for a topic with a stream.
func bothStreaming(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	both(t, func(t *testing.T, w *world) { test(t, w.streaming(kept)) })
}

// entry is the body of a message whose UUID is its name.
func entry(name string) string { return fmt.Sprintf("%d 4 %smeta%s's payload", len(name), name, name) }

// entries are the UUIDs in the stream, in order; each entry has to be whole.
func (w *world) entries() []string {
	w.t.Helper()
	uuids := []string{}
	for _, e := range w.Client.XRange(ctx, w.topic.Name, "-", "+").Val() {
		uuid := e.Values["_watermill_message_uuid"].(string)
		require.Equal(w.t, map[string]any{"_watermill_message_uuid": uuid, "metadata": "meta", "payload": uuid + "'s payload"}, e.Values)
		uuids = append(uuids, uuid)
	}
	return uuids
}

// send publishes messages in one call, with bodies as a stream wants them.
func (w *world) send(messages ...message) {
	w.t.Helper()
	require.NoError(w.t, w.trySend(messages...))
}

func (w *world) trySend(messages ...message) error {
	w.calls++
	return w.topic.Publish(ctx, "PUBLISHER", w.calls, w.makeEntries(messages...))
}

func (w *world) makeEntries(messages ...message) []queue.Message {
	made := w.make(messages...)
	for i := range made {
		made[i].Body = []byte(entry(messages[i].name))
	}
	return made
}

func TestMessagesWithoutDelayGoIntoTheStreamAtOnceInOrder(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(now("1"), now("2"), in("later", time.Hour), now("3"))
		w.send(now("4"))
		require.Equal(t, []string{"1", "2", "3", "4"}, w.entries())
		require.Equal(t, []string{"later"}, w.pending())
		require.EqualValues(t, 1, w.Client.HLen(ctx, w.keys.Messages()).Val(), "what is in the stream is not kept")
	})
}

func TestWhatIsDueGoesIntoTheStreamInOrder(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("c", 3*time.Minute), in("a", time.Minute), in("b1", 2*time.Minute), in("b2", 2*time.Minute), in("later", time.Hour))
		turn := w.promote("s|1")
		require.Equal(t, queue.Holder, turn.Role)
		require.Greater(t, turn.Wait, 50*time.Second)
		require.Empty(t, w.entries(), "none is early")

		w.travel(3 * time.Minute)
		w.send(now("now"), in("due", 0)) // behind what is due
		require.Empty(t, w.entries())
		w.promote("s|1")
		require.Equal(t, []string{"a", "b1", "b2", "c", "now", "due"}, w.entries())
		require.Equal(t, []string{"later"}, w.pending())
		w.promote("s|1")
		require.Len(t, w.entries(), 6, "each once")
	})
}

func TestEntriesComeNotBeforeTheirTime(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		due := w.now() + 20
		w.send(at("x", due))
		for len(w.entries()) == 0 {
			w.promote("s|1")
			w.pass(time.Millisecond)
		}
		id := w.Client.XRange(ctx, w.topic.Name, "-", "+").Val()[0].ID
		ms, _, _ := strings.Cut(id, "-")
		require.GreaterOrEqual(t, ms, fmt.Sprint(due))
	})
}

func TestAStreamIsFilledInSteps(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		many := make([]message, 0, 1100)
		for _, name := range names("m%04d", 0, 1100) {
			many = append(many, in(name, time.Minute))
		}
		w.send(many...)
		w.travel(time.Minute + time.Second)
		require.Zero(t, w.promote("s|1").Wait)
		require.Len(t, w.entries(), 500)
		w.promote("s|1")
		require.Negative(t, w.promote("s|1").Wait)
		require.Equal(t, names("m%04d", 0, 1100), w.entries())
	})
}

func TestAStreamIsCutAtItsLength(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.streaming(queue.StreamOptions{MaxLen: 100, Retention: time.Hour})
		for range 10 {
			var messages []message
			for _, name := range names("m%d", 0, 100) {
				messages = append(messages, now(name), in("late "+name, time.Millisecond))
			}
			w.send(messages...)
			w.pass(2 * time.Millisecond)
			w.promote("s|1")
		}
		n := w.Client.XLen(ctx, w.topic.Name).Val()
		require.GreaterOrEqual(t, n, int64(100))
		require.Less(t, n, int64(400), "of 2,000; the server cuts whole nodes of 100")
		require.Equal(t, "late m99", w.entries()[n-1])
	})
}

var _ = redis.Nil
