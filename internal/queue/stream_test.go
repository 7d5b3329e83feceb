package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// streaming makes the world's topic one with a stream, which has a name of its own on a server that
// others use.
func (w *world) streaming(options queue.StreamOptions) *world {
	w.t.Helper()
	w.retarget(w.Prefix+"-"+w.topic.Name, options)
	_, err := w.topic.Groups(ctx)
	require.NoError(w.t, err)
	return w
}

// retarget has the world use another topic, one with a stream.
func (w *world) retarget(topic string, options queue.StreamOptions) {
	w.topic = streamTopicOf(w.Client, w.Prefix, topic, options)
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

// raw is a field of a hash that is not of messages.
func (w *world) raw(key, field string) string {
	w.t.Helper()
	value, err := w.Client.HGet(ctx, key, field).Result()
	require.NoError(w.t, err)
	return value
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

func TestDueMessagesGoIntoTheStreamInOrder(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("c", 3*time.Minute), in("a", time.Minute), in("b1", 2*time.Minute), in("b2", 2*time.Minute), in("later", time.Hour))
		turn := w.promote("s|1")
		require.Equal(t, queue.Holder, turn.Role)
		require.Greater(t, turn.Wait, 50*time.Second)
		require.Empty(t, w.entries(), "none is early")

		w.travel(4 * time.Minute)
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

// flow takes messages through every transition of a topic with a stream.
func (w *world) flow() {
	w.send(now("1"), in("2", time.Millisecond), in("dead", time.Millisecond).with(queue.Options{Expiry: queue.Expiry{At: time.UnixMilli(w.now()), Dead: true}}),
		under(in("named", time.Hour), "name", queue.Replace, 0))
	w.pass(3 * time.Millisecond)
	w.promote("s|1")
	require.Equal(w.t, []string{"1", "2"}, w.entries())
	require.Equal(w.t, []string{"dead"}, w.dead(queue.StreamGroup))
	require.NoError(w.t, w.topic.Reschedule(ctx, operate.Ref{DelayID: "name"}, queue.In(0)))
	require.NoError(w.t, only(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["dead"]})))
	w.promote("s|1")
	require.ElementsMatch(w.t, []string{"1", "2", "named", "dead"}, w.entries())
}

func TestPromoteIntoAStreamTellsWhenTheNextRetryIsDue(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		var messages []message
		for _, name := range []string{"x", "y"} {
			messages = append(messages, in(name, time.Millisecond).with(queue.Options{Expiry: queue.Expiry{At: time.UnixMilli(w.now()), Dead: true}}))
		}
		w.send(messages...)
		w.pass(3 * time.Millisecond)
		w.promote("s|1")
		require.NoError(t, only(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["x"], w.id["y"]})))
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "y"), queue.In(time.Minute)))
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.entries())
		require.Equal(t, int64(w.score(w.keys.Retry(queue.StreamGroup), "y")), w.next())
	})
}

// must is the result of a call that has to succeed.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestRepeatedPublishIntoAStreamAddsNothing(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		messages := w.makeEntries(now("x"), in("y", time.Hour))
		require.NoError(t, w.topic.Publish(ctx, "P", 1, messages))
		w.unchanged(func() { require.NoError(t, w.topic.Publish(ctx, "P", 1, messages)) })
		require.Equal(t, []string{"x"}, w.entries())
	})
}

