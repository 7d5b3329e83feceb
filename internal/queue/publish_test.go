package queue_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

func TestPublishedMessageIsReadyAtOnceInEveryGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		before := w.now()
		w.publishNow("x", "y")
		after := w.now()
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		require.Equal(t, []string{"x", "y"}, w.ready("b"))
		require.Empty(t, w.pending())
		require.Equal(t, []string{"x", "y"}, w.stored())
		require.Equal(t, "2", w.field(w.keys.Refs(), "x"))

		for _, m := range w.sub("a").claim(2).Messages {
			require.GreaterOrEqual(t, m.Due.UnixMilli(), before)
			require.LessOrEqual(t, m.Due.UnixMilli(), after)
		}
	}, "a", "b")
}

func TestOnlyMessagesOfSeveralGroupsHaveRefs(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.Empty(t, w.field(w.keys.Refs(), "x"))
	}, "a")
}

func TestPublishedMessageWithDelayIsPending(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		before := w.now()
		w.publish(in("x", time.Hour), now("y"))
		after := w.now()
		require.Equal(t, []string{"x"}, w.pending())
		require.Equal(t, []string{"y"}, w.ready("a"))
		due := int64(w.score(w.keys.Pending(), "x"))
		require.GreaterOrEqual(t, due, before+time.Hour.Milliseconds())
		require.LessOrEqual(t, due, after+1+time.Hour.Milliseconds())
		require.Equal(t, due, w.next())
	}, "a")
}

func TestDueTimeIsRoundedUpToTheMillisecond(t *testing.T) {
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		clock time.Duration // after the start
		due   queue.Due
		want  time.Duration // after the start
	}{
		{0, queue.In(time.Millisecond), time.Millisecond},
		{0, queue.In(time.Nanosecond), time.Millisecond},
		{0, queue.In(time.Millisecond + time.Nanosecond), 2 * time.Millisecond},
		{time.Microsecond, queue.In(time.Millisecond), 2 * time.Millisecond},
		{999 * time.Microsecond, queue.In(time.Millisecond), 2 * time.Millisecond},
		{0, queue.At(start.Add(time.Second)), time.Second},
		{999 * time.Microsecond, queue.At(start.Add(time.Second + time.Nanosecond)), time.Second + time.Millisecond},
		{0, queue.At(start.Add(100 * 365 * 24 * time.Hour)), 100 * 365 * 24 * time.Hour},
	} {
		t.Run(fmt.Sprint(c.clock, c.due), func(t *testing.T) {
			t.Parallel()
			mini, client := redistest.Embedded(t)
			w := newWorld(t, redistest.Server{Client: client, Prefix: "p", Mini: mini}, "topic", "a")
			mini.SetTime(start.Add(c.clock))
			w.publish(message{name: "x", due: c.due})
			require.Equal(t, start.Add(c.want).UnixMilli(), int64(w.score(w.keys.Pending(), "x")))
		})
	}
}

func TestDueInThePastIsNow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		before := w.now()
		w.publish(at("x", before-5000), at("y", 0), message{name: "z", due: queue.In(-time.Hour)},
			message{name: "zero", due: queue.At(time.Time{})})
		require.Equal(t, []string{"x", "y", "z", "zero"}, w.ready("a"))
		for _, m := range w.sub("a").claim(4).Messages {
			require.GreaterOrEqual(t, m.Due.UnixMilli(), before)
		}
	}, "a")
}

func TestMessageDueNowIsReadyEvenBesideDelayedOnes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		past, future := w.now()-1000, w.now()+time.Hour.Milliseconds()
		for i, later := range []message{in("later", time.Hour), at("later", future)} {
			for j, due := range []message{now("due"), at("due", past)} {
				for k, together := range [][]message{{due, later}, {later, due}, {later, due, later}} {
					for m := range together {
						together[m].name += fmt.Sprint(i, j, k, m)
					}
					before := len(w.ready("a"))
					w.publish(together...)
					require.Len(t, w.ready("a"), before+1, "%+v", together)
				}
			}
		}
		require.Len(t, w.pending(), 16)
	}, "a")
}

func TestDelayedMessageIsInNoGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		foreign := []string{w.keys.Ready("b"), w.keys.Retry("b"), w.keys.Waiters("b"), w.keys.Refs()}
		for _, key := range foreign {
			require.NoError(t, w.Client.Set(ctx, key, "of another type", 0).Err())
		}
		w.publish(in("x", time.Hour), at("y", w.now()+time.Minute.Milliseconds()))
		require.Equal(t, []string{"y", "x"}, w.pending())
		require.ErrorContains(t, w.topic.Publish(ctx, "P", 1, w.make(now("z"))), "WRONGTYPE")
		require.NotContains(t, w.stored(), "z")
		require.NoError(t, w.Client.Del(ctx, foreign...).Err())
	}, "a", "b")
}

func TestMessagesWaitForAFirstGroupInPending(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("x"), in("y", time.Hour))
		require.Equal(t, []string{"x", "y"}, w.pending())
		require.Zero(t, w.next(), "nobody is kept awake")
		turn := w.promote("scheduler|1")
		require.Equal(t, queue.Turn{Role: queue.Holder, Wait: -1}, turn)
		require.Equal(t, []string{"x", "y"}, w.pending())

		w.register("a")
		require.Equal(t, int64(w.score(w.keys.Pending(), "x")), w.next())
		w.promote("scheduler|1")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Equal(t, []string{"y"}, w.pending())
	})
}

func TestOptionsAreStoredOnlyForMessagesThatHaveThem(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 3}), now("y").with(queue.Options{MaxDeliveries: -7}),
			in("z", time.Hour).with(queue.Options{MaxDeliveries: 1}), now("plain"))
		require.Equal(t, "max_deliveries:3", w.field(w.keys.Options(), "x"))
		require.Equal(t, "max_deliveries:-1", w.field(w.keys.Options(), "y"))
		require.Equal(t, "max_deliveries:1", w.field(w.keys.Options(), "z"))
		require.EqualValues(t, 3, w.Client.HLen(ctx, w.keys.Options()).Val())
	}, "a")
}

func TestRepeatedPublishChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		messages := w.make(now("x"), in("y", time.Hour).with(queue.Options{MaxDeliveries: 3}))
		publish := func(number uint64) {
			require.NoError(t, w.topic.Publish(ctx, "P", number, messages))
		}
		publish(7)
		w.unchanged(func() { publish(7) })
		w.unchanged(func() { publish(6) })

		a, b := w.sub("a"), w.sub("b")
		require.Equal(t, 1, a.ack(held(a.claim(1))...))
		require.Equal(t, 1, b.ack(held(b.claim(1))...))
		w.unchanged(func() { publish(7) })

		w.register("c")
		w.unchanged(func() { publish(7) })

		messages = w.make(now("z"))
		publish(8)
		require.Equal(t, []string{"z"}, w.ready("a"))
		require.NoError(t, w.topic.Publish(ctx, "Q", 7, w.make(now("of another publisher"))))
		require.Equal(t, []string{"z", "of another publisher"}, w.ready("a"))
	}, "a", "b")
}

func TestIdenticalPublishCallWritesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.record()
		w.publish(now("x"), in("y", time.Hour))
		calls := r.take()
		require.Len(t, calls, 1)
		w.unchanged(func() { require.Equal(t, "repeated", w.Client.Do(ctx, calls[0]...).Val()) })
		w.register("c")
		w.unchanged(func() {
			require.Equal(t, "repeated", w.Client.Do(ctx, calls[0]...).Val(), "also if the group set has changed")
		})
	}, "a", "b")
}

func TestNumberOfAPublisherIsForgottenAfterAnHour(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		left := w.Client.PTTL(ctx, w.keys.Publisher("PUBLISHER")).Val()
		require.Greater(t, left, queue.Memory-time.Minute)
		require.LessOrEqual(t, left, queue.Memory)
	}, "a")
}

func TestPublishOfNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish()
		require.Empty(t, w.stored())
		require.Empty(t, w.ready("a"))
		require.Zero(t, w.next())
	}, "a")
}

func TestPublishOfMoreThanTenThousandMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const n = 10_100
		due := w.now() + time.Hour.Milliseconds()
		messages := make([]message, 0, 2*n)
		for i := range n {
			messages = append(messages, now(fmt.Sprintf("ready%05d", i)),
				at(fmt.Sprintf("later%05d", i), due+int64(i/10)).with(queue.Options{MaxDeliveries: 2}))
		}
		w.publish(messages...)
		sameOrder(t, names("ready%05d", 0, n), w.ready("a"))
		sameOrder(t, names("ready%05d", 0, n), w.ready("b"))
		sameOrder(t, names("later%05d", 0, n), w.pending())
		require.Len(t, w.stored(), 2*n)
		require.EqualValues(t, n, w.Client.HLen(ctx, w.keys.Options()).Val())
		require.EqualValues(t, n, w.Client.HLen(ctx, w.keys.Refs()).Val())
	}, "a", "b")
}

// One script would keep all others waiting for too long.
func TestPublishOfManyMessagesToManyGroupsIsLeftToTheScheduler(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		const n = 1000
		for i := range 50 {
			require.NoError(t, w.topic.Register(ctx, fmt.Sprint("group ", i), standard))
		}
		w.publishNow(names("%04d", 0, n)...)
		require.Empty(t, w.ready("a"))
		require.Len(t, w.pending(), n)
		for range n {
			if len(w.pending()) == 0 {
				break
			}
			w.promote("scheduler|1")
		}
		for _, g := range []string{"a", "group 0", "group 49"} {
			sameOrder(t, names("%04d", 0, n), w.ready(g))
		}

		w.publishNow(names("b%03d", 0, n-20)...)
		require.Len(t, w.ready("a"), 2*n-20)
	}, "a")
}

func TestPublishGoesToAGroupThatAnotherProcessRegistered(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		other := topicOf(w.Client, w.Prefix, "topic")
		require.NoError(t, other.Register(ctx, "b", standard))
		r := w.record()
		w.publishNow("y")
		require.Len(t, r.take(), 3, "stale, read again, published")
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		require.Equal(t, []string{"y"}, w.ready("b"))
		require.Equal(t, "2", w.field(w.keys.Refs(), "y"))
		w.publishNow("z")
		require.Len(t, r.take(), 1, "the new set is kept")
	}, "a")
}

func TestPublishAfterTheServerLostItsData(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		require.NoError(t, w.Client.FlushAll(ctx).Err())
		w.publishNow("y")
		require.Equal(t, []string{"y"}, w.pending(), "the group is lost, too")
		require.Equal(t, []string{"topic"}, w.Client.SMembers(ctx, queue.Registry(w.Prefix)).Val())
		w.register("a")
		w.promoteAll()
		require.Equal(t, []string{"y"}, w.ready("a"))
	}, "a")
}

func TestDirectPublishQueuesBehindDueMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("older", time.Minute), in("later", time.Hour))
		w.publishNow("before")
		require.Equal(t, []string{"before"}, w.ready("a"))
		w.travel(2 * time.Minute)
		w.publishNow("x")
		require.Equal(t, []string{"before"}, w.ready("a"))
		require.Equal(t, []string{"older", "x", "later"}, w.pending())
		w.publishNow("y")
		w.promoteAll()
		require.Equal(t, []string{"before", "older", "x", "y"}, w.ready("a"))
		require.Equal(t, []string{"before", "older", "x", "y"}, w.ready("b"))
		w.publishNow("z")
		require.Equal(t, []string{"before", "older", "x", "y", "z"}, w.ready("a"))
	}, "a", "b")
}

func TestDirectPublishQueuesBehindARetryOfAnyGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("retried")
		b := w.sub("b")
		require.Equal(t, 1, b.nack(failed(held(b.claim(1))[0], after(5*time.Millisecond))))
		w.passUntil(int64(w.score(w.keys.Retry("b"), "retried")))
		w.publishNow("x")
		require.Equal(t, []string{"x"}, w.pending())
		w.promoteAll()
		require.Equal(t, []string{"retried", "x"}, w.ready("a"))
		require.Equal(t, []string{"retried", "x"}, w.ready("b"))
	}, "a", "b")
}

func TestPublishWakesAsManySubscriptionsAsItHasMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		inbox.wait("a", "1", "2", "3", "4")
		inbox.wait("b", "5")
		w.publish(now("x"), in("y", time.Hour), now("z"))
		require.ElementsMatch(t, []string{"1", "2", "5"}, inbox.received())
		require.Equal(t, []string{inbox.address("3"), inbox.address("4")}, w.waiters("a"))
		require.Empty(t, w.waiters("b"))
	}, "a", "b")
}

