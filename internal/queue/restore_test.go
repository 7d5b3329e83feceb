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
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// exported returns all that waits for its due time, or for a retry in a group, as Restore takes it.
func (w *world) exported(group string) (all []operate.Absent) {
	w.t.Helper()
	state := operate.Waiting
	if group != "" {
		state = operate.Retrying
	}
	page, err := w.topic.ListWhole(ctx, group, state, "", 1000, 1<<20)
	require.NoError(w.t, err)
	for _, l := range page.Messages {
		all = append(all, operate.Absent{ID: l.ID, Body: l.Body, Own: l.Own, Group: group, Record: l.Text, At: l.At, Free: queue.Instant(l.Free)})
	}
	return all
}

// cancelled exports messages, takes them back, and returns the export.
func (w *world) cancelled(group string) []operate.Absent {
	w.t.Helper()
	all := w.exported(group)
	var waits []operate.Wait
	for _, m := range all {
		waits = append(waits, operate.Wait{ID: m.ID, Group: group, At: m.At})
	}
	outcomes, err := w.topic.CancelWaits(ctx, waits)
	require.NoError(w.t, err)
	for _, err := range outcomes {
		require.NoError(w.t, err)
	}
	return all
}

var fates = map[operate.Restored]string{operate.CameBack: "back", operate.IsHere: "here", operate.HasEnded: "ended", operate.Named: "clash",
	operate.Undone: "undone", operate.Unclear: "unclear", operate.NoGroup: "no group"}

// restore restores messages, and says what became of each.
func (w *world) restore(all []operate.Absent) (done []string) {
	w.t.Helper()
	found, err := w.topic.Restore(ctx, all, false)
	require.NoError(w.t, err)
	for i, fate := range found {
		done = append(done, w.name[all[i].ID]+": "+fates[fate])
	}
	return done
}

// owned returns the delay IDs that are taken.
func (w *world) owned() []redis.Z {
	w.t.Helper()
	taken, err := w.Client.ZRangeWithScores(ctx, w.keys.Taken(), 0, -1).Result()
	require.NoError(w.t, err)
	return taken
}

// delivers promotes all that is due, and has a group ack what it gets.
func (w *world) delivers(group string) {
	w.t.Helper()
	w.promoteAll()
	s := w.sub(group)
	got := held(s.claim(9))
	require.Equal(w.t, len(got), s.ack(got...))
}

func TestWaitingMessagesComeBackWithAllThatTheyHave(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("plain", time.Hour), in("soon", 5*time.Second).with(queue.Options{MaxDeliveries: 3}),
			in("named", 2*time.Hour).with(queue.Options{DelayID: "n", Window: time.Minute, Mode: queue.Keep}),
			in("past", 10*time.Millisecond).with(queue.Options{DelayID: "p", Window: time.Hour}), in("stays", 4*time.Hour))
		keys := []string{w.keys.Messages(), w.keys.Options()}
		read := func() (all []any) {
			for _, key := range keys {
				all = append(all, w.Client.HGetAll(ctx, key).Val())
			}
			return append(all, w.Client.ZRangeWithScores(ctx, w.keys.Pending(), 0, -1).Val(), w.owned())
		}
		before := read()
		all := w.cancelled("")[:4]
		all[0].Free = time.Time{} // it follows from the due time
		require.Empty(t, w.stored())
		require.Empty(t, w.owned())
		w.pass(20 * time.Millisecond)
		w.unchanged(func() {
			found, err := w.topic.Restore(ctx, all, true)
			require.NoError(t, err)
			require.Equal(t, strings.Repeat("c", 4), fmt.Sprintf("%c%c%c%c", found[0], found[1], found[2], found[3]))
		})
		want := []string{"past: back", "soon: back", "plain: back", "named: back"}
		require.Equal(t, want, w.restore(all))
		w.publish(in("stays", 4*time.Hour)) // under another ID
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "stays")))
		after := read()
		for i, of := range before[:2] {
			for id, value := range of.(map[string]string) {
				if w.name[id] != "stays" {
					require.Equal(t, value, after[i].(map[string]string)[id])
				}
			}
		}
		require.Equal(t, before[2].([]redis.Z)[:4], after[2])
		require.Equal(t, before[3], after[3])
		require.LessOrEqual(t, w.next(), int64(w.score(w.keys.Pending(), "past"))+25, "the scheduler looks for what is due")
		require.Equal(t, "10", w.Client.HGet(ctx, w.keys.Counters(), "published").Val())
		require.Equal(t, []string{"past: here", "soon: here", "plain: here", "named: here"}, w.restore(all))
		require.Equal(t, "10", w.Client.HGet(ctx, w.keys.Counters(), "published").Val())

		w.travel(3 * time.Hour)
		w.promoteAll()
		for _, group := range []string{"a", "b"} {
			require.Equal(t, []string{"past", "soon", "plain", "named"}, w.ready(group))
		}
	}, "a", "b")
}

