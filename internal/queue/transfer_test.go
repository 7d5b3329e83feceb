package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// beside returns another topic on the same server. Messages have one name in both.
func (w *world) beside(topic string, groups ...string) *world {
	to := newWorld(w.t, w.Server, topic, groups...)
	to.id, to.name = w.id, w.name
	return to
}

// move moves messages, and returns "name: outcome" of each.
func (w *world) move(to *world, names ...string) (done []string) {
	w.t.Helper()
	ids := make([]string, len(names))
	for i, name := range names {
		ids[i] = w.id[name]
	}
	moved, err := operate.NewTransfer(w.topic, to.topic).Move(ctx, ids)
	require.NoError(w.t, err)
	for _, m := range moved {
		done = append(done, w.name[m.ID]+": "+outcomes[m.Outcome])
	}
	return done
}

var outcomes = map[operate.Outcome]string{operate.Moved: "moved", operate.Gone: "gone", operate.Busy: "busy", operate.Scheduled: "scheduled",
	operate.Clash: "clash", operate.Lacking: "lacking", operate.Lingering: "lingering"}

func TestWaitingMessagesMoveWithAllThatTheyHave(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a", "b")
		w.publish(in("plain", time.Hour), in("soon", 5*time.Second).with(queue.Options{MaxDeliveries: 3}),
			in("named", 2*time.Hour).with(queue.Options{DelayID: "n", Window: time.Minute, Mode: queue.Keep}),
			in("soon named", 5*time.Second).with(queue.Options{DelayID: "s", Window: time.Minute}), in("stays", time.Hour))
		names := []string{"plain", "soon", "named", "soon named"}
		before := map[string]string{}
		for _, name := range names {
			before[name] = fmt.Sprint(w.score(w.keys.Pending(), name), w.field(w.keys.Options(), name))
		}
		free := w.Client.ZRangeWithScores(ctx, w.keys.Taken(), 0, -1).Val()
		require.Len(t, free, 2)
		require.Equal(t, []string{"plain: moved", "soon: moved", "named: moved", "soon named: moved"}, w.move(to, names...))
		for _, name := range names {
			require.Equal(t, before[name], fmt.Sprint(to.score(to.keys.Pending(), name), to.field(to.keys.Options(), name)))
		}
		require.Equal(t, free, to.Client.ZRangeWithScores(ctx, to.keys.Taken(), 0, -1).Val())
		require.Equal(t, map[string]string{"n": w.id["named"], "s": w.id["soon named"]}, to.Client.HGetAll(ctx, to.keys.Names()).Val())
		require.Equal(t, []string{"stays"}, w.stored())
		require.Equal(t, []string{"stays"}, w.pending())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken(), w.keys.Options()).Val())
		require.Equal(t, int64(to.score(to.keys.Pending(), "soon")), to.next())
		require.Equal(t, "4", to.Client.HGet(ctx, to.keys.Counters(), "published").Val())

		require.Equal(t, []string{"plain: gone", "stays: moved"}, w.move(to, "plain", "stays"))
		to.travel(3 * time.Hour)
		to.promoteAll()
		require.ElementsMatch(t, append(names, "stays"), to.ready("a"))
		require.ElementsMatch(t, append(names, "stays"), to.ready("b"))
	}, "a", "b")
}

func TestAMessageThatIsDueAndNotPromotedKeepsItsDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publish(in("x", 10*time.Millisecond))
		due := w.score(w.keys.Pending(), "x")
		w.pass(20 * time.Millisecond)
		require.Equal(t, []string{"x: moved"}, w.move(to, "x"))
		require.Equal(t, due, to.score(to.keys.Pending(), "x"))
		to.promoteAll()
		require.Equal(t, []string{"x"}, to.ready("a"))
	}, "a")
}

