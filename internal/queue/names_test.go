package queue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// under gives a message a delay ID.
func under(m message, id string, mode queue.Mode, window time.Duration) message {
	m.options.DelayID, m.options.Mode, m.options.Window = id, mode, window
	return m
}

func (w *world) tryPublish(messages ...message) error {
	w.t.Helper()
	w.calls++
	return w.topic.Publish(ctx, "PUBLISHER", w.calls, w.make(messages...))
}

func TestMessageReplacesTheWaitingOne(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0), in("other", time.Hour))
		w.publish(under(in("2", 2*time.Hour), "x", queue.Replace, 0))
		require.Equal(t, []string{"other", "2"}, w.pending())
		require.Equal(t, []string{"2", "other"}, w.stored())
		require.Len(t, w.Client.HKeys(ctx, w.keys.Options()).Val(), 1)
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}))
		require.Equal(t, []string{"other"}, w.pending())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val(), "it is free again")
		require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}), queue.ErrNotFound)
	}, "a")
}

// Without a delay it is delivered now, and nothing waits under the ID any more.
func TestMessageDueNowReplacesTheWaitingOne(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0))
		w.publish(under(now("2"), "x", queue.Replace, 0))
		require.Empty(t, w.pending())
		require.Equal(t, []string{"2"}, w.ready("a"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val())
	}, "a")
}

func TestMessageIsLeftOutWhileAnotherWithItsDelayIDWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Keep, 0))
		w.publish(now("before"), under(in("2", time.Minute), "x", queue.Keep, 0), in("after", time.Minute))
		require.Equal(t, []string{"after", "1"}, w.pending())
		require.Equal(t, []string{"before"}, w.ready("a"))
		require.Equal(t, []string{"1", "after", "before"}, w.stored())
		w.unchanged(func() {
			require.ErrorIs(t, w.tryPublish(in("3", time.Minute), under(now("4"), "x", queue.Reject, 0)), queue.ErrExists)
		})
		w.publish(under(in("5", time.Minute), "y", queue.Reject, 0))
	}, "a")
}

func TestMessagesOfOneCallAreTakenInOneAfterTheOther(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0), in("2", time.Hour), under(in("3", time.Hour), "x", queue.Replace, 0),
			under(in("4", time.Minute), "x", queue.Keep, 0), under(now("5"), "y", queue.Keep, 0), under(in("6", time.Hour), "y", queue.Keep, 0))
		require.Equal(t, []string{"2", "3", "6"}, w.pending())
		require.Equal(t, []string{"5"}, w.ready("a"))
		w.unchanged(func() {
			require.ErrorIs(t, w.tryPublish(under(in("7", time.Hour), "z", queue.Reject, 0), under(in("8", time.Hour), "z", queue.Reject, 0)), queue.ErrExists)
		})
	}, "a")
}

// By the server's time against the due time, whether the message was moved or not.
func TestDelayIDIsFreeAsSoonAsTheMessageIsDue(t *testing.T) {
	for _, promoted := range []bool{false, true} {
		t.Run(fmt.Sprint("promoted ", promoted), func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publish(under(in("1", time.Minute), "x", queue.Reject, 0))
				w.travel(time.Minute - time.Second)
				require.ErrorIs(t, w.tryPublish(under(in("2", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
				w.travel(time.Second + time.Millisecond) // it was rounded up
				if promoted {
					w.promote("s|1")
					require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val())
				}
				require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}), queue.ErrNotFound)
				w.publish(under(in("3", time.Minute), "x", queue.Reject, 0))
				w.promote("s|1")
				require.Equal(t, []string{"1"}, w.ready("a"))
				require.Equal(t, []string{"3"}, w.pending())
				require.ErrorIs(t, w.tryPublish(under(in("4", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
			}, "a")
		})
	}
}

// Its message was due. That is known as long as its window lasts, whatever became of the message.
func TestADelayIDThatHasFiredIsTooLateWithinItsWindow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		s := w.sub("a")
		x := operate.Ref{DelayID: "x"}
		all := func(want error) {
			t.Helper()
			w.unchanged(func() {
				require.ErrorIs(t, w.topic.Cancel(ctx, x), want)
				require.ErrorIs(t, w.topic.Reschedule(ctx, x, queue.In(time.Hour)), want)
			})
			_, err := w.topic.Find(ctx, x)
			require.ErrorIs(t, err, want)
		}
		all(queue.ErrNotFound)
		w.publish(under(in("1", time.Hour), "x", queue.Keep, time.Hour))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "1")))
		all(queue.ErrNotFound)

		w.publish(under(in("2", time.Minute), "x", queue.Keep, time.Hour))
		require.NoError(t, only(w.topic.Find(ctx, x)))
		w.travel(time.Minute + time.Second)
		w.promoteAll()
		require.NoError(t, only(w.topic.Find(ctx, x)), "it is ready")
		require.Equal(t, 1, s.ack(held(s.claim(9))...))
		require.Empty(t, w.stored())
		all(operate.ErrTooLate)
		w.travel(time.Hour)
		all(queue.ErrNotFound)
		w.promoteAll()
		all(queue.ErrNotFound)

		w.publish(under(now("3"), "x", queue.Keep, 0))
		require.Equal(t, 1, s.ack(held(s.claim(9))...))
		all(queue.ErrNotFound)
	}, "a")
}