func TestMessageForWhichItIsTooLateDoesNotGoIntoTheStream(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		late := func(name string, e queue.Expiry) message {
			return in(name, time.Minute).with(queue.Options{Expiry: e})
		}
		soon := time.UnixMilli(w.now()).Add(time.Minute)
		w.send(
			late("in time", queue.Expiry{Lateness: time.Hour}),
			late("in time too", queue.Expiry{At: soon.Add(time.Hour), Dead: true}),
			late("late, dropped", queue.Expiry{Lateness: time.Second}),
			late("late, dead", queue.Expiry{Lateness: time.Second, Dead: true}),
			late("last", queue.Expiry{}),
		)
		w.travel(3 * time.Minute)
		require.Equal(t, 1, w.promote("s|1").Dropped)
		require.Equal(t, []string{"in time", "in time too", "last"}, w.entries())
		require.Equal(t, []string{"late, dead"}, w.dead(queue.StreamGroup))
		_, _, _, reason := queue.ParseRecord(w.field(w.keys.Deliveries(queue.StreamGroup), "late, dead"))
		require.Equal(t, "not delivered in time", reason)
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.True(t, stats.Stream)
		require.Equal(t, 3, delivered(stats.Groups[0]))
		require.Equal(t, 1, stats.Groups[0].Counter("dropped"))
		require.Equal(t, []int{1, 1}, []int{died(stats.Groups[0]), stats.Groups[0].Counter("dead_late")})
		latest, _ := stats.Groups[0].Latest(stats.Now)
		require.GreaterOrEqual(t, latest, time.Minute)
		require.Equal(t, queue.Lateness{15: 3}, stats.Groups[0].Lateness())

		// An operator has it delivered all the same.
		require.Equal(t, 1, must(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["late, dead"]})))
		w.promote("s|1")
		require.Equal(t, []string{"in time", "in time too", "last", "late, dead"}, w.entries())
		require.Empty(t, w.stored())
	})
}

// Only a change by hand makes such a body.
func TestABodyThatIsNoStreamEntryIsDeadAndCounted(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("x", time.Minute))
		require.NoError(t, w.Client.HSet(ctx, w.keys.Messages(), w.id["x"], "odd").Err())
		w.travel(2 * time.Minute)
		w.promote("s|1")
		require.Empty(t, w.entries())
		g := must(w.topic.Stats(ctx)).Groups[0]
		require.Equal(t, []int{1, 1}, []int{died(g), g.Counter("dead_unmarshal")})
		_, _, _, reason := queue.ParseRecord(w.Client.HGet(ctx, w.keys.Deliveries(queue.StreamGroup), w.id["x"]).Val())
		require.Equal(t, "unmarshal: the body is not in the form of a stream entry", reason)
	})
}

// The script has the bounds of the buckets that Go has.
func TestLatenessOfMessagesThatGoIntoTheStream(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that can be set")
		}
		want := queue.Lateness{}
		for i, bound := range queue.LateBounds() {
			for j, late := range []time.Duration{bound, bound + time.Millisecond} {
				w.send(at(fmt.Sprint(i, ".", j), w.now()+1))
				w.pass(time.Millisecond + late)
				w.promote("s|1")
				counted := queue.Counts{}
				counted.Handed(late)
				for bucket, n := range counted.Lateness {
					want[bucket] += n
				}
			}
		}
		require.Equal(t, want, must(w.topic.Stats(ctx)).Groups[0].Lateness())
	})
}

func TestMessageThatExpiredBeforeItIsPublished(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		past := time.UnixMilli(w.now()).Add(-time.Minute)
		w.send(now("dropped").with(queue.Options{Expiry: queue.Expiry{At: past}}),
			now("x").with(queue.Options{Expiry: queue.Expiry{At: past.Add(time.Hour)}}),
			now("dead").with(queue.Options{Expiry: queue.Expiry{At: past, Dead: true}}), now("y"))
		require.Equal(t, []string{"x", "y"}, w.entries())
		w.promote("s|1")
		require.Equal(t, []string{"x", "y"}, w.entries())
		require.Equal(t, []string{"dead"}, w.dead(queue.StreamGroup))
		require.Equal(t, 1, must(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["dead"]})))
		w.promote("s|1")
		require.Equal(t, []string{"x", "y", "dead"}, w.entries(), "an operator has it delivered, however late it is")
	})
}