// A message that came back, and ended, stays ended, for an hour after its due time.
func TestWhatCameBackAndEndedStaysEnded(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", 10*time.Millisecond).with(queue.Options{DelayID: "x"}), in("later", 2*time.Hour))
		all := w.cancelled("")
		require.Equal(t, []string{"x: back", "later: back"}, w.restore(all))
		w.pass(20 * time.Millisecond)
		w.promoteAll()
		s := w.sub("a")
		require.Equal(t, 1, s.ack(held(s.claim(9))...))
		require.Equal(t, []string{"x: ended", "later: here"}, w.restore(all))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "later")))
		require.Equal(t, []string{"x: ended", "later: back"}, w.restore(all), "a cancel takes its mark")

		w.travel(90 * time.Minute)
		require.Equal(t, []string{"x: back", "later: here"}, w.restore(all), "its mark is over")
		require.Empty(t, w.owned(), "a delay ID whose time is over stays free")
		w.delivers("a")
		w.travel(3 * time.Hour)
		w.delivers("a")
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken(), w.keys.Messages()).Val())
		w.publish(in("y", 2*time.Hour))
		require.Equal(t, []string{"y: back"}, w.restore(w.cancelled("")))
		require.Equal(t, []string{w.id["y"]}, w.Client.ZRange(ctx, w.keys.Restored(), 0, -1).Val(), "marks that are over go")
		require.InDelta(t, 3*time.Hour, w.Client.PTTL(ctx, w.keys.Restored()).Val(), float64(time.Minute), "no mark stays")
	}, "a")
}

// An hour counts from the return, if the message was overdue by then.
func TestAnOverdueMessageIsRememberedForAnHour(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", 10*time.Millisecond))
		all := w.cancelled("")
		w.travel(90 * time.Minute)
		all[0].At = time.UnixMilli(w.now()).Add(-90 * time.Minute) // on the real server what is stored moved
		require.Equal(t, []string{"x: back"}, w.restore(all))
		w.delivers("a")
		require.Equal(t, []string{"x: ended"}, w.restore(all))
	}, "a")
}

// A message that came back is remembered until an hour after its due time, also if it gets another.
func TestAMarkFollowsTheDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("waits", time.Hour), under(now("retries"), "n", queue.Replace, 10*time.Hour), now("called"))
		w.retryIn("a", "retries")
		w.retryIn("a", "called")
		waiting, retries := w.cancelled(""), w.cancelled("a")
		require.Equal(t, []string{"waits: back"}, w.restore(waiting))
		require.Equal(t, []string{"retries: back", "called: back"}, w.restore(retries))
		later := queue.In(5 * time.Hour)
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "waits"), later))
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "called"), later))
		require.NoError(t, w.topic.RescheduleRetries(ctx, "n", later, nil))
		for _, key := range []string{w.keys.Restored(), w.keys.RestoredRetries("a")} {
			require.InDelta(t, 6*time.Hour, w.Client.PTTL(ctx, key).Val(), float64(time.Minute), key)
		}
		w.travel(5*time.Hour + time.Second)
		w.delivers("a")
		require.Empty(t, w.stored())
		require.Equal(t, []string{"waits: ended"}, w.restore(waiting))
		require.Equal(t, []string{"retries: ended", "called: ended"}, w.restore(retries))
	}, "a")
}

// A recall takes the marks of what it takes back. Those of a group go with it.
func TestMarksGoWithWhatIsTakenBack(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "n", queue.Replace, 10*time.Hour))
		w.retryIn("a", "x")
		all := w.cancelled("a")
		require.Equal(t, []string{"x: back"}, w.restore(all))
		require.NoError(t, w.topic.CancelRetries(ctx, "n"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.RestoredRetries("a")).Val())
		require.Equal(t, []string{"x: back"}, w.restore(all))
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.RestoredRetries("a")).Val())
		require.Equal(t, []string{"x: no group"}, w.restore(all))
		w.register("a")
		require.Equal(t, []string{"x: back"}, w.restore(all))
	}, "a")
}

// The scheduler frees a delay ID of a retry that comes later.
func TestADelayIDThatCameBackWithARetryBecomesFree(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "n", queue.Replace, time.Hour))
		w.retryIn("a", "x")
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(10*time.Hour)))
		all := w.cancelled("a")
		require.Empty(t, w.owned())
		w.Client.HDel(ctx, w.keys.Scheduler(), "next")
		require.Equal(t, []string{"x: back"}, w.restore(all))
		require.Equal(t, int64(w.owned()[0].Score), w.next())
	}, "a")
}

