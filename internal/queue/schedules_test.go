package queue_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// occurrence is a message of a schedule, which is due at its instant.
func occurrence(schedule string, at time.Time, guard *queue.Guard) message {
	return message{name: queue.OccurrenceID(schedule, at), due: queue.At(at),
		options: queue.Options{DelayID: queue.OccurrenceID(schedule, at), Guard: guard}}
}

func (w *world) amend(what queue.Amend, name string, change ...func(*queue.Amendment)) queue.Amended {
	w.t.Helper()
	a := queue.Amendment{What: what, Name: name, Definition: "spec"}
	for _, f := range change {
		f(&a)
	}
	done, err := w.topic.AmendNew(ctx, a)
	require.NoError(w.t, err)
	return done[0]
}

func seen(version int64, definition string) func(*queue.Amendment) {
	return func(a *queue.Amendment) { a.Seen, a.Definition = version, definition }
}

// record is the record of a schedule.
func (w *world) recurring(name string) queue.Recurring {
	w.t.Helper()
	_, _, records, err := w.topic.Schedules(ctx, "", []string{name})
	require.NoError(w.t, err)
	return records[0]
}

// follow publishes the occurrences of a schedule, each after the one before.
func (w *world) follow(r queue.Recurring, instants ...time.Time) {
	w.t.Helper()
	after := r.Cursor
	var messages []message
	for _, at := range instants {
		messages = append(messages, occurrence(r.Name, at, queue.Follows(r.Version, time.Time{}, after, at, 0)))
		after = at
	}
	w.publish(messages...)
}

func (w *world) hour(n int) time.Time {
	return time.UnixMilli(w.start).Add(time.Duration(n) * time.Hour)
}

// An occurrence that was delivered before has its turn before later ones.
func TestAHandlingThatFailedIsNext(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		handle := func(n int) *queue.Handling { return w.topic.Handle("s", "a", w.hour(n), time.Hour) }
		is := func(want bool) func(bool, error) {
			return func(free bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.Equal(t, want, free)
			}
		}
		first, second, third := handle(1), handle(2), handle(3)
		is(true)(second.Begin(ctx, 0, true))
		is(false)(first.Begin(ctx, time.Hour, true))
		is(false)(third.Begin(ctx, time.Hour, true))
		is(true)(second.Extend(ctx))
		is(false)(third.Begin(ctx, 0, true))
		require.NoError(t, second.End(ctx))
		is(false)(third.Begin(ctx, 0, true))
		require.Equal(t, "2", w.Client.HGet(ctx, w.keys.Stats("a"), "skipped").Val())
		is(true)(first.Begin(ctx, time.Hour, true))
		require.NoError(t, first.End(ctx))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Handling("s", "a")).Val())

		is(true)(second.Begin(ctx, 0, false))
		is(false)(first.Begin(ctx, time.Millisecond, false))
		require.NoError(t, second.End(ctx))
		w.pass(2 * time.Millisecond)
		is(true)(third.Begin(ctx, 0, false))
		require.NoError(t, third.End(ctx))
	}, "a")
}

func TestAnOccurrenceIsPublishedOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "n: x%").Record
		require.EqualValues(t, 1, r.Version)
		require.Equal(t, "n: x%", r.Name)
		other := topicOf(w.Client, w.Prefix, "topic")
		first, second := w.hour(1), w.hour(2)
		w.follow(r, first, second)
		stored := w.stored()
		require.Len(t, stored, 2)
		// Another process has made the same plan, and a third plan leaves an instant out.
		for _, late := range []message{
			occurrence(r.Name, first, queue.Follows(1, time.Time{}, r.Cursor, first, 0)),
			occurrence(r.Name, w.hour(4), queue.Follows(1, time.Time{}, w.hour(3), w.hour(4), 0)),
			occurrence(r.Name, w.hour(3), queue.Follows(2, time.Time{}, second, w.hour(3), 0)),
			occurrence(r.Name, w.hour(3), queue.Follows(1, time.Time{}, second, w.hour(-1), 0)),
			occurrence(r.Name, w.hour(3), queue.AskedFor(1)),
			occurrence("missing", w.hour(3), queue.Follows(1, time.Time{}, second, w.hour(3), 0)),
			occurrence("missing", w.hour(3), queue.AskedFor(1)),
		} {
			require.NoError(t, other.Publish(ctx, queue.Token(), 1, w.make(late)))
		}
		require.Equal(t, stored, w.stored())
		r = w.recurring("n: x%")
		require.Equal(t, []time.Time{first, second}, r.Waiting)
		require.Equal(t, second, r.Cursor)
		require.ElementsMatch(t, w.Client.HVals(ctx, w.keys.Options()).Val(), []string{
			"delay_id:" + queue.EncodeName(queue.OccurrenceID("n: x%", first)),
			"delay_id:" + queue.EncodeName(queue.OccurrenceID("n: x%", second)),
		}, "the guard is not stored")
		require.Equal(t, map[string]string{"published": "2", "refused_occurrences": "5"}, w.Client.HGetAll(ctx, w.keys.Counters()).Val())
	}, "a")
}

// publish says of each occurrence whether its guard took it, and why not.
func TestGuardsSayWhyTheyLeaveAnOccurrenceOut(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.amend(queue.PauseSchedule, "still")
		w.amend(queue.Put, "still")
		paused := w.amend(queue.PauseSchedule, "still").Record
		first, second := w.hour(1), w.hour(2)
		w.follow(r, first, second)
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID("s", second)}))
		w.amend(queue.PauseSchedule, "s")
		w.amend(queue.ResumeSchedule, "s")
		cursor := w.recurring("s").Cursor
		for _, test := range []struct {
			at    time.Time
			guard *queue.Guard
			want  queue.Verdict
		}{
			{w.hour(-1), queue.Follows(1, time.Time{}, w.hour(-2), w.hour(9), 0), queue.Faster},
			{w.hour(4), queue.Follows(1, time.Time{}, w.hour(3), w.hour(9), 0), queue.Apart},
			{w.hour(4), queue.Follows(1, w.hour(1), cursor, w.hour(9), 0), queue.Early},
			{w.hour(4), queue.Follows(1, time.Time{}, cursor, w.hour(-1), 0), queue.Late},
			{w.hour(4), queue.Follows(2, time.Time{}, cursor, w.hour(9), 0), queue.Changed},
			{w.hour(4), queue.AskedFor(1), queue.Faster},
			{first, queue.Follows(1, w.hour(0).Add(queue.MostAhead), cursor, first, 0), queue.Passed},
			{second, queue.Follows(1, time.Time{}, first, second, 0), queue.Cancelled},
		} {
			plain := under(in("", time.Hour), "own", queue.Replace, 0)
			messages := w.make(plain, occurrence("s", test.at, test.guard), plain)
			w.calls++
			require.NoError(t, w.topic.Publish(ctx, "PUBLISHER", w.calls, messages))
			require.Equal(t, test.want, test.guard.Verdict, "%v", test.at)
		}
		still := queue.Follows(1, time.Time{}, paused.Cursor, w.hour(1), 0)
		w.publish(occurrence("still", w.hour(1), still))
		require.Equal(t, queue.IsPaused, still.Verdict)
		require.Equal(t, 5, must(w.topic.Stats(ctx)).Counter("refused_occurrences"), "apart, early, late, changed and paused")
	}, "a")
}

// An occurrence that was due at once is the last one, and does not wait.
func TestAnOccurrenceThatIsDueAtOnceDoesNotWait(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		passed := r.Cursor.Add(-time.Millisecond)
		require.NoError(t, w.Client.HSet(ctx, w.keys.Schedules(), "s", "1 1 0 0 0 0 0 0 0 - - - spec").Err())
		w.publish(occurrence("s", passed, queue.Follows(1, time.Time{}, time.UnixMilli(1), w.hour(1), 0)))
		r = w.recurring("s")
		require.Empty(t, r.Waiting)
		require.Equal(t, passed, r.Last)
	}, "a")
}