func TestRetriesAndDeadLettersMoveWithTheirRecords(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "c", "b", "a")
		w.publish(now("both").with(queue.Options{MaxDeliveries: 9}), now("mixed"), now("one"), now("held"), now("half"))
		a, b := w.sub("a"), w.sub("b")
		for i, l := range held(a.claim(5)) {
			switch i {
			case 0:
				a.nack(failed(l, after(time.Hour)))
			case 1, 2:
				a.nack(failed(l, dead))
			case 4:
				a.nack(failed(l, after(time.Hour)))
			}
		}
		for i, l := range held(b.claim(5)) {
			switch i {
			case 0:
				b.nack(failed(l, after(3*time.Second)))
			case 1:
				b.nack(failed(l, after(2*time.Hour)))
			case 2, 3:
				b.ack(l)
			case 4:
				b.release(l)
			}
		}
		type place struct {
			score  float64
			record string
		}
		read := func(w *world) (all [6]place) {
			for i, of := range []struct{ key, group, name string }{{w.keys.Retry("a"), "a", "both"}, {w.keys.Retry("b"), "b", "both"},
				{w.keys.Dead("a"), "a", "mixed"}, {w.keys.Retry("b"), "b", "mixed"}, {w.keys.Dead("a"), "a", "one"}} {
				all[i] = place{w.score(of.key, of.name), w.field(w.keys.Deliveries(of.group), of.name)}
			}
			return all
		}
		before := read(w)
		require.Equal(t, []string{"both: moved", "mixed: moved", "one: moved", "held: busy", "half: busy"}, w.move(to, "both", "mixed", "one", "held", "half"))
		require.Equal(t, before, read(to))
		require.Equal(t, map[string]string{w.id["both"]: "2", w.id["mixed"]: "2"}, to.Client.HGetAll(ctx, to.keys.Refs()).Val())
		require.Equal(t, []string{"half", "held"}, w.stored())
		require.Equal(t, []string{"half"}, w.retry("a"))
		require.Equal(t, int64(before[1].score), to.next(), "the retry in three seconds")

		to.travel(3 * time.Hour)
		to.promoteAll()
		require.Equal(t, []string{"both"}, to.ready("a"))
		require.Equal(t, []string{"both", "mixed"}, to.ready("b"))
		require.Empty(t, to.ready("c"))
		got := held(to.sub("b").claim(1))
		require.Equal(t, 1, got[0].Deliveries)
	}, "a", "b")
}

func TestADelayIDThatIsInUseIsRefused(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		to.publish(in("theirs", time.Hour).with(queue.Options{DelayID: "n"}))
		w.publish(in("mine", 2*time.Hour).with(queue.Options{DelayID: "n"}), in("x", time.Hour), in("later", time.Hour).with(queue.Options{DelayID: "m"}))
		require.Equal(t, []string{"mine: clash", "x: moved"}, w.move(to, "mine", "x"))
		require.Equal(t, []string{"later", "mine"}, w.pending())
		require.Equal(t, w.id["theirs"], to.Client.HGet(ctx, to.keys.Names(), "n").Val())
		require.NoError(t, to.topic.Cancel(ctx, operate.Ref{DelayID: "n"}))
		require.Equal(t, []string{"mine: moved"}, w.move(to, "mine"))
		require.NoError(t, to.topic.Reschedule(ctx, operate.Ref{DelayID: "n"}, queue.In(time.Minute)))
	}, "a")
}

// A delay ID stays taken for its window after a message is due, and a retry brings that along.
func TestARetryBringsItsWindowAlong(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publish(under(now("x"), "n", queue.Replace, time.Hour))
		w.retryIn("a", "x")
		taken := w.Client.ZRangeWithScores(ctx, w.keys.Taken(), 0, -1).Val()
		require.Len(t, taken, 1)
		require.Equal(t, []string{"x: moved"}, w.move(to, "x"))
		require.Equal(t, taken, to.Client.ZRangeWithScores(ctx, to.keys.Taken(), 0, -1).Val())
		require.ErrorIs(t, to.tryPublish(under(in("y", time.Hour), "n", queue.Reject, 0)), queue.ErrExists)
		require.NoError(t, w.tryPublish(under(in("z", time.Hour), "n", queue.Reject, 0)))
		require.NoError(t, to.topic.CancelRetries(ctx, "n"))
	}, "a")
}

func TestWhatAGroupOfTheOtherTopicIsMissingForStays(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publishNow("x")
		w.retryIn("a", "x")
		w.retryIn("b", "x")
		w.unchanged(func() {
			moved, err := operate.NewTransfer(w.topic, to.topic).Move(ctx, []string{w.id["x"]})
			require.NoError(t, err)
			require.Equal(t, []operate.Transferred{{ID: w.id["x"], Outcome: operate.Lacking, Groups: []string{"a", "b"}, Lacks: "b"}}, moved)
			require.NoError(t, w.Client.Del(ctx, w.keys.Operation("move")).Err())
		})
		require.NoError(t, to.topic.Register(ctx, "b", standard))
		require.Equal(t, []string{"x: moved"}, w.move(to, "x"))
	}, "a", "b")
}

