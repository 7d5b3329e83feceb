package queue_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// A topic that a scheduler, or a publisher that has not published, has opened may still become one
// with a stream.
func TestTopicWithoutGroupsAndMessagesBecomesOneWithAStream(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		scheduler := w.topic
		groups, err := scheduler.Groups(ctx)
		require.NoError(t, err)
		require.False(t, groups.Stream)
		w.retarget("topic", kept)
		require.NoError(t, only(w.topic.Groups(ctx)))

		call := scheduler.PromoteCall(groups, "s|1", time.Minute, true)
		w.do(call)
		_, stale, err := scheduler.ReadTurn(call, groups)
		require.NoError(t, err)
		require.True(t, stale)
		groups, err = scheduler.Groups(ctx)
		require.NoError(t, err)
		require.True(t, groups.Stream)
		require.Equal(t, []string{queue.StreamGroup}, groups.Names)
	})
}

// Nobody who takes a topic for what it is not reads or writes anything of it.
func TestTopicIsOfOneMode(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		ordinary := topicOf(w.Client, w.Prefix, "topic")
		require.NoError(t, only(ordinary.Groups(ctx))) // before it has a stream
		w.retarget("topic", kept)
		require.NoError(t, only(w.topic.Groups(ctx)))
		w.unchanged(func() {
			for range 2 {
				require.ErrorIs(t, ordinary.Publish(ctx, "P", 1, w.make(now("x"))), queue.ErrTopicMode)
				require.ErrorIs(t, ordinary.Register(ctx, "a", standard), queue.ErrTopicMode)
			}
			require.ErrorIs(t, w.topic.Remove(ctx, queue.StreamGroup), queue.ErrTopicMode)
			require.False(t, must(w.topic.RemoveIdle(ctx, queue.StreamGroup, 0)))
		})

		removing := func(w *world) { // what DeleteTopic leaves when it is cut short
			w.register("a")
			w.Client.Del(ctx, w.keys.Groups())
			w.Client.ZAdd(ctx, w.keys.Idle(), redis.Z{Score: 0, Member: "a"})
		}
		for name, fill := range map[string]func(*world){
			"while a group is removed": removing,
			"with a group":             func(w *world) { w.register("a") },
			"with a message":           func(w *world) { w.publish(in("x", time.Hour)) },
			"with both":                func(w *world) { w.register("a"); w.publish(in("x", time.Hour)) },
			"with one, ready":          func(w *world) { w.register("a"); w.publishNow("x") },
		} {
			w := newWorld(t, w.Server, name)
			fill(w)
			w.unchanged(func() {
				stream := streamTopicOf(w.Client, w.Prefix, name, kept)
				for range 2 {
					require.ErrorIs(t, stream.Publish(ctx, "P", 1, w.makeEntries(now("y"))), queue.ErrTopicMode)
				}
			})
		}
	})
}

// The rest of a group whose removal was cut short is removed, though the topic now has a stream.
func TestRemovalOfAGroupIsFinishedInATopicWithAStream(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.Client.ZAdd(ctx, w.keys.Idle(), redis.Z{Score: 0, Member: "a"})
		w.Client.RPush(ctx, w.keys.Ready("a"), "01M8589MREWYC235B765VXAWYJ:1")
		require.Empty(t, must(w.topic.RemoveUnused(ctx, "a")))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Idle(), w.keys.Ready("a")).Val())
	})
}

// A program of before there were streams knows one layout, and says so.
func TestOlderProgramsKeepAwayFromATopicWithAStream(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		require.Equal(t, "2 stream", w.raw(w.keys.Meta(), "layout"))
		require.NotEqual(t, queue.Layout, queue.StreamLayout)
	})
}

func TestOptionsOfAStreamAreThoseOfTheLastPublisherThatOpenedIt(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		version := w.raw(w.keys.Meta(), "groups")
		w.unchanged(func() {
			require.NoError(t, only(streamTopicOf(w.Client, w.Prefix, w.topic.Name, kept).Groups(ctx)))
		})
		other := queue.StreamOptions{MaxLen: 7, Retention: 2 * time.Hour}
		require.NoError(t, only(streamTopicOf(w.Client, w.Prefix, w.topic.Name, other).Groups(ctx)))
		require.Equal(t, "7", w.raw(w.keys.Meta(), "maxlen"))
		require.Equal(t, "-1 7200000 -1", w.raw(w.keys.Groups(), queue.StreamGroup))
		require.Equal(t, version, w.raw(w.keys.Meta(), "groups"), "the set is the same")
	})
}

func TestNamesOfStreams(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"%", "a{", "}b", "{a}", "100%"} {
		require.ErrorContains(t, queue.CheckStreamTopic("prefix", topic), "none of")
	}
	require.ErrorContains(t, queue.CheckStreamTopic("prefix", "prefix:topics"), "the registry")
	for _, topic := range []string{"a", "topics", "other:topics", "a.b-c:d", "ünïcode topic", "a b"} {
		require.NoError(t, queue.CheckStreamTopic("prefix", topic))
		require.Equal(t, slotOf(topic), slotOf(queue.NewKeys("prefix", topic).Meta()))
	}
}
