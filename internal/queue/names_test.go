package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

func TestMessageTakesThePlaceOfTheOneThatWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0), in("other", time.Hour))
		w.publish(under(in("2", 2*time.Hour), "x", queue.Replace, 0))
		require.Equal(t, []string{"other", "2"}, w.pending())
		require.Equal(t, []string{"2", "other"}, w.stored())
		require.Len(t, w.Client.HKeys(ctx, w.keys.Options()).Val(), 1)
		require.NoError(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "x"}))
		require.Equal(t, []string{"other"}, w.pending())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val(), "it is free again")
		require.ErrorIs(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "x"}), queue.ErrNotFound)
	}, "a")
}

// Without a delay it is delivered now, and nothing waits under the ID any more.
func TestMessageThatIsDueNowTakesThePlaceOfTheOneThatWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Hour), "x", queue.Replace, 0))
		w.publish(under(now("2"), "x", queue.Replace, 0))
		require.Empty(t, w.pending())
		require.Equal(t, []string{"2"}, w.ready("a"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val())
	}, "a")
}

func TestMessageIsNotTakenInWhileAnotherWaits(t *testing.T) {
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
		both(t, func(t *testing.T, w *world) {
			w.publish(under(in("1", time.Minute), "x", queue.Reject, 0))
			w.travel(time.Minute - time.Second)
			require.ErrorIs(t, w.tryPublish(under(in("2", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
			w.travel(time.Second)
			if promoted {
				w.promote("s|1")
				require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val())
			}
			require.ErrorIs(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "x"}), queue.ErrNotFound)
			w.publish(under(in("3", time.Minute), "x", queue.Reject, 0))
			w.promote("s|1")
			require.Equal(t, []string{"1"}, w.ready("a"))
			require.Equal(t, []string{"3"}, w.pending())
			require.ErrorIs(t, w.tryPublish(under(in("4", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
		}, "a")
	}
}

func TestDelayIDStaysTakenForItsWindow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("1"), "x", queue.Keep, time.Hour))
		s := w.sub("a")
		require.Equal(t, 1, s.ack(held(s.claim(9))...))
		w.publish(under(now("2"), "x", queue.Keep, time.Hour))
		require.Empty(t, w.stored(), "kept out")
		require.ErrorIs(t, w.tryPublish(under(now("3"), "x", queue.Reject, time.Hour)), queue.ErrExists)
		require.ErrorIs(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "x"}), queue.ErrNotFound)
		require.Positive(t, w.next(), "the scheduler forgets it")
		w.publish(under(now("4"), "x", queue.Replace, 0))
		require.Equal(t, []string{"4"}, w.ready("a"), "what is due is not replaced, only its ID taken over")

		w.publish(under(now("5"), "y", queue.Keep, time.Hour))
		require.ErrorIs(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "y"}), queue.ErrTooLate)
		w.travel(time.Hour)
		w.publish(under(now("6"), "y", queue.Keep, 0))
		require.Equal(t, []string{"4", "5", "6"}, w.ready("a"))
		w.promote("s|1")
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken()).Val(), "forgotten")
	}, "a")
}

func TestRescheduledMessageKeepsItsDelayID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("1", time.Minute), "x", queue.Reject, time.Minute))
		require.NoError(t, w.topic.Reschedule(ctx, queue.Ref{DelayID: "x"}, queue.In(time.Hour)))
		w.travel(50 * time.Minute)
		require.ErrorIs(t, w.tryPublish(under(in("2", time.Minute), "x", queue.Reject, 0)), queue.ErrExists)
		require.NoError(t, w.topic.Reschedule(ctx, queue.Ref{DelayID: "x"}, queue.In(0)))
		require.ErrorIs(t, w.topic.Reschedule(ctx, queue.Ref{DelayID: "x"}, queue.In(time.Hour)), queue.ErrTooLate, "it is due")
		require.ErrorIs(t, w.topic.Cancel(ctx, queue.Ref{DelayID: "x"}), queue.ErrTooLate)
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
			found, err := w.topic.Find(ctx, queue.Ref{DelayID: id})
			require.NoError(t, err)
			require.Equal(t, queue.Options{DelayID: id, MaxDeliveries: 7, Mode: queue.Reject}, found.Options)
			require.Equal(t, w.id[id], found.ID)
			require.NoError(t, w.topic.Cancel(ctx, queue.Ref{DelayID: id}))
		}
		require.Empty(t, w.stored())
	}, "a")
}

func TestFullTopicTakesNoMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		publish := func(messages ...message) error {
			w.calls++
			return w.topic.PublishWithin(ctx, "PUBLISHER", w.calls, w.make(messages...), 3)
		}
		require.NoError(t, publish(now("1"), under(in("2", time.Hour), "x", queue.Replace, 0)))
		w.unchanged(func() { require.ErrorIs(t, publish(now("3"), in("4", time.Hour)), queue.ErrTopicFull) })
		require.NoError(t, publish(now("3")))
		require.NoError(t, publish(under(in("5", time.Hour), "x", queue.Replace, 0)), "it replaces one")
		require.NoError(t, publish(under(in("6", time.Hour), "x", queue.Keep, 0)), "it is not taken in")
		w.unchanged(func() { require.ErrorIs(t, publish(now("7")), queue.ErrTopicFull) })

		s := w.sub("a")
		claimed := held(s.claim(2))
		w.unchanged(func() { require.ErrorIs(t, publish(now("7")), queue.ErrTopicFull) })
		b := w.sub("b")
		require.Equal(t, 2, b.ack(held(b.claim(2))...))
		require.NoError(t, publish(now("7")), "what is in hand does not wait")
		require.Equal(t, 2, s.nack(failed(claimed[0], after(time.Hour)), failed(claimed[1])))
		w.unchanged(func() { require.ErrorIs(t, publish(now("8")), queue.ErrTopicFull) })
	}, "a", "b")
}

func TestRepeatedPublishWithDelayIDsChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		messages := w.make(under(in("1", time.Hour), "x", queue.Reject, 0), under(in("2", time.Hour), "y", queue.Keep, 0))
		require.NoError(t, w.topic.Publish(ctx, "P", 1, messages))
		w.unchanged(func() { require.NoError(t, w.topic.Publish(ctx, "P", 1, messages)) })
	}, "a")
}

// What may have to wait for its delivery for too long.

func TestMessagesThatAreTooLateAreDroppedOrBuried(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		soon := time.UnixMilli(w.now()).Add(time.Minute)
		w.publish(
			now("drop").with(queue.Options{Late: queue.Drop, Expires: soon}),
			now("1"),
			now("bury").with(queue.Options{Late: queue.Bury, Lateness: time.Minute, MaxDeliveries: 9}),
			now("2").with(queue.Options{Late: queue.Drop, Lateness: 2 * time.Hour}),
			now("3").with(queue.Options{Lateness: time.Minute}),
			now("behind").with(queue.Options{Late: queue.Drop, Expires: soon}),
		)
		first := w.sub("b")
		require.Equal(t, []string{"drop", "1", "bury", "2", "3", "behind"}, bodies(first.claim(9)), "in time")
		if w.Mini == nil {
			return // the due times in ready cannot be moved
		}
		w.pass(time.Hour)
		s := w.sub("a")
		require.Equal(t, []string{"1", "2"}, bodies(s.claim(2)))
		require.Equal(t, []string{"3", "behind"}, w.ready("a"))
		require.Equal(t, []string{"bury"}, w.dead("a"))
		require.Equal(t, "0 - - not delivered in time", w.field(w.keys.Deliveries("a"), "bury"))
		require.Equal(t, []string{"3"}, bodies(s.claim(9)))
		require.Empty(t, w.ready("a"))
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, stats.Groups[0].Dropped)
		require.Equal(t, 3, stats.Groups[0].Delivered)
		require.Equal(t, 3*time.Hour, stats.Groups[0].Lateness)
		require.Equal(t, time.Hour, stats.Groups[0].Latest)
		require.Zero(t, stats.Groups[1].Dropped)
		require.Equal(t, "1", w.field(w.keys.Refs(), "drop"), "b has it still")
	}, "a", "b")
}

func TestManyThatAreTooLateAreWorkedOffInFewClaims(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var messages []message
		for _, name := range names("%d", 0, 2500) {
			messages = append(messages, now(name).with(queue.Options{Late: queue.Drop, Expires: time.UnixMilli(1)}))
		}
		w.publish(append(messages, now("good"))...)
		s := w.sub("a")
		var got []string
		claims := 0
		for more := true; more; claims++ {
			claimed := s.claim(1)
			got = append(got, bodies(claimed)...)
			more = claimed.More
		}
		require.Equal(t, []string{"good"}, got)
		require.Equal(t, 3, claims, "a thousand are looked at each time")
		require.Equal(t, []string{"good"}, w.stored())
	}, "a")
}

func TestTooLateDoesNotPassASuspectThatHasToWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		late := queue.Options{Late: queue.Drop, Expires: time.UnixMilli(1)}
		w.publish(now("late").with(late), now("suspect"), now("later").with(late), now("x"))
		require.NoError(t, w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["suspect"], "0 s -").Err())
		s := w.sub("a")
		claimed := s.claim(9, busy)
		require.True(t, claimed.Blocked)
		require.Empty(t, claimed.Messages)
		require.Equal(t, []string{"suspect", "later", "x"}, w.ready("a"))
		require.Equal(t, []string{"suspect"}, bodies(s.claim(9)))
	}, "a")
}

// Pausing.