// Nobody but its programs can take the place of an occurrence.
func TestDelayIDsOfOccurrencesAreReserved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "n: x%").Record
		w.amend(queue.Put, "gone")
		w.amend(queue.RemoveSchedule, "gone")
		w.follow(r, w.hour(1))
		for _, mode := range []queue.Mode{queue.Replace, queue.Keep, queue.Reject} {
			w.unchanged(func() {
				err := w.tryPublish(in("1", time.Hour), under(in("2", time.Hour), queue.OccurrenceID("n: x%", w.hour(1)), mode, 0))
				require.ErrorIs(t, err, queue.ErrReserved)
				require.ErrorContains(t, err, `"n: x%@`)
			})
		}
		w.publish(under(in("1", time.Hour), "n: x%@later", queue.Replace, 0), under(in("2", time.Hour), "other@1", queue.Replace, 0),
			under(in("3", time.Hour), "gone@1", queue.Replace, 0), under(in("4", time.Hour), "n: x%@1@2", queue.Replace, 0))
	}, "a")
}

// A call with such a delay ID costs no key more in a topic without schedules, unless it has the
// form.
func TestOnlyDelayIDsOfThatFormNeedTheSchedules(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"": false, "a": false, "a@b": false, "a@1b": false, "a@1": true, "@1": true, "a@1@22": true} {
		require.Equal(t, want, queue.MayBeOccurrence(id), id)
	}
}

// The server's clock was ahead, and is back.
func TestAScheduleComesBackFromTheFuture(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		ms := func(n int) string { return fmt.Sprint(w.hour(n).UnixMilli()) }
		w.publish(now("1"))
		set := func(cursor, last int, waiting ...int) {
			var list []string
			for _, n := range waiting {
				list = append(list, ms(n))
			}
			record := fmt.Sprintf("1 %s 0 0 0 0 7 0 0 %s %s - - spec", ms(cursor), ms(last), cmp.Or(strings.Join(list, ","), "-"))
			require.NoError(t, w.Client.HSet(ctx, w.keys.Schedules(), "s", record).Err())
		}
		back := func(known time.Time) queue.Amended {
			return w.amend(queue.ReturnSchedule, "s", func(a *queue.Amendment) { a.Seen, a.Known = 1, known })
		}
		set(8, 0, 8)
		w.unchanged(func() {
			require.Equal(t, w.hour(8), back(time.UnixMilli(w.now()).Add(50*time.Second)).Record.Cursor, "a failover shifts the clock by less than a minute")
		})
		set(5, 5)
		r := w.recurring("s")
		w.follow(r, w.hour(6), w.hour(7), w.hour(8))
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID("s", w.hour(6))}))
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID("s", w.hour(8))}))
		require.True(t, w.amend(queue.ReturnSchedule, "s", func(a *queue.Amendment) { a.Seen = 2 }).Changed)
		done := back(w.hour(6)) // which was delivered then
		require.Equal(t, 1, done.TakenBack)
		require.WithinDuration(t, time.UnixMilli(w.now()), done.Record.Cursor, time.Minute)
		require.Equal(t, []time.Time{w.hour(8)}, done.Record.Waiting, "it was cancelled by hand")
		require.Equal(t, 1, must(w.topic.Stats(ctx)).Counter("returned"))
		require.WithinDuration(t, time.UnixMilli(w.now()), time.UnixMilli(int64(must(w.topic.Stats(ctx)).Counter("returned_at"))), time.Minute)
		w.unchanged(func() { back(time.Time{}) })

		w.follow(done.Record, w.hour(1), w.hour(6), w.hour(8))
		require.ElementsMatch(t, []string{queue.OccurrenceID("s", w.hour(1)), queue.OccurrenceID("s", w.hour(6))}, w.pending())
	}, "a")
}