func TestPublishWakesAFewSubscriptionsOfAGroupWhichWakeTheOthers(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		inbox.wait("a", names("%d", 0, 70)...)
		w.publishNow(names("%d", 0, 70)...)
		require.Len(t, inbox.received(), 16)
		require.Len(t, w.waiters("a"), 54)
		w.sub("a").claim(1)
		require.Len(t, inbox.received(), 1, "it leaves some")
	}, "a")
}

func TestPublishOfDelayedMessagesTellsHolderAndStandbyOfTheEarliest(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.promote(inbox.address("holder"))
		w.promote(inbox.address("standby"))

		w.publish(in("x", time.Hour), in("earliest", time.Minute), in("y", time.Hour))
		told := inbox.received()
		require.Len(t, told, 2)
		holder := wait(t, told[0], "holder")
		require.InDelta(t, time.Minute.Milliseconds(), holder, 2)
		require.InDelta(t, holder+50, wait(t, told[1], "standby"), 0.0001)
		require.Equal(t, int64(w.score(w.keys.Pending(), "earliest")), w.next())

		w.publish(in("later", 2*time.Minute), now("z"))
		require.Empty(t, inbox.received())

		require.Equal(t, int64(w.score(w.keys.Pending(), "earliest")), w.next())
	}, "a")
}

// wait is what a scheduler is told: how many ms until an event.
func wait(t *testing.T, told, receiver string) float64 {
	t.Helper()
	who, argument, _ := strings.Cut(told, " ")
	require.Equal(t, receiver, who)
	require.Regexp(t, `^-?\d+\.\d{3}$`, argument)
	ms, err := strconv.ParseFloat(argument, 64)
	require.NoError(t, err)
	require.InDelta(t, max(ms, 0), wake.ReadWait(argument).Seconds()*1000, 0.000001)
	return ms
}

// Hooks of the client that print commands, as those for tracing do, would take long for large ones.
func TestBodiesAreNotPrintedWithTheirCommand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.record()
		w.publishNow("a body")
		printed := redis.NewCmd(ctx, r.take()[0]...).String()
		require.Contains(t, printed, "<6 bytes>")
		require.NotContains(t, printed, "body")
	}, "a")
}

func TestBodiesAreKeptAsTheyAre(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		w.publishNow("", string(all), "\r\n", "ü")
		require.Equal(t, []string{"", string(all), "\r\n", "ü"}, bodies(w.sub("a").claim(9)))
	}, "a")
}

func TestDueSaysWhetherItMayBeNow(t *testing.T) {
	t.Parallel()
	require.True(t, queue.Due{}.MayBeNow())
	require.True(t, queue.In(-1).MayBeNow())
	require.True(t, queue.At(time.Now().Add(time.Hour)).MayBeNow(), "clocks differ")
	require.False(t, queue.In(1).MayBeNow())
}

// Redis searches a small hash of short values from end to end, for each of its messages again.
func TestHashesOfShortValuesAreTables(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a", "b")
		keys := []string{w.keys.Messages(), w.keys.Options(), w.keys.Refs()}
		publish := func(from, to int) {
			var messages []message
			for _, name := range names("%02d", from, to) {
				messages = append(messages, now(name).with(queue.Options{MaxDeliveries: 2}))
			}
			w.publish(messages...)
		}
		publish(0, 16)
		for _, key := range keys {
			require.NotEqual(t, "hashtable", w.Client.ObjectEncoding(ctx, key).Val(), "%s: it has few", key)
		}
		publish(16, 17)
		for _, key := range keys {
			require.Equal(t, "hashtable", w.Client.ObjectEncoding(ctx, key).Val(), key)
			require.EqualValues(t, 17, w.Client.HLen(ctx, key).Val(), key)
		}
		queuetest.Check(t, s.Client, s.Prefix)
	})
}

func TestHashesOfShortValuesAreTablesWhenMessagesAreDue(t *testing.T) {
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a", "b")
		var messages []message
		for _, name := range names("%02d", 0, 17) {
			messages = append(messages, in(name, time.Hour))
		}
		w.publish(messages...)
		w.travel(2 * time.Hour)
		w.promoteAll()
		require.Equal(t, "hashtable", w.Client.ObjectEncoding(ctx, w.keys.Refs()).Val())
		require.EqualValues(t, 17, w.Client.HLen(ctx, w.keys.Refs()).Val())
	})
}