// A requeued message takes its place by the time at which the operator requeued it.
func TestRequeuedMessageGoesIntoTheStreamInOrder(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(now("requeued").with(queue.Options{Expiry: queue.Expiry{At: time.UnixMilli(w.now()), Dead: true}}))
		w.promote("s|1")
		require.Equal(t, []string{"requeued"}, w.dead(queue.StreamGroup))
		w.send(in("before", time.Millisecond))
		w.pass(4 * time.Millisecond)
		require.Equal(t, 1, must(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["requeued"]})))
		w.pass(time.Millisecond)
		w.send(in("after", time.Millisecond))
		w.pass(4 * time.Millisecond)
		w.promote("s|1")
		require.Equal(t, []string{"before", "requeued", "after"}, w.entries())
	})
}

func TestDeadMessagesOfAStreamEnd(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("x", time.Minute).with(queue.Options{Expiry: queue.Expiry{Lateness: time.Second, Dead: true}}))
		w.travel(2 * time.Minute)
		turn := w.promote("s|1")
		require.False(t, turn.Purge)
		require.Greater(t, turn.Wait, 59*time.Minute)
		w.travel(2 * time.Hour)
		require.True(t, w.promote("s|1").Purge)
		require.False(t, w.purge())
		require.Empty(t, w.stored())
	})
}

// The script that ends the pause tells the scheduler, even if its caller gets no answer.
func TestSchedulerLooksWhenATopicWithAStreamIsResumed(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(in("1", time.Minute))
		require.NoError(t, only(w.topic.Pause(ctx, "", "", "", 0)))
		require.Negative(t, w.promote("s|1").Wait, "nothing is to come")
		client := redis.NewClient(w.Client.(*redis.Client).Options())
		defer client.Close()
		ending, end := context.WithCancel(ctx)
		defer end()
		client.AddHook(&between{each: func(int) {
			if w.Client.HLen(ctx, w.keys.Paused()).Val() == 0 {
				end()
			}
		}})
		_, _ = topicOf(client, w.Prefix, w.topic.Name).Resume(ending, "")
		require.Error(t, ending.Err())
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Empty(t, audit.Violations)
		require.InDelta(t, time.Minute, w.promote("s|1").Wait, float64(time.Second))
	})
}

func TestNothingMovesWhileATopicWithAStreamIsPaused(t *testing.T) {
	for _, group := range []string{"", queue.StreamGroup} {
		t.Run(group, func(t *testing.T) {
			bothStreaming(t, func(t *testing.T, w *world) {
				w.send(in("1", time.Minute))
				require.NoError(t, only(w.topic.Pause(ctx, group, "", "", 0)))
				w.send(now("0"))
				require.Empty(t, w.entries())
				w.travel(2 * time.Minute)
				w.send(now("2"))
				require.Negative(t, w.promote("s|1").Wait, "nothing is to come")
				require.Empty(t, w.entries())
				audit, err := w.topic.Audit(ctx)
				require.NoError(t, err)
				require.Empty(t, audit.Violations)

				require.True(t, must(w.topic.Resume(ctx, group)))
				require.NotEmpty(t, w.raw(w.keys.Scheduler(), "next"), "the scheduler is to look")
				w.promote("s|1")
				require.Equal(t, []string{"0", "1", "2"}, w.entries())
			})
		})
	}
}