// A resume and a request wake the programs that have looked lately.
func TestAResumeWakesThePrograms(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		channel := queue.MailboxChannel(w.Prefix, "PROGRAM")
		pubsub := w.Client.Subscribe(ctx, channel)
		defer pubsub.Close()
		_, err := pubsub.Receive(ctx)
		require.NoError(t, err)
		for _, address := range []string{channel + "|1", "", channel + "|2"} {
			_, _, _, err = w.topic.Schedules(ctx, address, []string{"s"})
			require.NoError(t, err)
		}
		for _, what := range []queue.Amend{queue.PauseSchedule, queue.ResumeSchedule, queue.RunSchedule} {
			w.amend(what, "s")
			if what != queue.PauseSchedule {
				heard := []string{must(pubsub.ReceiveMessage(ctx)).Payload, must(pubsub.ReceiveMessage(ctx)).Payload}
				require.ElementsMatch(t, []string{"1", "2"}, heard)
			}
		}
		w.travel(queue.ProgramsFor)
		_, _, _, err = w.topic.Schedules(ctx, channel+"|3", nil)
		require.NoError(t, err)
		require.Equal(t, []string{channel + "|3"}, w.Client.ZRange(ctx, w.keys.Programs(), 0, -1).Val())
	})
}

func TestMessagesBesideALeftOutOccurrenceArePublished(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.publish(now("1"), occurrence("s", w.hour(1), queue.Follows(9, time.Time{}, r.Cursor, w.hour(1), 0)), in("2", time.Hour),
			occurrence("s", w.hour(1), queue.Follows(1, time.Time{}, r.Cursor, w.hour(1), 3)), under(in("3", time.Hour), "x", queue.Keep, 0))
		require.Equal(t, []string{"1"}, w.ready("a"))
		require.Len(t, w.pending(), 3)
		require.EqualValues(t, 3, w.recurring("s").Missed)
	}, "a")
}

func TestARefusedCallMovesNoCursor(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.publish(under(in("1", time.Hour), "x", queue.Reject, 0))
		o := occurrence("s", w.hour(1), queue.Follows(1, time.Time{}, r.Cursor, w.hour(1), 0))
		w.unchanged(func() {
			require.ErrorIs(t, w.tryPublish(o, under(in("2", time.Hour), "x", queue.Reject, 0)), queue.ErrExists)
		})
		require.NoError(t, w.tryPublish(o))
		require.Equal(t, w.hour(1), w.recurring("s").Cursor)
	}, "a")
}

func TestAnotherDefinitionTakesBackWhatWaits(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.follow(r, w.hour(1), w.hour(2), w.hour(3))
		w.publish(under(in("mine", time.Hour), "s@mine", queue.Keep, 0))
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID("s", w.hour(2))}))
		w.unchanged(func() {
			require.Equal(t, int64(1), w.amend(queue.Put, "s", seen(0, "spec")).Record.Version, "the same definition")
			require.True(t, w.amend(queue.Put, "s", seen(7, "other")).Changed)
		})

		done := w.amend(queue.Put, "s", seen(1, "other spec"))
		require.Equal(t, 2, done.TakenBack)
		require.Equal(t, []string{"mine"}, w.pending())
		require.Equal(t, []string{"mine"}, w.stored())
		require.Equal(t, "other spec", done.Record.Definition)
		require.EqualValues(t, 2, done.Record.Version)
		require.WithinDuration(t, time.UnixMilli(w.now()), done.Record.Cursor, time.Minute)

		w.follow(r, w.hour(1)) // a process with the old definition
		require.Equal(t, []string{"mine"}, w.pending())
		w.follow(done.Record, w.hour(1), w.hour(2), w.hour(4))
		require.ElementsMatch(t, []string{"mine", queue.OccurrenceID("s", w.hour(1)), queue.OccurrenceID("s", w.hour(4))}, w.pending(),
			"what was cancelled by hand does not come back")
		require.Equal(t, w.hour(4), w.recurring("s").Cursor)
	}, "a")
}