func TestPausedGroupGetsNothingAndRests(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		inbox.wait("a", "1")
		since, err := w.topic.Pause(ctx, "a")
		require.NoError(t, err)
		again, err := w.topic.Pause(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, since, again)
		w.publishNow("x", "y")
		require.Equal(t, []string{"1"}, inbox.received(), "it was waiting before")

		a, b := w.sub("a"), w.sub("b")
		claimed := a.claim(9, idle(9, inbox.channel+"|2"))
		require.Empty(t, claimed.Messages)
		require.True(t, claimed.Waits)
		require.False(t, claimed.More)
		require.Equal(t, []string{"x", "y"}, bodies(b.claim(9)))
		w.publishNow("z")
		require.Empty(t, inbox.received(), "publishing wakes nobody")

		was, err := w.topic.Resume(ctx, "a")
		require.NoError(t, err)
		require.True(t, was)
		require.Equal(t, []string{"2"}, inbox.received())
		require.Equal(t, []string{"x", "y", "z"}, bodies(a.claim(9)))
		was, err = w.topic.Resume(ctx, "a")
		require.NoError(t, err)
		require.False(t, was)
		_, err = w.topic.Pause(ctx, "unknown")
		require.ErrorIs(t, err, queue.ErrNotFound)
	}, "a", "b")
}

func TestGroupOfAPausedTopicRestsUntilBothGoOn(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		require.NoError(t, only(w.topic.Pause(ctx, "")))
		require.NoError(t, only(w.topic.Pause(ctx, "a")))
		w.publishNow("x")
		a, b := w.sub("a"), w.sub("b")
		a.claim(1, idle(1, inbox.channel+"|a"))
		b.claim(1, idle(1, inbox.channel+"|b"))
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		require.Equal(t, []string{"b"}, inbox.received())
		require.Empty(t, a.claim(1).Messages)
		require.Len(t, b.claim(1).Messages, 1)
		require.NoError(t, only(w.topic.Pause(ctx, "")))
		require.NoError(t, only(w.topic.Resume(ctx, "a")))
		require.Empty(t, inbox.received())
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		require.Equal(t, []string{"a"}, inbox.received())
		require.Len(t, a.claim(1).Messages, 1)
	}, "a", "b")
}

func TestPauseStopsNothingButClaims(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		query := s.query(4)
		claimed := held(s.ask(query))
		require.NoError(t, only(w.topic.Pause(ctx, "")))
		again := s.ask(query)
		require.Len(t, again.Messages, 4, "a repeat brings what was claimed before")
		require.Equal(t, 1, s.ack(claimed[0]))
		require.Equal(t, 1, s.release(claimed[1]))
		require.Equal(t, 1, s.nack(failed(claimed[2], after(time.Minute))))
		w.do(s.group.ExtendCalls(claimed[3:], time.Minute)...)
		w.publish(in("5", time.Minute))
		w.travel(2 * time.Minute)
		require.True(t, w.promote("s|1").Expired)
		require.False(t, w.expire())
		require.Equal(t, []string{"4", "2", "3", "5"}, w.ready("a"))
	}, "a")
}

// All are woken, in chunks, and none is left.
func TestResumeWakesAllThatRest(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, only(w.topic.Pause(ctx, "")))
		inbox := w.inbox()
		want := names("%d", 0, 1200)
		for _, name := range want {
			w.sub("a").claim(1, idle(1, inbox.channel+"|"+name))
		}
		require.NoError(t, only(w.topic.Resume(ctx, "")))
		woken := inbox.received()
		if w.Mini == nil { // the embedded server loses one now and then of so many at once
			require.ElementsMatch(t, want, woken)
		}
		require.Zero(t, w.Client.Exists(ctx, w.keys.Resting("a"), w.keys.Paused()).Val())
	}, "a")
}

func TestWhatTheHandlerSaidIsKept(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		said := func(f *queue.Failure) {
			f.Error, f.Reason = "the bank\nis closed", "nacked on the last of 5 deliveries"
		}
		w.publishNow("retried", "again", "dead")
		s := w.sub("a")
		claimed := held(s.claim(3))
		require.Equal(t, 3, s.nack(failed(claimed[0], after(time.Hour), said), failed(claimed[1], said), failed(claimed[2], dead, said)))
		require.Equal(t, "1 - - the bank\nis closed", w.field(w.keys.Deliveries("a"), "retried"))
		require.Equal(t, "1 - - nacked on the last of 5 deliveries: the bank\nis closed", w.field(w.keys.Deliveries("a"), "dead"))
		require.Equal(t, []string{"again"}, bodies(s.claim(1, lease(time.Millisecond))))
		w.pass(3 * time.Millisecond)
		w.expire()
		require.Equal(t, "1 s - the bank\nis closed", w.field(w.keys.Deliveries("a"), "again"), "it outlasts an expired lease")
	}, "a")
}