func TestDelayIDStaysTakenForItsWindow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("1"), "x", queue.Keep, time.Hour))
		s := w.sub("a")
		require.Equal(t, 1, s.ack(held(s.claim(9))...))
		w.publish(under(now("2"), "x", queue.Keep, time.Hour))
		require.Empty(t, w.stored(), "kept out")
		require.ErrorIs(t, w.tryPublish(under(now("3"), "x", queue.Reject, time.Hour)), queue.ErrExists)
		require.Positive(t, w.next(), "the scheduler forgets it")
		w.publish(under(now("4"), "x", queue.Replace, 0))
		require.Equal(t, []string{"4"}, w.ready("a"), "what is due is not replaced, only its ID taken over")

		w.publish(under(now("5"), "y", queue.Keep, time.Hour))
		require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "y"}), operate.ErrTooLate)
		w.travel(time.Hour)
		w.publish(under(now("6"), "y", queue.Keep, 0))
		require.Equal(t, []string{"4", "5", "6"}, w.ready("a"))
		w.promote("s|1")
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val(), "forgotten")
	}, "a")
}

// Else what is published under it would be kept out for the sake of a message that nobody gets any
// more.
func TestDelayIDOfACancelledRetryIsFree(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("1"), "x", queue.Keep, time.Hour))
		a, b := w.sub("a"), w.sub("b")
		require.Equal(t, 1, a.nack(failed(held(a.claim(1))[0], after(time.Hour))))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "1")))
		w.publish(under(now("2"), "x", queue.Keep, time.Hour))
		require.Equal(t, []string{"1"}, w.ready("b"), "which has it still, so 2 was kept out")

		require.Equal(t, 1, b.nack(failed(held(b.claim(1))[0], after(time.Hour))))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "1")))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val())
		w.publish(under(now("3"), "x", queue.Keep, time.Hour))
		require.Equal(t, []string{"3"}, w.ready("a"))
	}, "a", "b")
}

// replacing has a message under a delay ID replaced before it is looked at.
type replacing struct {
	recorder
	replace func()
}

func (r *replacing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if replace := r.replace; replace != nil && cmd.Name() == "evalsha" {
			r.replace = nil
			replace()
		}
		return next(ctx, cmd)
	}
}

func TestAMessageIsFoundByItsDelayIDWhileItIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0))
		other := redis.NewClient(w.Client.(*redis.Client).Options())
		defer other.Close()
		topic := topicOf(other, w.Prefix, w.topic.Name)
		_, err := topic.Groups(ctx)
		require.NoError(t, err)
		other.AddHook(&replacing{replace: func() { w.publish(under(in("2", time.Hour), "x", queue.Replace, 0)) }})
		found, err := topic.Find(ctx, operate.Ref{DelayID: "x"})
		require.NoError(t, err)
		require.Equal(t, w.id["2"], found.ID)

		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}))
		_, err = topic.Find(ctx, operate.Ref{DelayID: "x"})
		require.ErrorIs(t, err, queue.ErrNotFound)
	}, "a")
}