func TestAPausedScheduleHasNoOccurrences(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.follow(r, w.hour(1))
		require.Equal(t, 1, w.amend(queue.PauseSchedule, "s").TakenBack)
		r = w.recurring("s")
		require.False(t, r.Paused.IsZero())
		require.Equal(t, r.Paused, w.amend(queue.PauseSchedule, "s").Record.Paused)
		w.follow(r, w.hour(1))
		require.Empty(t, w.pending())
		require.False(t, w.amend(queue.RunSchedule, "s").Record.Run.IsZero())
		r = w.amend(queue.ResumeSchedule, "s").Record
		require.True(t, r.Paused.IsZero())
		w.follow(r, w.hour(1))
		require.Len(t, w.pending(), 1)

		at := r.Run
		for range 2 {
			w.publish(occurrence("s", at, queue.AskedFor(r.Version)))
			require.Equal(t, []string{queue.OccurrenceID("s", at)}, w.ready("a"), "what was asked for comes once")
		}
		require.Equal(t, w.hour(1), w.recurring("s").Cursor)
	}, "a")
}

func TestARemovedScheduleLeavesItsVersion(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		r := w.amend(queue.Put, "s").Record
		w.follow(r, w.hour(1))
		done := w.amend(queue.RemoveSchedule, "s")
		require.Equal(t, 1, done.TakenBack)
		require.True(t, done.Record.Removed)
		require.Empty(t, w.stored())
		w.follow(r, w.hour(1))
		require.Empty(t, w.stored())
		for _, what := range []queue.Amend{queue.PauseSchedule, queue.ResumeSchedule, queue.RunSchedule, queue.RemoveSchedule} {
			w.unchanged(func() {
				require.False(t, w.amend(what, "s").Record.Alive(), what)
				require.False(t, w.amend(what, "never").Record.Alive(), what)
			})
		}
		require.EqualValues(t, 3, w.amend(queue.Put, "s", seen(2, "spec")).Record.Version)
	}, "a")
}

func TestProgramsAskWhetherOthersLive(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		require.True(t, w.amend(queue.AskSchedule, "s", seen(2, "")).Changed)
		asked := w.amend(queue.AskSchedule, "s", seen(1, "")).Record.Asked
		require.False(t, asked.IsZero())
		require.Equal(t, asked, w.amend(queue.AskSchedule, "s", seen(1, "")).Record.Asked)
		for ahead, anew := range map[time.Duration]bool{50 * time.Second: false, 6 * time.Hour: true} { // the server's clock was ahead
			was := time.UnixMilli(w.now()).Add(ahead)
			record := strings.Fields(w.Client.HGet(ctx, w.keys.Schedules(), "s").Val())
			record[4] = fmt.Sprint(was.UnixMilli())
			require.NoError(t, w.Client.HSet(ctx, w.keys.Schedules(), "s", strings.Join(record, " ")).Err())
			asked = w.amend(queue.AskSchedule, "s", seen(1, "")).Record.Asked
			require.Equal(t, anew, asked.Before(was), ahead)
		}
		require.True(t, w.amend(queue.AnswerAsSchedule, "s", seen(1, "")).Record.Asked.IsZero())
	})
}

func TestSchedulesAreListedWithTheirNext(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for i := range 300 {
			r := w.amend(queue.Put, fmt.Sprint("s ", i)).Record
			if i < 2 {
				w.follow(r, w.hour(1), w.hour(2))
			}
		}
		require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID("s 1", w.hour(1))}))
		read, err := w.topic.AllSchedules(ctx)
		require.NoError(t, err)
		require.WithinDuration(t, time.UnixMilli(w.now()), read.Now, time.Minute)
		found := map[string]queue.Recurring{}
		for _, r := range read.Schedules {
			found[r.Name] = r
		}
		require.Len(t, found, 300)
		require.Equal(t, w.hour(1), found["s 0"].Next)
		require.Equal(t, w.hour(2), found["s 1"].Next)
		require.True(t, found["s 2"].Next.IsZero())
	})
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]queue.Recurring{
		"":                               {Removed: true},
		"7":                              {Version: 7, Removed: true},
		"x":                              {Damaged: true},
		"1 2":                            {Version: 1, Damaged: true},
		"1 2 0 0 0 0 x 0 0 - - - {}":     {Version: 1, Damaged: true},
		"1 2 0 0 0 0 0 0 0 - - -":        {Version: 1, Damaged: true},
		"3 2 0 0 4 5 6 9 1 7,8 - - a b":  {Version: 3, Cursor: time.UnixMilli(2), Asked: time.UnixMilli(4), Jitter: 5 * time.Millisecond, Missed: 6, Counted: time.UnixMilli(9), Last: time.UnixMilli(1), Waiting: []time.Time{time.UnixMilli(7), time.UnixMilli(8)}, Definition: "a b"},
		"3 2 9 10 4 5 6 9 1 - - - a b\n": {Version: 3, Damaged: true},
	} {
		want.Name = "s"
		require.Equal(t, want, queue.ReadRecurring("s", text), text)
	}
}