// A retry comes back in its group alone, with its deliveries, whatever other groups do with it.
func TestRetriesComeBackInTheirGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("both"), "n", queue.Replace, 10*time.Hour), now("alone"))
		for _, g := range []string{"a", "b"} {
			w.retryIn(g, "both")
		}
		w.retryIn("a", "alone")
		b := w.sub("b")
		require.Equal(t, 1, b.ack(held(b.claim(1))...))
		owned, records := w.owned(), w.Client.HGetAll(ctx, w.keys.Deliveries("a")).Val()
		require.Len(t, owned, 1)
		require.Len(t, records, 2)

		inA := w.cancelled("a")
		require.Equal(t, []string{"both"}, w.retry("b"))
		inB := w.cancelled("b")
		require.Empty(t, w.stored())
		require.Empty(t, w.owned(), "its window ended with the last group")
		require.Equal(t, []string{"both: back", "alone: back"}, w.restore(inA))
		require.Equal(t, owned, w.owned())
		require.Empty(t, w.retry("b"))
		require.Equal(t, records, w.Client.HGetAll(ctx, w.keys.Deliveries("a")).Val())
		require.Equal(t, []string{"both: back"}, w.restore(inB))
		require.Equal(t, map[string]string{w.id["both"]: "2"}, w.Client.HGetAll(ctx, w.keys.Refs()).Val())
		require.Equal(t, []string{"both: here", "alone: here"}, w.restore(inA))

		require.Equal(t, inA, w.cancelled("a"))
		require.Equal(t, []string{"both: back", "alone: back"}, w.restore(inA), "b has one of them")
		w.travel(90 * time.Minute)
		w.promoteAll()
		require.Equal(t, []string{"both: here", "alone: here"}, w.restore(inA), "ready is not ended")
		a := w.sub("a")
		got := held(a.claim(9))
		require.Equal(t, 1, got[0].Deliveries)
		require.Equal(t, 2, a.ack(got...))
		require.Equal(t, []string{"both: here", "alone: ended"}, w.restore(inA), "b has it ready")
		require.Equal(t, []string{"both"}, w.stored())
		require.Equal(t, 1, b.ack(held(b.claim(9))...))
		require.Empty(t, w.stored())
		require.Equal(t, []string{"both: ended", "alone: ended"}, w.restore(inA))
	}, "a", "b")
}

// While a group has the message ready, nobody knows whether the group of the retry has it.
func TestARetryWaitsUntilNoGroupHasItReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.retryIn("a", "x")
		all := w.cancelled("a")
		require.Equal(t, []string{"x"}, w.ready("b"))
		require.Equal(t, []string{"x: unclear"}, w.restore(all))
		require.Empty(t, w.retry("a"))
		b := w.sub("b")
		claimed := held(b.claim(1))
		require.Equal(t, []string{"x: back"}, w.restore(all))
		require.Equal(t, 1, b.ack(claimed...))
		require.Equal(t, []string{"x"}, w.retry("a"))
		require.Equal(t, []string{"x"}, w.stored())
	}, "a", "b")
}

func TestWhatCannotComeBackSaysWhy(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("mine", 2*time.Hour), "n", queue.Replace, 0), in("x", time.Hour))
		all := w.cancelled("")
		w.publish(under(in("theirs", time.Hour), "n", queue.Replace, 0))
		require.Equal(t, []string{"x: back", "mine: clash"}, w.restore(all))
		require.Equal(t, w.id["theirs"], w.Client.HGet(ctx, w.keys.Names(), "n").Val())
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "n"}))
		require.Equal(t, []string{"x: here", "mine: back"}, w.restore(all))
		w.cancelled("")

		twins := append(all[1:2:2], all[1])
		twins[1].ID = all[0].ID
		require.Equal(t, []string{"mine: back", "x: clash"}, w.restore(twins))
		w.cancelled("")

		w.publishNow("y")
		w.retryIn("a", "y")
		all = w.cancelled("a")
		all[0].Group = "missing"
		require.Equal(t, []string{"y: no group"}, w.restore(all))
	}, "a")
}

// An occurrence comes back, unless its schedule was removed, or begun anew.
func TestOccurrencesComeBackIfTheirScheduleHasThem(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		all := w.cancelled("")
		require.Len(t, all, 1)
		name := w.name[all[0].ID]
		require.Equal(t, []string{name + ": back"}, w.restore(all))
		w.cancelled("")
		w.amend(queue.RemoveSchedule, "s")
		require.Equal(t, []string{name + ": undone"}, w.restore(all))
		require.Equal(t, "again", w.amend(queue.Put, "s", seen(2, "again")).Record.Definition)
		require.Equal(t, []string{name + ": undone"}, w.restore(all))
	}, "a")
}

