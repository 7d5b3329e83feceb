package queue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func dead(f *queue.Failure) { f.Dead = true }

func TestNackWithoutDelayPutsTheMessageWhereItWas(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		s := w.sub("a")
		first := s.claim(1)
		claimed := held(s.claim(3))
		require.Equal(t, 3, s.nack(failed(claimed[0]), failed(claimed[1]), failed(claimed[2])))
		require.Equal(t, []string{"2", "3", "4", "5"}, w.ready("a"))
		require.Equal(t, 1, s.nack(failed(held(first)[0])))
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("a"))
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, w.ready("b"))
		require.Equal(t, "1 - -", w.field(w.keys.Deliveries("a"), "1"))
		require.Empty(t, w.field(w.keys.Deliveries("b"), "1"))
		again := s.claim(1).Messages[0]
		require.Equal(t, 1, again.Deliveries)
		require.Equal(t, first.Messages[0].Due, again.Due)
	}, "a", "b")
}

func TestNackWithDelayIsANewDueTime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y", "newer")
		s := w.sub("a")
		claimed := held(s.claim(2))
		instant := w.now() + 5000
		before := w.now()
		require.Equal(t, 2, s.nack(failed(claimed[0], after(time.Minute)),
			failed(claimed[1], func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(instant)) })))
		due := int64(w.score(w.keys.Retry("a"), "x"))
		require.GreaterOrEqual(t, due, before+60_000)
		require.LessOrEqual(t, due, w.now()+1+60_000)
		require.Equal(t, instant, int64(w.score(w.keys.Retry("a"), "y")))
		require.Equal(t, instant, w.next())
		require.Empty(t, w.unack("a"))
		require.Equal(t, []string{"newer"}, w.ready("a"), "newer messages pass meanwhile")
		require.Equal(t, []string{"x", "y", "newer"}, w.ready("b"))
	}, "a", "b")
}

func TestDelayOfANackIsRoundedUp(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		if w.Mini == nil {
			t.Skip("needs a clock that stands still")
		}
		w.publishNow("x")
		s := w.sub("a")
		claimed := held(s.claim(1))
		clock := time.UnixMilli(w.now())
		w.Mini.SetTime(clock.Add(time.Microsecond))
		require.Equal(t, 1, s.nack(failed(claimed[0], after(time.Nanosecond))))
		require.Equal(t, clock.Add(2*time.Millisecond).UnixMilli(), int64(w.score(w.keys.Retry("a"), "x")))
	}, "a")
}

func TestNackUntilAnInstantInThePastIsNow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		claimed := held(s.claim(1))
		require.Equal(t, 1, s.nack(failed(claimed[0], func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(1)) })))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
	}, "a")
}

func TestMessageIsDeadAfterItsLastDelivery(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x", "y")
		s := w.sub("a")
		limited := func(f *queue.Failure) { f.Limit, f.Reason = 2, "it broke\nin two" }
		require.Equal(t, 1, s.nack(failed(held(s.claim(1, lease(2*time.Hour)))[0], limited)))
		require.Equal(t, []string{"x", "y"}, w.ready("a"))
		before := w.now()
		require.Equal(t, 1, s.nack(failed(held(s.claim(1, lease(2*time.Hour)))[0], limited, after(time.Hour))))
		died := int64(w.score(w.keys.Dead("a"), "x"))
		require.GreaterOrEqual(t, died, before)
		require.LessOrEqual(t, died, w.now())
		require.Equal(t, "2 - - it broke\nin two", w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, died+standard.Retention.Milliseconds(), w.next())
		require.Equal(t, []string{"y"}, w.ready("a"))
		require.Empty(t, w.retry("a"))
		require.Equal(t, []string{"x", "y"}, w.stored())
		require.Equal(t, []string{"x", "y"}, w.ready("b"))
	}, "a", "b")
}

func TestNackMayEndAMessageWhateverTheLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], dead,
			func(f *queue.Failure) { f.Limit, f.Reason, f.DelayedFor = -1, strings.Repeat("é", 2000), "15s" })))
		require.Equal(t, []string{"x"}, w.dead("a"))
		count, flag, delayedFor, reason := queue.ParseRecord(w.field(w.keys.Deliveries("a"), "x"))
		require.Equal(t, []any{1, "-", "15s"}, []any{count, flag, delayedFor})
		require.Equal(t, strings.Repeat("é", 512), reason)
	}, "a")
}