func TestACallTellsWhetherAScheduleWasAmended(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		amended := func() string {
			_, amended, _, err := w.topic.Schedules(ctx, "", nil)
			require.NoError(t, err)
			return amended
		}
		require.Empty(t, amended())
		w.amend(queue.Put, "s")
		before := amended()
		require.NotEmpty(t, before)
		w.follow(w.recurring("s"), w.hour(1))
		w.amend(queue.Put, "s")
		require.Equal(t, before, amended())
		for _, what := range []queue.Amend{queue.PauseSchedule, queue.ResumeSchedule, queue.RunSchedule, queue.RemoveSchedule} {
			w.amend(what, "s")
			require.NotEqual(t, before, amended())
			before = amended()
		}
	})
}

// A record that somebody has changed by hand keeps nobody from beginning anew.
func TestADamagedRecordIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.amend(queue.Put, "s")
		require.NoError(t, w.Client.HSet(ctx, w.keys.Schedules(), "s", "4 x").Err())
		require.False(t, w.recurring("s").Alive())
		require.False(t, w.amend(queue.PauseSchedule, "s").Record.Alive())
		require.EqualValues(t, 5, w.amend(queue.Put, "s", seen(4, "spec")).Record.Version)
	})
}

func TestAGroupHandlesOneOccurrenceAtATime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		is := func(want bool) func(bool, error) {
			return func(got bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
		first, second := w.topic.Handle("s", "a", w.hour(1), time.Hour), w.topic.Handle("s", "a", w.hour(2), time.Hour)
		is(true)(first.Begin(ctx, 0, false))
		is(false)(second.Begin(ctx, 0, false))
		is(false)(second.Extend(ctx))
		is(true)(w.topic.Handle("s", "b", w.hour(2), time.Hour).Begin(ctx, 0, false))
		is(true)(w.topic.Handle("r", "a", w.hour(2), time.Hour).Begin(ctx, 0, false))
		again := w.topic.Handle("s", "a", w.hour(1), time.Millisecond)
		is(true)(again.Begin(ctx, 0, false))
		is(false)(first.Extend(ctx))
		require.NoError(t, first.End(ctx))
		w.pass(2 * time.Millisecond)
		is(true)(second.Begin(ctx, 0, false))
		is(true)(second.Extend(ctx))
		require.NoError(t, second.End(ctx))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Handling("s", "a")).Val())
	}, "a")
}

// recur takes a schedule through every transition.
func (w *world) recur() {
	r := w.amend(queue.Put, "s").Record
	w.follow(r, w.hour(1), w.hour(2))
	w.follow(r, w.hour(1))
	w.amend(queue.RunSchedule, "s")
	w.amend(queue.PauseSchedule, "s")
	w.recurring("s")
	w.amend(queue.RemoveSchedule, "s")
	_, err := w.topic.AllSchedules(ctx)
	require.NoError(w.t, err)
	require.NoError(w.t, only(w.topic.Handle("s", "a", w.hour(1), time.Hour).Begin(ctx, 0, false)))
}