// A message comes back while the takeover window has it, and outlives the window.
func TestAMessageComesBackWhileAWindowHasIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("x")
		w.retryIn("a", "x")
		all := w.cancelled("a")
		require.Equal(t, []string{"x: back"}, w.restore(all))
		require.Equal(t, []string{"x: here"}, w.restore(all))
		w.endWindow()
		w.sweepUnused()
		require.Equal(t, []string{"x"}, w.stored())
		w.travel(2 * time.Hour)
		w.promoteAll()
		s := w.sub("a")
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
		require.Empty(t, w.stored())
	})
}

// A call whose answer was lost is repeated by the client, and returns what the first did.
func TestALostAnswerOfARestoreCountsOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(in("x", time.Hour))
		all := w.cancelled("")
		runs := 0
		topic := w.hooked(redistest.Hook(func(ctx context.Context, calls []redis.Cmder, next func() error) error {
			args := calls[0].Args()
			if len(args) > 1 && queue.ScriptName(fmt.Sprint(args[1])) == "restore" {
				if runs++; runs == 1 {
					if err := next(); err != nil {
						return err
					}
				}
			}
			return next()
		}))
		found, err := topic.Restore(ctx, all, false)
		require.NoError(t, err)
		require.Equal(t, []operate.Restored{operate.CameBack}, found)
		require.Equal(t, 1, runs)
		require.Equal(t, []string{"x: here"}, w.restore(all))
	}, "a")
}

func TestNothingComesBackToAFullServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"}, "topic", "a")
	w.publish(in("x", time.Hour))
	w.publishNow("y")
	w.retryIn("a", "y")
	x, y := w.cancelled(""), w.cancelled("a")
	require.NoError(t, w.Client.ConfigSet(ctx, "maxmemory", "1").Err())
	w.unchanged(func() {
		for _, all := range [][]operate.Absent{x, y} {
			_, err := w.topic.Restore(ctx, all, false)
			require.ErrorContains(t, err, "OOM")
		}
	})
	require.NoError(t, w.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	require.Equal(t, []string{"x: back"}, w.restore(x))
	queuetest.Check(t, w.Client, w.Prefix)
}

// A retry gets its old due time back only if it was not delivered since.
func TestARetryThatWasDeliveredSinceKeepsItsDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		w.retryIn("a", "x")
		was := w.exported("a")[0]
		back := func() error {
			outcomes, err := w.topic.RescheduleWaits(ctx, []operate.Wait{{ID: was.ID, Group: "a", Due: queue.At(was.At), Record: was.Record}})
			require.NoError(t, err)
			return outcomes[0]
		}
		require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(3*time.Hour)))
		require.NoError(t, back())
		require.Equal(t, was.At.UnixMilli(), int64(w.score(w.keys.Retry("a"), "x")))
		w.travel(2 * time.Hour)
		w.promoteAll()
		w.retryIn("a", "x")
		newer := w.score(w.keys.Retry("a"), "x")
		require.ErrorIs(t, back(), operate.ErrGone)
		require.Equal(t, newer, w.score(w.keys.Retry("a"), "x"))
	}, "a")
}

// A user who may not have keys expire can do all of it. The marks stay until others drop them.
func TestMessagesComeBackWithoutThePermissionToExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rules := []any{"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-pexpire"}
	require.NoError(t, server.Client(t).Do(ctx, rules...).Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	w := newWorld(t, redistest.Server{Client: client, Prefix: "own"}, "topic", "a")
	w.publish(in("x", time.Hour).with(queue.Options{DelayID: "x"}))
	require.Equal(t, []string{"x: back"}, w.restore(w.cancelled("")))
	require.Equal(t, "2", w.Client.HGet(ctx, w.keys.Counters(), "published").Val())
	require.NoError(t, w.topic.Reschedule(ctx, byID(w, "x"), queue.In(time.Minute)))
	require.Equal(t, int64(w.score(w.keys.Pending(), "x")), int64(w.owned()[0].Score))
	require.Equal(t, int64(w.owned()[0].Score), w.next())
	require.EqualValues(t, -1, w.Client.PTTL(ctx, w.keys.Restored()).Val())
	require.NoError(t, server.Client(t).Expire(ctx, w.keys.Restored(), time.Hour).Err())
	queuetest.Check(t, client, w.Prefix) // all else is as it should be
}