func TestOccurrencesOfASchedulesStay(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		w.publish(in("alike", time.Hour).with(queue.Options{DelayID: "no schedule@123"}))
		ids := must(w.Client.ZRange(ctx, w.keys.Pending(), 0, -1).Result())
		moved, err := operate.NewTransfer(w.topic, to.topic).Move(ctx, ids)
		require.NoError(t, err)
		got := map[operate.Outcome]int{}
		for _, m := range moved {
			got[m.Outcome]++
		}
		require.Equal(t, map[operate.Outcome]int{operate.Scheduled: 1, operate.Moved: 1}, got)
	}, "a")
}

func TestHistoriesTellThatAMessageMoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a", "b")
		w.keepIn("a", dayLong)
		w.publish(in("waits", time.Hour), now("retries"))
		w.retryIn("a", "retries")
		w.retryIn("b", "retries")
		due := int64(w.score(w.keys.Pending(), "waits"))
		require.Equal(t, []string{"waits: moved", "retries: moved"}, w.move(to, "waits", "retries"))
		require.Equal(t, []string{"retries moved"}, w.ended("a"))
		require.Equal(t, []string{"waits moved"}, w.ended(""))
		require.Equal(t, due, w.history("")[0].Due.UnixMilli())
		require.Equal(t, 1, w.history("a")[0].Deliveries)
	}, "b")
}

func TestALookAtAMoveChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour), now("y"))
		w.unchanged(func() {
			found, err := operate.Look(ctx, w.topic, []string{w.id["x"], w.id["y"], "nobody"})
			require.NoError(t, err)
			require.Equal(t, []operate.Outcome{operate.Moved, operate.Busy, operate.Gone}, []operate.Outcome{found[0].Outcome, found[1].Outcome, found[2].Outcome})
		})
	}, "a")
}

// steps stops a transfer before one of its calls, or lets it run and lose the answer, as a process
// that is killed then.
type steps struct {
	at, calls int
	lose      bool
	before    func() // is called once instead, before the call
}

var errKilled = errors.New("killed")

func (s *steps) topic(w *world) *operate.Topic {
	return w.hooked(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
		args := calls[0].Args()
		if len(args) < 2 || !slices.Contains([]string{"gather", "adopt", "depart", "arrive"}, queue.ScriptName(fmt.Sprint(args[1]))) {
			return next()
		}
		s.calls++
		switch {
		case s.calls != s.at && (s.calls < s.at || s.before != nil):
			return next()
		case s.before != nil:
			s.before()
			return next()
		case s.calls == s.at && s.lose:
			_ = next()
		}
		calls[0].SetErr(errKilled)
		return errKilled
	}))
}

// A transfer that ends anywhere leaves each message in one topic at least, and another one ends
// with each in one.
func TestATransferThatIsKilledIsFinishedByTheNext(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for at := 1; at <= 5; at++ {
			for _, lose := range []bool{false, true} {
				name := fmt.Sprint("kill ", at, lose)
				from, to := w.beside("from "+name, "a", "b"), w.beside("to "+name, "a", "b")
				from.publish(in("long", time.Hour).with(queue.Options{DelayID: "n", Window: time.Minute}), in("short", 30*time.Second).with(queue.Options{DelayID: "m"}), now("retries"), now("dies"))
				from.retryIn("a", "retries")
				from.retryIn("b", "retries")
				for _, group := range []string{"a", "b"} {
					s := from.sub(group)
					s.nack(failed(held(s.claim(1))[0], dead))
				}
				long, short := from.score(from.keys.Pending(), "long"), from.score(from.keys.Pending(), "short")
				names := []string{"long", "short", "retries", "dies"}
				var ids []string
				for _, name := range names {
					ids = append(ids, w.id[name])
				}
				k := &steps{at: at, lose: lose}
				_, err := operate.NewTransfer(k.topic(from), k.topic(to)).Move(ctx, ids)
				killed := k.calls >= at
				require.Equal(t, killed, err != nil, "%d calls", k.calls)
				for _, name := range names {
					require.True(t, slices.Contains(from.stored(), name) || slices.Contains(to.stored(), name), name)
				}
				gone := len(from.stored()) == 0
				w.free(from, to)
				from.move(to, names...)
				require.Empty(t, from.stored())
				require.Equal(t, []string{"dies", "long", "retries", "short"}, to.stored())
				require.Equal(t, long, to.score(to.keys.Pending(), "long"))
				if gone && killed {
					require.LessOrEqual(t, to.score(to.keys.Pending(), "short"), float64(to.now())+60_000)
				} else {
					require.Equal(t, short, to.score(to.keys.Pending(), "short"))
				}
				for _, group := range []string{"a", "b"} {
					require.Equal(t, []string{"retries"}, to.retry(group))
					require.Equal(t, []string{"dies"}, to.dead(group))
				}
			}
		}
	}, "a")
}