func TestRescheduledMessageKeepsItsDelayID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Minute), "x", queue.Reject, time.Minute))
		require.NoError(t, w.topic.Reschedule(ctx, operate.Ref{DelayID: "x"}, queue.In(time.Hour)))
		w.travel(50 * time.Minute)
		require.ErrorIs(t, w.tryPublish(under(in("2", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
		require.NoError(t, w.topic.Reschedule(ctx, operate.Ref{DelayID: "x"}, queue.In(0)))
		require.ErrorIs(t, w.topic.Reschedule(ctx, operate.Ref{DelayID: "x"}, queue.In(time.Hour)), operate.ErrTooLate, "it is due")
		require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}), operate.ErrTooLate)
		require.ErrorIs(t, w.tryPublish(under(in("3", time.Minute), "x", queue.Reject, 0)), queue.ErrExists, "its window")
		w.travel(time.Minute)
		w.publish(under(in("4", time.Hour), "x", queue.Reject, 0))

		// The first is still in pending, and another has its ID.
		w.unchanged(func() {
			require.ErrorIs(t, w.topic.Reschedule(ctx, byID(w, "1"), queue.In(time.Hour)), queue.ErrExists)
		})
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "1")))
		require.Equal(t, []string{"4"}, w.pending())
		require.ErrorIs(t, w.tryPublish(under(in("5", time.Minute), "x", queue.Reject, 0)), queue.ErrExists, "4 has it")
	})
}

func TestDelayIDMayBeAnyText(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for _, id := range []string{"order 1", "a:b", "max_deliveries:1", "\x00\xff\n", "%", "späte%20", "+"} {
			w.publish(under(in(id, time.Hour), id, queue.Reject, 0).with(queue.Options{DelayID: id, MaxDeliveries: 7, Mode: queue.Reject}))
			require.ErrorIs(t, w.tryPublish(under(in("again", time.Hour), id, queue.Reject, 0)), queue.ErrExists)
			found, err := w.topic.Find(ctx, operate.Ref{DelayID: id})
			require.NoError(t, err)
			require.Equal(t, queue.Options{DelayID: id, MaxDeliveries: 7, Mode: queue.Reject}, found.Options)
			require.Equal(t, w.id[id], found.ID)
			require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: id}))
		}
		require.Empty(t, w.stored())
	}, "a")
}

func TestFullTopicTakesNoMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		publish := func(messages ...message) error {
			w.calls++
			return w.topic.PublishWithin(ctx, "PUBLISHER", w.calls, w.make(messages...), queue.Limit{Messages: 3, Parts: []int{len(messages)}})
		}
		require.NoError(t, publish(now("1"), under(in("2", time.Hour), "x", queue.Replace, 0)))
		refused := 0 // messages so far
		refuses := func(messages ...message) {
			t.Helper()
			w.unchangedBut(w.keys.Counters(), func() { require.ErrorIs(t, publish(messages...), queue.ErrTopicFull) })
			refused += len(messages)
			require.Equal(t, refused, must(w.topic.Stats(ctx)).Counter("refused_full"))
		}
		refuses(now("3"), in("4", time.Hour))
		require.NoError(t, publish(now("3")))
		require.NoError(t, publish(under(in("5", time.Hour), "x", queue.Replace, 0)), "it replaces one")
		require.NoError(t, publish(under(in("6", time.Hour), "x", queue.Keep, 0)), "it is not taken in")
		refuses(now("7"))

		s := w.sub("a")
		claimed := held(s.claim(2))
		refuses(now("7"))
		b := w.sub("b")
		require.Equal(t, 2, b.ack(held(b.claim(2))...))
		require.NoError(t, publish(now("7")), "what is in hand does not wait")
		require.Equal(t, 2, s.nack(failed(claimed[0], after(time.Hour)), failed(claimed[1])))
		refuses(now("8"))
	}, "a", "b")
}