// The record tells when the last occurrence was due, through every change, and when missed ones
// were last counted.
func TestARecordTellsTheLastOccurrence(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	w := newWorld(t, redistest.Server{Client: client, Mini: mini, Prefix: "last"}, "topic", "a")
	record := func() queue.Recurring {
		all, err := w.topic.AllSchedules(ctx)
		require.NoError(t, err)
		return all.Schedules[0]
	}
	w.amend(queue.Put, "s")
	require.True(t, record().Last.IsZero())
	w.follow(record(), w.hour(1), w.hour(2))
	require.True(t, record().Last.IsZero(), "none is due")
	require.True(t, record().Counted.IsZero())
	w.pass(time.Hour)
	require.Equal(t, w.hour(1), record().Last)
	w.pass(time.Hour)
	w.promoteAll()
	require.Equal(t, w.hour(2), record().Last)
	w.amend(queue.PauseSchedule, "s")
	w.amend(queue.ResumeSchedule, "s")
	require.Equal(t, w.hour(2), record().Last)
	w.pass(5 * time.Hour)
	r := record()
	w.publish(occurrence("s", w.hour(6), queue.Follows(r.Version, time.Time{}, r.Cursor, w.hour(9), 4)))
	require.Equal(t, w.hour(6), record().Last)
	require.Equal(t, w.now(), record().Counted.UnixMilli())
	counted := record().Counted
	w.pass(time.Minute)
	w.follow(record(), w.hour(8))
	require.Equal(t, counted, record().Counted, "none was missed")
	at := w.amend(queue.RunSchedule, "s").Record.Run
	require.Equal(t, w.hour(6), record().Last)
	w.publish(occurrence("s", at, queue.AskedFor(r.Version)))
	require.Equal(t, at, record().Last)
	w.amend(queue.Put, "s", seen(r.Version, "other"))
	require.Equal(t, at, record().Last)
	require.EqualValues(t, 4, record().Missed)
}

// planned is a schedule as it should be.
type planned struct {
	version, cursor, missed int64
	last, counted           int64
	paused                  bool
	removed                 bool
	definition              string
	waiting                 map[int64]bool // instant -> it is there; false: it was cancelled by hand
}