// free ends the time for which a killed transfer has topics.
func (w *world) free(topics ...*world) {
	for _, topic := range topics {
		require.NoError(w.t, w.Client.Del(ctx, topic.keys.Operation("move")).Err())
	}
}

// A message that goes on between adopt and depart is left alone, and its copy goes.
func TestAMessageThatGoesOnMeanwhileStays(t *testing.T) {
	for what, meanwhile := range map[string]func(w *world){
		"it is due": func(w *world) {
			require.NoError(w.t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(0)))
			w.promoteAll()
		},
		"it is rescheduled": func(w *world) {
			require.NoError(w.t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(time.Minute)))
		},
		"it is cancelled": func(w *world) { require.NoError(w.t, w.topic.Cancel(ctx, byID(w, "x"))) },
		"it is replaced":  func(w *world) { w.publish(in("new", time.Hour).with(queue.Options{DelayID: "n"})) },
	} {
		t.Run(what, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				to := w.beside("other", "a")
				w.publish(in("x", time.Hour).with(queue.Options{DelayID: "n"}), in("y", time.Hour))
				k := &steps{at: 3, before: func() { meanwhile(w) }}
				moved, err := operate.NewTransfer(k.topic(w), k.topic(to)).Move(ctx, []string{w.id["x"], w.id["y"]})
				require.NoError(t, err)
				require.NotEqual(t, operate.Moved, moved[0].Outcome)
				require.Equal(t, operate.Moved, moved[1].Outcome)
				require.Equal(t, []string{"y"}, to.stored())
				require.Zero(t, to.Client.Exists(ctx, to.keys.Names(), to.keys.Taken(), to.keys.Options()).Val())
			}, "a")
		})
	}
}

// Of two transfers of the same messages, one takes each.
func TestTwoTransfersLoseNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publish(in("x", time.Hour))
		var other []operate.Transferred
		k := &steps{at: 3, before: func() {
			w.free(w, to) // the first one stood still for longer than it has the topics
			var err error
			other, err = operate.NewTransfer(w.topic, to.topic).Move(ctx, []string{w.id["x"]})
			require.NoError(t, err)
		}}
		moved, err := operate.NewTransfer(k.topic(w), k.topic(to)).Move(ctx, []string{w.id["x"]})
		require.NoError(t, err)
		require.Equal(t, operate.Moved, other[0].Outcome)
		require.Equal(t, operate.Gone, moved[0].Outcome)
		require.Equal(t, []string{"x"}, to.stored())
		require.Empty(t, w.stored())
	}, "a")
}

func TestATransferWaitsForAnotherAndGivesUp(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publish(in("x", time.Hour))
		require.NoError(t, w.Client.Set(ctx, to.keys.Operation("move"), "SOMEBODY:1", time.Hour).Err())
		short, end := context.WithTimeout(ctx, 100*time.Millisecond)
		defer end()
		_, err := operate.NewTransfer(w.topic, to.topic).Move(ctx, []string{w.id["x"]})
		require.ErrorIs(t, err, operate.ErrMoving)
		require.ErrorContains(t, err, `topic "other"`)
		require.NoError(t, w.Client.Set(ctx, w.keys.Operation("move"), "SOMEBODY:1", time.Hour).Err())
		_, err = operate.NewTransfer(w.topic, to.topic).Move(short, []string{w.id["x"]})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []string{"x"}, w.stored())
		require.Empty(t, to.stored())
	}, "a")
}

// A message that comes back to a topic whose takeover window has it would lose its body with that.
func TestAMessageDoesNotComeBackIntoAWindowThatHasIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("x")
		w.retryIn("a", "x")
		to := w.beside("other", "a")
		require.Equal(t, []string{"x: moved"}, w.move(to, "x"))
		require.Equal(t, []string{"x: lingering"}, to.move(w, "x"))
		w.endWindow()
		w.sweepUnused()
		require.Equal(t, []string{"x: moved"}, to.move(w, "x"))
		require.Equal(t, []string{"x"}, w.retry("a"))
		require.Equal(t, []string{"x"}, w.stored())
	})
}