// A refusal says who could not go in any company, and how many of the others could go together.
func TestRefusalNamesTheMessagesThatCauseIt(t *testing.T) {
	reject := func(text, name string) message { return under(in(text, time.Hour), name, queue.Reject, 0) }
	for name, c := range map[string]struct {
		limit    int
		messages []message
		want     queue.Refusal
		about    string
	}{
		"taken": {0, []message{now("a"), reject("b", "x"), reject("c", "free"), reject("d", "y")},
			queue.Refusal{Taken: []int{1, 3}}, `"x"`},
		"taken by messages of the call": {0, []message{reject("a", "free"), now("b"), reject("c", "free"), reject("d", "free"), reject("e", "other")},
			queue.Refusal{Twice: []int{2, 3}}, `"free"`},
		"taken by a message of the call that is due already": {0, []message{under(now("a"), "free", queue.Reject, 0), reject("b", "free"), reject("c", "x")},
			queue.Refusal{Taken: []int{2}}, `"x"`},
		"both": {0, []message{reject("a", "free"), reject("b", "free"), reject("c", "y"), reject("d", "x")},
			queue.Refusal{Taken: []int{2, 3}}, `"y"`},
		"taken, but the call replaces that": {0, []message{under(in("a", time.Hour), "x", queue.Replace, 0), reject("b", "x")},
			queue.Refusal{Twice: []int{1}}, `"x"`},
		"full":                {4, []message{now("a"), in("b", time.Hour), in("c", time.Hour)}, queue.Refusal{Room: 2, Full: true}, "at most 4"},
		"full, with one left": {3, []message{under(in("a", time.Hour), "x", queue.Replace, 0), now("b"), now("c")}, queue.Refusal{Room: 1, Full: true}, "at most 3"},
		"more than full":      {1, []message{now("a")}, queue.Refusal{Full: true}, "at most 1"},
		"full, and taken":     {1, []message{now("a"), reject("b", "x")}, queue.Refusal{Taken: []int{1}}, `"x"`},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publish(reject("1", "x"), reject("2", "y"))
				w.unchanged(func() {
					w.calls++
					err := w.topic.PublishWithin(ctx, "PUBLISHER", w.calls, w.make(c.messages...), queue.Limit{Messages: c.limit})
					var got *queue.Refusal
					require.ErrorAs(t, err, &got)
					require.ErrorContains(t, err, c.about)
					if c.want.Full {
						require.ErrorIs(t, err, queue.ErrTopicFull)
					} else {
						require.ErrorIs(t, err, queue.ErrExists)
					}
					require.Equal(t, c.want.Taken, got.Taken)
					require.Equal(t, c.want.Twice, got.Twice)
					require.Equal(t, c.want.Room, got.Room)
					require.Equal(t, c.want.Full, got.Full)
				})
			}, "a")
		})
	}
}

// It names a thousand at most.
func TestRefusalOfManyNamesTheFirst(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var messages []message
		for i := range 1002 {
			messages = append(messages, under(in(fmt.Sprint(i), time.Hour), fmt.Sprint(i), queue.Reject, 0))
		}
		w.publish(messages...)
		w.unchanged(func() {
			var got *queue.Refusal
			require.ErrorAs(t, w.tryPublish(append([]message{now("first")}, messages...)...), &got)
			require.Len(t, got.Taken, 1000)
			require.Equal(t, 1, got.Taken[0])
			require.Equal(t, 1000, got.Taken[999])
		})
		for i := range messages {
			messages[i].name, messages[i].options.DelayID = fmt.Sprint("other ", i), "other"
		}
		w.unchanged(func() {
			var got *queue.Refusal
			require.ErrorAs(t, w.tryPublish(messages...), &got)
			require.Empty(t, got.Taken)
			require.Len(t, got.Twice, 1000)
			require.Equal(t, 1, got.Twice[0])
		})
	}, "a")
}

func TestRepeatedPublishWithDelayIDsChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		messages := w.make(under(in("1", time.Hour), "x", queue.Reject, 0), under(in("2", time.Hour), "y", queue.Keep, 0))
		require.NoError(t, w.topic.Publish(ctx, "P", 1, messages))
		w.unchanged(func() { require.NoError(t, w.topic.Publish(ctx, "P", 1, messages)) })
	}, "a")
}

// A delay ID names the message that waits under it. A free delay ID names none, even if its message
// is due and not promoted yet.
func TestAFreeDelayIDFindsNoMessage(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Second).with(queue.Options{DelayID: "name"}))
		found, err := w.topic.Find(ctx, operate.Ref{DelayID: "name"})
		require.NoError(t, err)
		w.pass(time.Second + 100*time.Millisecond)
		_, err = w.topic.Find(ctx, operate.Ref{DelayID: "name"})
		require.ErrorIs(t, err, queue.ErrNotFound)
		_, err = w.topic.Find(ctx, operate.Ref{ID: found.ID})
		require.NoError(t, err)
	}, "a")
}