// TestAnyOrderOfChangesOfSchedules compares schedules with a model, in any order of publishing,
// changes, cancellations and time. Processes act on what they saw some steps before.
func TestAnyOrderOfChangesOfSchedules(t *testing.T) {
	t.Parallel()
	mini, client := redistest.Embedded(t)
	topics := 0
	rapid.Check(t, func(t *rapid.T) {
		topics++
		w := newWorld(t, redistest.Server{Client: client, Mini: mini, Prefix: "model"}, fmt.Sprint("topic", topics), "a")
		names, want := []string{"s", "t %"}, map[string]*planned{}
		var stale []queue.Recurring
		ever := map[string]bool{} // occurrences that were due
		minute := time.Minute.Milliseconds()
		name := func() string { return rapid.SampledFrom(names).Draw(t, "name") }
		withdraw := func(p *planned) {
			for at, there := range p.waiting {
				if there {
					delete(p.waiting, at)
				}
			}
			p.cursor = min(p.cursor, w.now())
		}
		look := func() queue.Recurring {
			r := w.recurring(name())
			stale = append(stale, r)
			if rapid.Bool().Draw(t, "an old plan") {
				return stale[rapid.IntRange(0, len(stale)-1).Draw(t, "which")]
			}
			return r
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				w.pass(time.Duration(rapid.IntRange(0, 5).Draw(t, "minutes")) * time.Minute)
				for name, p := range want {
					for at, there := range p.waiting {
						if at <= w.now() {
							p.last = max(p.last, at)
							delete(p.waiting, at)
							if id := fmt.Sprint(name, at); there {
								require.False(t, ever[id], "%s is due twice", id)
								ever[id] = true
							}
						}
					}
				}
				w.promoteAll()
			},
			"put": func(t *rapid.T) {
				r := look()
				definition := rapid.SampledFrom([]string{"a", "b c"}).Draw(t, "definition")
				done := w.amend(queue.Put, r.Name, seen(r.Version, definition))
				p := want[r.Name]
				switch {
				case p != nil && !p.removed && p.definition == definition:
					return
				case p == nil && r.Version != 0, p != nil && p.version != r.Version:
					require.True(t, done.Changed)
					return
				case p == nil:
					p = &planned{cursor: w.now(), waiting: map[int64]bool{}}
					want[r.Name] = p
				case p.removed:
					*p = planned{version: p.version, cursor: w.now(), waiting: map[int64]bool{}}
				default:
					withdraw(p)
				}
				p.version, p.definition = p.version+1, definition
			},
			"pause": func(t *rapid.T) {
				n := name()
				w.amend(queue.PauseSchedule, n)
				if p := want[n]; p != nil && !p.removed {
					withdraw(p)
					p.paused = true
				}
			},
			"resume": func(t *rapid.T) {
				n := name()
				w.amend(queue.ResumeSchedule, n)
				if p := want[n]; p != nil && p.paused {
					p.paused, p.cursor = false, max(p.cursor, w.now())
				}
			},
			"remove": func(t *rapid.T) {
				n := name()
				w.amend(queue.RemoveSchedule, n)
				if p := want[n]; p != nil && !p.removed {
					*p = planned{version: p.version + 1, removed: true}
				}
			},
			"publish": func(t *rapid.T) {
				r := look()
				at := r.Cursor.Truncate(time.Minute).UnixMilli() + minute*rapid.Int64Range(1, 4).Draw(t, "minutes")
				latest := at + minute*rapid.Int64Range(0, 1).Draw(t, "late")
				w.publish(occurrence(r.Name, time.UnixMilli(at), queue.Follows(r.Version, time.Time{}, r.Cursor, time.UnixMilli(latest), 1)))
				p := want[r.Name]
				if p == nil || p.removed || p.paused || p.version != r.Version || p.cursor != r.Cursor.UnixMilli() || w.now() > latest {
					return
				}
				p.cursor, p.missed, p.counted = at, p.missed+1, w.now()
				if at <= w.now() {
					p.last = max(p.last, at)
				}
				if _, cancelled := p.waiting[at]; !cancelled && at > w.now() {
					p.waiting[at] = true
				} else if !cancelled {
					id := fmt.Sprint(r.Name, at)
					require.False(t, ever[id], "%s is due twice", id)
					ever[id] = true
				}
			},
			"cancel": func(t *rapid.T) {
				n := name()
				p := want[n]
				if p == nil || len(p.waiting) == 0 {
					t.Skip()
				}
				var instants []int64
				for at, there := range p.waiting {
					if there {
						instants = append(instants, at)
					}
				}
				if len(instants) == 0 {
					t.Skip()
				}
				slices.Sort(instants)
				at := rapid.SampledFrom(instants).Draw(t, "at")
				require.NoError(t, w.topic.Cancel(ctx, operate.Ref{DelayID: queue.OccurrenceID(n, time.UnixMilli(at))}))
				p.waiting[at] = false
			},
			"": func(t *rapid.T) {
				var pending []string
				all, err := w.topic.AllSchedules(ctx)
				require.NoError(t, err)
				for _, r := range all.Schedules {
					require.Equal(t, want[r.Name].last, milliseconds(r.Last))
					require.Equal(t, want[r.Name].counted, milliseconds(r.Counted))
				}
				for n, p := range want {
					r := w.recurring(n)
					require.Equal(t, p.version, r.Version)
					require.Equal(t, p.removed, r.Removed)
					if p.removed {
						continue
					}
					require.Equal(t, p.cursor, r.Cursor.UnixMilli())
					require.Equal(t, p.paused, !r.Paused.IsZero())
					require.Equal(t, p.missed, r.Missed)
					require.Equal(t, p.definition, r.Definition)
					for at, there := range p.waiting {
						if there {
							pending = append(pending, queue.OccurrenceID(n, time.UnixMilli(at)))
						}
					}
				}
				found := slices.DeleteFunc(w.pending(), func(n string) bool { return !strings.Contains(n, "@") })
				require.ElementsMatch(t, pending, found)
			},
		})
	})
}

// milliseconds returns the Unix time, 0 for the zero time.
func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
