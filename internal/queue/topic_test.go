package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Open.

func TestFirstUsePreparesTheTopic(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.Empty(t, w.dump())
		groups, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.Empty(t, groups.Names)
		require.NotEmpty(t, groups.Version)
		require.Equal(t, map[string]string{"layout": queue.Layout, "groups": groups.Version},
			w.Client.HGetAll(ctx, w.keys.Meta()).Val())
		require.Equal(t, []string{"topic"}, w.Client.SMembers(ctx, queue.Registry(w.Prefix)).Val())
		require.Len(t, w.dump(), 2)
	})
}

func TestGroupsAreReadOnceAndThenKept(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.record()
		topic := topicOf(w.Client, w.Prefix, "topic")
		first, err := topic.Groups(ctx)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a", "b"}, first.Names)
		again, err := topic.Groups(ctx)
		require.NoError(t, err)
		require.Same(t, first, again)
		require.Len(t, r.take(), 1)
	}, "a", "b")
}

func TestOpeningTwiceOnlyReads(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		topic := topicOf(w.Client, w.Prefix, "topic")
		r := w.record()
		first, err := topic.Groups(ctx)
		require.NoError(t, err)
		calls := r.take()
		w.unchanged(func() {
			reply, err := w.Client.Do(ctx, calls[0]...).StringSlice()
			require.NoError(t, err)
			require.Equal(t, append([]string{queue.Layout, first.Version}, first.Names...), reply)
			other, err := topicOf(w.Client, w.Prefix, "topic").Groups(ctx)
			require.NoError(t, err)
			require.Equal(t, first, other)
		})
	}, "a")
}

func TestTopicOfAnotherLayoutIsLeftAlone(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.NoError(t, w.Client.HSet(ctx, w.keys.Meta(), "layout", "0").Err())
		w.unchanged(func() {
			topic := topicOf(w.Client, w.Prefix, "topic")
			_, err := topic.Groups(ctx)
			require.ErrorIs(t, err, queue.ErrLayout)
			require.ErrorContains(t, err, `"0"`)
			require.ErrorIs(t, topic.Register(ctx, "a", standard), queue.ErrLayout)
			require.ErrorIs(t, topic.Register(ctx, "b", standard), queue.ErrLayout)
			require.ErrorIs(t, topic.Publish(ctx, "P", 1, w.make(now("y"))), queue.ErrLayout)
			_, err = topic.Expire(ctx)
			require.ErrorIs(t, err, queue.ErrLayout)
		})

		require.NoError(t, w.Client.HDel(ctx, w.keys.Meta(), "groups").Err())
		_, err := topicOf(w.Client, w.Prefix, "topic").Groups(ctx)
		require.ErrorIs(t, err, queue.ErrLayout)
		require.Equal(t, "0", w.Client.HGet(ctx, w.keys.Meta(), "layout").Val())
		require.NoError(t, w.Client.HSet(ctx, w.keys.Meta(), "layout", queue.Layout).Err())
	}, "a")
}

func TestTopicThatLostItsMetaIsPreparedAgain(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.NoError(t, w.Client.Del(ctx, w.keys.Meta()).Err())
		w.publishNow("y")
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
	}, "a")
}

// Register.

func TestRegisteredGroupIsThere(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		first, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, first.Names)
		require.Equal(t, map[string]string{"a": "5 3600000 -1"}, w.Client.HGetAll(ctx, w.keys.Groups()).Val())

		w.register("b: {*}")
		second, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a", "b: {*}"}, second.Names)
		require.NotEqual(t, first.Version, second.Version)
		require.Equal(t, second.Version, w.Client.HGet(ctx, w.keys.Meta(), "groups").Val())
	})
}

func TestRegisteringTwiceChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		r := w.record()
		w.register("a")
		w.register("b")
		calls := r.take()
		w.unchanged(func() {
			w.register("a")
			require.NoError(t, topicOf(w.Client, w.Prefix, "topic").Register(ctx, "b", standard))
			for _, call := range calls {
				require.NoError(t, w.Client.Do(ctx, call...).Err())
			}
		})
	})
}