func TestNackWithoutLimit(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		for i := range 30 {
			claimed := s.claim(1)
			require.Equal(t, i, claimed.Messages[0].Deliveries)
			require.Equal(t, 1, s.nack(failed(held(claimed)[0], func(f *queue.Failure) { f.Limit = -1 })))
		}
		require.Equal(t, []string{"x"}, w.ready("a"))
	}, "a")
}

func TestNextDeliveryGetsTheLastDelayThatWasSet(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		told := func(set, want string) {
			t.Helper()
			require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], func(f *queue.Failure) { f.DelayedFor = set })))
			claimed := s.claim(1)
			require.Equal(t, want, claimed.Messages[0].DelayedFor)
			require.Equal(t, 1, s.release(held(claimed)...))
		}
		told("", "")
		told("10s", "10s")
		told("", "10s")
		told("20s", "20s")
	}, "a")
}

func TestRepeatedNackChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("retried", "delayed", "dead")
		s := w.sub("a")
		claimed := held(s.claim(3))
		calls := s.group.NackCalls([]queue.Failure{failed(claimed[0]), failed(claimed[1], after(time.Hour)),
			failed(claimed[2], dead)})
		require.Equal(t, 3, w.count(calls...))
		require.Equal(t, []string{"retried"}, w.ready("a"))
		require.Equal(t, []string{"delayed"}, w.retry("a"))
		require.Equal(t, []string{"dead"}, w.dead("a"))
		w.unchanged(func() { require.Zero(t, w.count(calls...)) })
	}, "a", "b")
}

func TestNackWakesAsManyAsItMakesReady(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4")
		s := w.sub("a")
		claimed := held(s.claim(4))
		inbox := w.inbox()
		inbox.wait("a", "x", "y", "z")
		s.nack(failed(claimed[0]), failed(claimed[1], after(time.Hour)), failed(claimed[2], dead), failed(claimed[3]))
		require.Equal(t, []string{"x", "y"}, inbox.received())
		require.Equal(t, []string{inbox.address("z")}, w.waiters("a"))
	}, "a")
}

func TestNackTellsTheSchedulerOfAnEarlierEvent(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publishNow("1", "2", "3")
		s := w.sub("a")
		claimed := held(s.claim(3, lease(100*time.Hour)))
		w.promote(inbox.address("holder"))
		w.promote(inbox.address("standby"))
		s.nack(failed(claimed[0], dead)) // an hour's retention
		told := inbox.received()
		require.Len(t, told, 2)
		require.InDelta(t, 3600_000, wait(t, told[0], "holder"), 1)
		require.InDelta(t, 3600_050, wait(t, told[1], "standby"), 1)
		s.nack(failed(claimed[1], after(time.Minute)))
		told = inbox.received()
		require.Len(t, told, 2)
		require.InDelta(t, 60_000, wait(t, told[0], "holder"), 1)
		s.nack(failed(claimed[2], after(2*time.Minute)))
		require.Empty(t, inbox.received())
	}, "a")
}

func TestDeadForEverIsNoEvent(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		forever := queue.GroupOptions{MaxDeliveries: -1, Retention: -1}
		require.NoError(t, w.topic.Register(ctx, "a", forever))
		w.publishNow("1")
		s := w.sub("a")
		require.Equal(t, 1, w.count(s.group.NackCalls([]queue.Failure{failed(held(s.claim(1))[0], dead)})...))
		w.promote("scheduler|1")
		require.Zero(t, w.next())
		require.False(t, w.purge())
		require.Equal(t, []string{"1"}, w.dead("a"))
	})
}

func TestErrorOfTheHandlerIsKept(t *testing.T) {
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
		require.Equal(t, "1 d - the bank\nis closed", w.field(w.keys.Deliveries("a"), "again"), "it outlasts an expired lease")
	}, "a")
}

// A message that nobody could get became a dead letter without a delivery.
func TestNacksAreCountedByWhatBecomesOfTheMessages(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%d", 1, 8)...)
		s := w.sub("a")
		m := held(s.claim(7))
		postponed := failed(m[2], after(time.Hour))
		postponed.Postponed = true
		require.Equal(t, 7, s.nack(failed(m[0]), failed(m[1], after(time.Hour)), postponed, queue.Failure{Leased: m[3], Limit: 1},
			queue.Failure{Leased: m[4], Dead: true}, queue.Failure{Leased: m[5], Nobody: queue.TooLate},
			queue.Failure{Leased: m[6], Nobody: queue.Unreadable}))
		require.Equal(t, map[string]string{"nacked": "5", "retried": "2", "dead_deliveries": "1", "dead_asked": "1",
			"dead_late": "1", "dead_unmarshal": "1", "returned": "1"}, w.counted("a"))
	}, "a")
}