// The window has a message that the groups are done with, and keeps it.
func TestAMessageThatOnlyTheWindowHasStays(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("x")
		s := w.sub("a")
		s.ack(held(s.claim(1))...)
		to := w.beside("other", "a")
		require.Equal(t, []string{"x: gone"}, w.move(to, "x"))
		require.Empty(t, to.stored())
		require.NotEmpty(t, w.stored())
	})
}

func TestMessagesDoNotMoveToAFullServer(t *testing.T) {
	t.Parallel()
	in1, in2 := redistest.Start(t), redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in1.Client(t), Prefix: "own"}, "topic", "a")
	to := newWorld(t, redistest.Server{Client: in2.Client(t), Prefix: "own"}, "other", "a")
	to.id, to.name = w.id, w.name
	w.publish(in("x", time.Hour))
	require.NoError(t, to.Client.ConfigSet(ctx, "maxmemory", "1").Err())
	to.unchanged(func() {
		_, err := operate.NewTransfer(w.topic, to.topic).Move(ctx, []string{w.id["x"]})
		require.ErrorContains(t, err, "OOM")
	})
	require.Equal(t, []string{"x"}, w.pending())
	require.NoError(t, to.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	require.NoError(t, w.Client.ConfigSet(ctx, "maxmemory", "1").Err())
	w.free(w)
	require.Equal(t, []string{"x: moved"}, w.move(to, "x"), "a full server gives messages away")
	queuetest.Check(t, to.Client, to.Prefix)
}

// A step that took too long cannot take its copies back. It says so if their messages stay.
func TestCopiesThatCannotBeTakenBackAreNamed(t *testing.T) {
	for what, lose := range map[string]func(from, to *world){
		"the old topic is lost": func(from, _ *world) { from.free(from) },
		"the new topic is lost": func(_, to *world) { to.free(to) },
	} {
		t.Run(what, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				to := w.beside("other", "a")
				w.publish(in("x", time.Hour), in("y", time.Hour))
				k := &steps{at: 3, before: func() {
					lose(w, to)
					require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(0)))
					w.promoteAll()
				}}
				moved, err := operate.NewTransfer(k.topic(w), k.topic(to)).Move(ctx, []string{w.id["x"], w.id["y"]})
				require.ErrorContains(t, err, "1 messages stayed")
				require.ErrorContains(t, err, w.id["x"])
				require.Len(t, moved, 2)
				require.Equal(t, operate.Busy, moved[0].Outcome)
				require.Equal(t, operate.Moved, moved[1].Outcome)
				require.Equal(t, []string{"x"}, w.stored())
				require.Equal(t, []string{"x", "y"}, to.stored())
			}, "a")
		})
	}
}

// A copy that some groups have done with is not given to them again by a later transfer.
func TestACopyThatWentOnStaysAsItIs(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a", "b")
		w.publish(in("x", time.Hour))
		k := &steps{at: 3}
		_, err := operate.NewTransfer(k.topic(w), k.topic(to)).Move(ctx, []string{w.id["x"]})
		require.ErrorIs(t, err, errKilled)
		w.free(w, to)
		require.NoError(t, to.topic.Reschedule(ctx, byID(w, "x"), queue.In(0)))
		to.promoteAll()
		a := to.sub("a")
		a.ack(held(a.claim(1))...)
		to.retryIn("b", "x")
		require.Equal(t, []string{"x: moved"}, w.move(to, "x"))
		require.Empty(t, w.stored())
		require.Equal(t, []string{"x"}, to.retry("b"))
		require.Empty(t, to.ready("a"))
		require.Empty(t, to.zset(to.keys.Pending()))
	}, "a", "b")
}

// A copy that somebody gives another due time keeps that, however soon it is.
func TestACopyThatIsRescheduledKeepsThat(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		to := w.beside("other", "a")
		w.publish(in("x", 10*time.Second))
		var due float64
		k := &steps{at: 4, before: func() {
			require.NoError(t, to.topic.Reschedule(ctx, byID(w, "x"), queue.In(30*time.Second)))
			due = to.score(to.keys.Pending(), "x")
		}}
		moved, err := operate.NewTransfer(k.topic(w), k.topic(to)).Move(ctx, []string{w.id["x"]})
		require.NoError(t, err)
		require.Equal(t, operate.Moved, moved[0].Outcome)
		require.Equal(t, due, to.score(to.keys.Pending(), "x"))
	}, "a")
}