func TestDelayIDsInATopicWithAStream(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		w.send(under(in("1", time.Hour), "x", queue.Replace, 0), under(in("2", 2*time.Hour), "x", queue.Replace, 0))
		require.Equal(t, []string{"2"}, w.pending())
		w.send(under(in("3", time.Minute), "x", queue.Keep, 0), now("4"))
		w.unchanged(func() {
			require.ErrorIs(t, w.trySend(now("5"), under(now("6"), "x", queue.Reject, 0)), queue.ErrExists)
		})
		require.Equal(t, []string{"2"}, w.pending())
		require.Equal(t, []string{"4"}, w.entries())

		// One without delay takes the place of the one that waits.
		w.send(under(now("7"), "x", queue.Replace, 0))
		require.Empty(t, w.pending())
		require.Empty(t, w.stored())
		require.Equal(t, []string{"4", "7"}, w.entries())

		// A name stays taken for its window, though the message is in the stream.
		w.send(under(now("8"), "once", queue.Keep, time.Hour))
		w.send(under(now("9"), "once", queue.Keep, time.Hour))
		require.Equal(t, []string{"4", "7", "8"}, w.entries())
		require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "once"}), operate.ErrTooLate)
		require.ErrorIs(t, only(w.topic.Find(ctx, operate.Ref{DelayID: "once"})), operate.ErrTooLate)

		w.send(under(in("10", time.Hour), "cancelled", queue.Keep, 0), under(in("11", time.Hour), "moved", queue.Keep, 0))
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "cancelled"}))
		require.NoError(t, w.topic.Reschedule(ctx, operate.Ref{DelayID: "moved"}, queue.In(0)))
		w.promote("s|1")
		require.Equal(t, []string{"4", "7", "8", "11"}, w.entries())
	})
}

func TestATopicWithAStreamMayBeFull(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		publish := func(messages ...message) error {
			w.calls++
			return w.topic.PublishWithin(ctx, "P", w.calls, w.makeEntries(messages...), queue.Limit{Messages: 2, Parts: []int{len(messages)}})
		}
		require.NoError(t, publish(now("1"), now("2"), now("3")), "what is in the stream does not wait")
		require.NoError(t, publish(in("4", time.Hour), in("5", time.Hour), now("6")))
		w.unchangedBut(w.keys.Counters(), func() {
			var refusal *queue.Refusal
			require.ErrorAs(t, publish(now("7"), in("8", time.Hour)), &refusal)
			require.ErrorIs(t, refusal, queue.ErrTopicFull)
			require.False(t, refusal.Full, "what is due may go by itself")
		})
		require.Equal(t, 2, must(w.topic.Stats(ctx)).Counter("refused_full"))
		require.NoError(t, publish(now("9")))
		require.Equal(t, []string{"1", "2", "3", "6", "9"}, w.entries())
	})
}

func TestOthersThanTheHolderMoveNothing(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		box := w.Prefix + "-box"
		w.process(box)
		require.Equal(t, queue.Holder, w.promote(box+"|1").Role)
		w.send(in("x", time.Minute))
		require.Equal(t, queue.Standby, w.promote(box+"|2").Role)
		require.Equal(t, queue.Other, w.promote(box+"|3").Role)
		due := int64(w.score(w.keys.Pending(), "x"))
		w.travel(time.Minute + 500*time.Millisecond)
		if w.Mini == nil {
			due -= (time.Minute + 500*time.Millisecond).Milliseconds() // what is stored moved, not the clock
		}
		early, entries := w.promote(box+"|2").Role, w.entries()
		if w.now() >= due+1000 {
			require.Nil(t, w.Mini, "only the real clock goes on meanwhile")
			return
		}
		require.Equal(t, queue.Standby, early)
		require.Empty(t, entries)
		w.travel(time.Second)
		require.Equal(t, queue.Holder, w.promote(box+"|3").Role, "the holder has failed")
		require.Equal(t, []string{"x"}, w.entries())
	})
}

func TestBytesThatMoveInOneStepAreBounded(t *testing.T) {
	bothStreaming(t, func(t *testing.T, w *world) {
		var messages []queue.Message
		for _, m := range w.make(in("1", time.Minute), in("2", time.Minute), in("3", time.Minute), in("4", time.Minute)) {
			m.Body = []byte("1 0 x" + strings.Repeat("x", 3<<20))
			messages = append(messages, m)
		}
		require.NoError(t, w.topic.Publish(ctx, "P", 1, messages))
		w.travel(2 * time.Minute)
		for n := range 4 {
			w.promote("s|1")
			require.EqualValues(t, n+1, w.Client.XLen(ctx, w.topic.Name).Val())
		}
	})
}