// counted returns what a group has counted, and the number of messages that came back in front.
func (w *world) counted(group string) map[string]string {
	counted := map[string]string{}
	for _, field := range append(slices.Clone(queue.GroupCounters), "returned") {
		if n, err := w.Client.HGet(ctx, w.keys.Stats(group), field).Result(); err == nil {
			counted[field] = n
		}
	}
	return counted
}

func TestDeathOfAnUndeliveredMessageCountsNoDelivery(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("first", "failed before", "crashed before")
		require.NoError(t, w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id["failed before"], "2 - 30s",
			w.id["crashed before"], "0 d -").Err())
		s := w.sub("a")
		for _, n := range []int{2, 1} {
			for _, m := range held(s.claim(n)) {
				require.Equal(t, 1, s.nack(failed(m, func(f *queue.Failure) { f.Nobody, f.Reason = queue.TooLate, "too late" })))
			}
		}
		require.ElementsMatch(t, []string{"first", "failed before", "crashed before"}, w.dead("a"))
		for name, want := range map[string]string{"first": "0 - - too late", "failed before": "2 - 30s too late", "crashed before": "0 d - too late"} {
			require.Equal(t, want, w.field(w.keys.Deliveries("a"), name))
		}
	}, "a")
}

// A postponed message waits, and its delivery uses up nothing. Redis knows that it was delivered.
func TestPostponedDeliveryDoesNotCount(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		before := map[string]string{"first": "", "failed": "2 - 30s", "crashed": "1 d -", "requeued": "0 r -",
			"postponed": "0 d 1m"}
		after := map[string]string{"first": "0 d -", "failed": "2 - 30s", "crashed": "1 - -", "requeued": "0 r -",
			"postponed": "0 d 1m"}
		for name, record := range before {
			w.publishNow(name)
			if record != "" {
				require.NoError(t, w.Client.HSet(ctx, w.keys.Deliveries("a"), w.id[name], record).Err())
			}
		}
		postponed := func(f *queue.Failure) { f.Postponed, f.Limit, f.Retry = true, 1, queue.In(time.Minute) }
		s := w.sub("a")
		for n := 0; n < len(before); {
			began := w.now()
			for _, m := range held(s.claim(1)) {
				require.Equal(t, 1, s.nack(failed(m, postponed)))
				due := int64(w.score(w.keys.Retry("a"), w.name[m.ID]))
				require.GreaterOrEqual(t, due, began+60_000)
				require.LessOrEqual(t, due, w.now()+1+60_000)
				n++
			}
		}
		require.Empty(t, w.dead("a"))
		for name, want := range after {
			require.Equal(t, want, w.field(w.keys.Deliveries("a"), name), name)
		}
		w.travel(time.Minute + time.Second)
		w.promoteAll()
		for _, m := range s.claim(len(before)).Messages {
			require.True(t, m.Delivered)
			require.Zero(t, m.Expiries)
		}
	}, "a")
}

// A message that was only postponed is a suspect after an expired lease, as any other, and is none
// after it is postponed again.
func TestPostponedMessageMayBecomeASuspect(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("x")
		s := w.sub("a")
		postponed := func(f *queue.Failure) { f.Postponed, f.Retry = true, queue.In(time.Millisecond) }
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], postponed)))
		w.pass(5 * time.Millisecond)
		w.promoteAll()
		require.Equal(t, []string{"x"}, bodies(s.claim(1, lease(time.Millisecond))))
		w.pass(3 * time.Millisecond)
		w.expire()
		require.NotEmpty(t, w.suspected("a", "x"))
		require.Equal(t, 1, s.nack(failed(held(s.claim(1))[0], postponed)))
		require.Equal(t, "0 d -", w.field(w.keys.Deliveries("a"), "x"))
		w.noSuspect("a")
	}, "a")
}

// Or each claim and ack would search all of them for each message, while any is retried.
func TestRecordsAreATable(t *testing.T) {
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		w := newWorld(t, server, "topic", "a")
		w.publishNow(names("%d", 1, 21)...)
		s := w.sub("a")
		for _, m := range held(s.claim(20)) {
			s.nack(failed(m, after(time.Hour)))
		}
		require.Equal(t, "hashtable", w.Client.ObjectEncoding(ctx, w.keys.Deliveries("a")).Val())
		require.Equal(t, int64(20), w.Client.HLen(ctx, w.keys.Deliveries("a")).Val())
	})
}