func TestRegisteringAgainRenewsTheOptions(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		before, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		for options, want := range map[queue.GroupOptions]string{
			{MaxDeliveries: 7, Retention: time.Minute}:             "7 60000 -1",
			{MaxDeliveries: -3, Retention: -time.Hour}:             "-1 -1 -1",
			{MaxDeliveries: 1, Retention: time.Nanosecond}:         "1 1 -1",
			{MaxDeliveries: 1, Retention: 0}:                       "1 0 -1",
			{MaxDeliveries: 1, Retention: 2500 * time.Microsecond}: "1 3 -1",
			{MaxDeliveries: 1, Retention: -1, MaxDead: 9}:          "1 -1 9",
			{MaxDeliveries: 1, Retention: -1, MaxDead: -9}:         "1 -1 -1",
		} {
			require.NoError(t, w.topic.Register(ctx, "a", options))
			require.Equal(t, want, w.Client.HGet(ctx, w.keys.Groups(), "a").Val())
		}
		after, err := w.topic.Groups(ctx)
		require.NoError(t, err)
		require.Equal(t, before, after, "the set is the same")
	}, "a")
}

func TestShorterRetentionIsActedOnAtOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x")
		w.die("a", 1)
		w.promote(inbox.address("holder"))
		w.pass(5 * time.Millisecond)
		require.NoError(t, w.topic.Register(ctx, "a", queue.GroupOptions{MaxDeliveries: 5, Retention: time.Millisecond}))
		told := inbox.received()
		require.Len(t, told, 1)
		require.LessOrEqual(t, wait(t, told[0], "holder"), 0.0)
		require.True(t, w.promote(inbox.address("holder")).Purge)
	}, "a")
}

func TestFirstGroupWakesTheScheduler(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publish(in("x", time.Hour))
		require.Equal(t, time.Duration(-1), w.promote(inbox.address("holder")).Wait)
		w.promote(inbox.address("standby"))
		w.register("a")
		told := inbox.received()
		require.Len(t, told, 2)
		require.InDelta(t, 3600_000, wait(t, told[0], "holder"), 60_000)
		require.InDelta(t, 3601_000, wait(t, told[1], "standby"), 60_000)
		require.Equal(t, int64(w.score(w.keys.Pending(), "x")), w.next())
		w.register("b")
		require.Empty(t, inbox.received())
	})
}

func TestFirstGroupOfOverdueMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("x")
		w.promote(inbox.address("holder"))
		w.pass(3 * time.Millisecond)
		w.register("a")
		told := inbox.received()
		require.Len(t, told, 1)
		require.LessOrEqual(t, wait(t, told[0], "holder"), -3.0)
		w.promote(inbox.address("holder"))
		require.Equal(t, []string{"x"}, w.ready("a"))
	})
}

func TestGroupGetsMessagesThatBecomeDueAfterItExists(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("before"), in("later", 10*time.Millisecond))
		w.register("b")
		w.passUntil(int64(w.score(w.keys.Pending(), "later")))
		w.promote("scheduler|1")
		require.Equal(t, []string{"before", "later"}, w.ready("a"))
		require.Equal(t, []string{"later"}, w.ready("b"))
	}, "a")
}

func TestEmptyGroupNameIsAGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("")
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
	}, "")
}

func TestChangingGroupsUnderConcurrentPublishes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const publishers, calls, groups = 4, 25, 8
		done := make(chan error, publishers+1)
		for p := range publishers {
			go func() {
				topic, ids := topicOf(w.Client, w.Prefix, "topic"), queue.NewIDs()
				for n := range calls {
					id, err := ids.Next(time.Now())
					if err == nil {
						err = topic.Publish(ctx, fmt.Sprint("P", p), uint64(n+1), []queue.Message{{ID: id, Body: []byte(id)}})
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		go func() {
			topic := topicOf(w.Client, w.Prefix, "topic")
			for g := range groups {
				if err := topic.Register(ctx, fmt.Sprint("g", g), standard); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for range publishers + 1 {
			require.NoError(t, <-done)
		}
		w.promoteAll()
		require.Len(t, w.ready("a"), publishers*calls)
	}, "a")
}

// Registry.

func TestTopicIsAnnouncedWhenItIsNew(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := &inbox{w: w, channel: queue.NewTopics(w.Prefix, 0)}
		inbox.pubsub = w.Client.Subscribe(ctx, inbox.channel)
		defer inbox.pubsub.Close()
		_, err := inbox.pubsub.Receive(ctx)
		require.NoError(t, err)

		w.register("a")
		require.Equal(t, []string{"topic"}, inbox.received())
		w.register("a")
		_, err = topicOf(w.Client, w.Prefix, "topic").Groups(ctx)
		require.NoError(t, err)
		require.Empty(t, inbox.received())
	})
}

func TestTopicsListsTheRegistry(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		list := func() []string {
			var found []string
			require.NoError(t, queue.Topics(ctx, servers.MustClient(s.Client), s.Prefix, func(topic string) { found = append(found, topic) }))
			slices.Sort(found)
			return slices.Compact(found)
		}
		require.Empty(t, list())
		want := append(names("topic %04d", 0, 3000), "{a}:%")
		for _, name := range want[2995:] {
			_, err := topicOf(s.Client, s.Prefix, name).Groups(ctx)
			require.NoError(t, err)
		}
		for part := range slices.Chunk(want[:2995], 1000) {
			require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), toAny(part)...).Err())
		}
		slices.Sort(want)
		sameOrder(t, want, list())
	})
}

func toAny[T any](s []T) (a []any) {
	for _, v := range s {
		a = append(a, v)
	}
	return a
}

func TestNothingIsDoneForATopicThatCannotBeRegistered(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		require.NoError(t, s.Client.Set(ctx, queue.Registry(s.Prefix), "not a set", 0).Err())
		topic := topicOf(s.Client, s.Prefix, "topic")
		_, err := topic.Groups(ctx)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorContains(t, topic.Register(ctx, "a", standard), "WRONGTYPE")
		require.ErrorContains(t, topic.Publish(ctx, "P", 1, nil), "WRONGTYPE")
		require.Error(t, queue.Topics(ctx, servers.MustClient(s.Client), s.Prefix, func(string) {}))
		keys, err := s.Client.Keys(ctx, s.Prefix+"*").Result()
		require.NoError(t, err)
		require.Equal(t, []string{queue.Registry(s.Prefix)}, keys)
	})
}

func TestEndedContextEndsCalls(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := topicOf(w.Client, w.Prefix, "topic").Groups(ended)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, w.topic.Register(ended, "a", standard), context.Canceled)
		require.ErrorIs(t, w.topic.Publish(ended, "P", 1, w.make(now("x"))), context.Canceled)
		_, _, err = w.topic.Purge(ended)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, w.stored())
	}, "a")
}

// Check.

func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "redisdelay", "a:b", "%"} {
		require.NoError(t, queue.CheckPrefix(prefix))
	}
	for _, prefix := range []string{"{", "}", "a{b}c"} {
		require.ErrorContains(t, queue.CheckPrefix(prefix), "brace")
	}
}

func TestCheckTopic(t *testing.T) {
	t.Parallel()
	require.NoError(t, queue.CheckTopic("topic"))
	require.NoError(t, queue.CheckTopic(strings.Repeat("x", queue.MaxNameLength)))
	require.Error(t, queue.CheckTopic(""), "its keys would have no hash tag")
	require.Error(t, queue.CheckTopic(strings.Repeat("x", queue.MaxNameLength+1)))
}

func TestUnreachable(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.False(t, servers.Unreachable(nil))
		for _, err := range []error{refusal.ErrForbidden, queue.ErrLayout, queue.ErrTopicMode} {
			require.False(t, servers.Unreachable(fmt.Errorf("topic: %w", err)), "the server has answered")
		}
		require.False(t, servers.Unreachable(w.Client.Do(ctx, "NOT A COMMAND").Err()))
		closed := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		defer closed.Close()
		require.True(t, servers.Unreachable(closed.Ping(ctx).Err()))
		require.True(t, servers.Unreachable(context.DeadlineExceeded))
		for _, said := range []string{"MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "TRYAGAIN x", "CLUSTERDOWN x", "READONLY x"} {
			err := w.Client.Eval(ctx, "return redis.error_reply(ARGV[1])", nil, said).Err()
			require.Error(t, err)
			require.True(t, servers.Unreachable(err), said)
		}
	}, "a")
}
