package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
)

// windowed are the options of a group with a takeover window.
func windowed(d time.Duration) queue.GroupOptions {
	options := standard
	options.Window = d
	return options
}

// join registers a group that opens or takes over a window of a minute.
func (w *world) join(group string) queue.Registered {
	w.t.Helper()
	got, err := w.topic.Join(ctx, group, windowed(time.Minute))
	require.NoError(w.t, err)
	return got
}

// window is the name of the topic's window, "" if there is none.
func (w *world) window() string {
	w.t.Helper()
	groups, err := topicOf(w.Client, w.Prefix, w.topic.Name).Groups(ctx)
	require.NoError(w.t, err)
	return groups.Window
}

// endWindow waits for the end of the window, and removes it as a scheduler does.
func (w *world) endWindow() {
	w.t.Helper()
	window := w.window()
	require.NotEmpty(w.t, window)
	var ends int64
	_, err := fmt.Sscanf(window, "window:%d", &ends)
	require.NoError(w.t, err)
	w.passUntil(ends)
	w.sweepUnused()
	require.Empty(w.t, w.window())
	require.NotContains(w.t, w.allKeys(), w.keys.Ready(window))
	require.Zero(w.t, w.end(window))
}

// sweepUnused removes what a scheduler finds out of use.
func (w *world) sweepUnused() {
	w.t.Helper()
	for unused := w.promote("scheduler|1").Unused; len(unused) > 0; unused = w.promote("scheduler|1").Unused {
		require.NoError(w.t, w.topic.FinishRemovals(ctx, unused))
	}
}

func (w *world) allKeys() []string {
	w.t.Helper()
	keys, err := w.Client.Keys(ctx, w.Prefix+":*").Result()
	require.NoError(w.t, err)
	return keys
}

// takeAll claims and acks all that is ready in a group, and returns the names.
func (w *world) takeAll(group string) []string {
	w.t.Helper()
	s, got := w.sub(group), []string{}
	for {
		claimed := s.claim(1000)
		if len(claimed.Messages) == 0 {
			return got
		}
		got = append(got, bodies(claimed)...)
		s.ack(held(claimed)...)
	}
}

func TestALaterGroupGetsWhatTheFirstOneGot(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		require.Equal(t, queue.Registered{Waited: 2}, w.join("a"))
		w.publish(in("later", time.Hour))
		w.promoteAll()
		w.publishNow("3", "4")
		require.Equal(t, []string{"1", "2", "3", "4"}, w.takeAll("a"))
		w.publishNow("5")

		require.Equal(t, queue.Registered{Taken: 5}, w.join("b"))
		require.Equal(t, []string{"a", "b"}, w.registered(), "the window is no group")
		require.Equal(t, queue.Registered{}, w.join("b"), "it is there")
		w.publishNow("6")
		require.Equal(t, []string{"5", "6"}, w.takeAll("a"))
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, w.takeAll("b"), "each once, and in order")
		require.Equal(t, queue.Registered{Taken: 6}, w.join("c"))
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, w.takeAll("c"))
	})
}

func TestAGroupThatIsMadeAnewWithinTheWindowGetsItsMessagesAgain(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.join("b")
		w.publishNow("1", "2")
		require.Equal(t, []string{"1", "2"}, w.takeAll("b"))
		require.NoError(t, w.topic.Remove(ctx, "b"))
		require.Equal(t, queue.Registered{Taken: 2}, w.join("b"))
		require.Equal(t, []string{"1", "2"}, w.takeAll("b"))
	})
}

// Nothing is left of a window that has ended, and publish and promote send no key more.
func TestTheEndOfTheWindowLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		got, err := w.topic.Join(ctx, "a", windowed(300*time.Millisecond))
		require.NoError(t, err)
		require.Zero(t, got)
		w.publishNow(names("%d", 0, 2100)...)
		require.Len(t, w.takeAll("a"), 2100)
		require.Len(t, w.stored(), 2100, "the window has them")
		w.endWindow()
		require.Empty(t, w.stored())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Refs(), w.keys.Messages(), w.keys.Idle()).Val())
		require.Equal(t, map[string]string{"a": "5 3600000 -1"}, w.Client.HGetAll(ctx, w.keys.Groups()).Val())

		got, err = w.topic.Join(ctx, "b", windowed(time.Minute))
		require.NoError(t, err)
		require.Zero(t, got, "it came too late, and it is not the first one")
		require.Empty(t, w.window())
		require.Empty(t, w.takeAll("b"))
	})
}

// Between the end of a window and its removal, nothing goes into it.
func TestAWindowThatIsOverGetsNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", windowed(100*time.Millisecond)))
		w.publishNow("1")
		window := w.window()
		w.pass(101 * time.Millisecond)
		w.publishNow("2")
		w.publish(in("3", time.Millisecond))
		w.pass(2 * time.Millisecond)
		w.promote("scheduler|1")
		require.Equal(t, []string{"1"}, w.ready(window))
		require.Equal(t, []string{"1", "2", "3"}, w.ready("a"))
		require.Equal(t, map[string]string{w.id["1"]: "2"}, w.Client.HGetAll(ctx, w.keys.Refs()).Val())
		require.Zero(t, w.join("b").Taken)
		require.Empty(t, w.ready("b"))
	})
}

func TestAFullWindowTakesNoMoreAndIsNotTakenOver(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.join("a")
		all := names("%05d", 0, 10_400)
		for part := range slices.Chunk(all[:10_200], 600) {
			w.publishNow(part...)
		}
		window := w.window()
		require.Equal(t, all[:10_200], w.ready(window), "the call that fills it goes in as a whole")
		w.publishNow(all[10_200:10_300]...)
		w.publish(in(all[10_300], time.Millisecond))
		w.pass(2 * time.Millisecond)
		w.promoteAll()
		require.Len(t, w.ready(window), 10_200)
		require.Equal(t, all[:10_301], w.ready("a"))

		require.Equal(t, queue.Registered{Missed: 10_200}, w.join("b"))
		w.publishNow("next")
		require.Equal(t, []string{"next"}, w.ready("b"))
	})
}

// A group may claim only when it has all, whatever comes in meanwhile.
func TestAGroupTakesALargeWindowOverInStepsAndIsThereAfterTheLast(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		all := names("%05d", 0, 2600)
		w.publishNow(all[:2300]...)
		w.takeAll("a")
		window, copy := w.window(), w.window()+":b"
		step := func() any {
			call := w.topic.JoinCall("b", windowed(time.Minute), window)
			w.do(call)
			return call.Reply()
		}
		for i := 1; i <= 2; i++ {
			require.Equal(t, []any{"more"}, step())
			require.Len(t, w.ready(copy), i*1000)
			require.NotContains(t, w.registered(), "b")
			s := w.sub("b")
			call := s.group.ClaimCall(s.query(10))
			w.do(call)
			require.Equal(t, []any{"unregistered"}, call.Reply())
			queuetest.Check(t, w.Client, w.Prefix)
			w.publishNow(all[2200+100*i : 2300+100*i]...)
		}
		w.expireNothing()
		require.Equal(t, "ok", step().([]any)[0])
		require.Equal(t, all[:2500], w.ready("b"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Ready(copy)).Val())
		require.Zero(t, w.end(copy))
		queuetest.Check(t, w.Client, w.Prefix)
		w.publishNow(all[2500:]...)
		require.Equal(t, all, w.takeAll("b"))
		require.Equal(t, all[2300:], w.takeAll("a"))
		require.Equal(t, queue.Registered{Taken: 2600}, w.join("c"))
		require.Equal(t, all, w.takeAll("c"))
	})
}

// A group with SingleActive takes a large window over like any other. It has no owner before the
// last step, and the first one gets all in order.
func TestAGroupWithSingleActiveTakesALargeWindowOver(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		all := names("%05d", 0, 2300)
		w.publishNow(all...)
		single := windowed(time.Minute)
		single.SingleActive = true
		call := w.topic.JoinCall("b", single, w.window())
		w.do(call)
		require.Equal(t, []any{"more"}, call.Reply())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Active()).Val())
		queuetest.Check(t, w.Client, w.Prefix)
		require.Equal(t, queue.Registered{Taken: 2300}, must(w.topic.Join(ctx, "b", single)))
		require.ErrorIs(t, w.topic.Register(ctx, "b", windowed(time.Minute)), queue.ErrGroupMode)
		s, got := w.turns("b"), []string(nil)
		for len(got) < len(all) {
			claimed := s.claim(1000)
			require.NotEmpty(t, claimed.Messages)
			got = append(got, bodies(claimed)...)
			s.ack(held(claimed)...)
		}
		require.Equal(t, all, got)
	})
}

// expireNothing is a look of a scheduler that is to find no group to remove.
func (w *world) expireNothing() {
	w.t.Helper()
	require.Empty(w.t, w.promote("scheduler|1").Unused)
}

func TestACopyWhoseProcessEndedIsRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		all := names("%05d", 0, 2300)
		w.publishNow(all...)
		w.takeAll("a")
		window := w.window()
		call := w.topic.JoinCall("b", windowed(time.Minute), window)
		w.do(call)
		require.Equal(t, []any{"more"}, call.Reply())
		name := window + ":b"
		require.Equal(t, w.end(name), w.next(), "the scheduler looks then")

		// An operator's check finds nothing wrong, and leaves the copy alone.
		queuetest.Check(t, w.Client, w.Prefix)
		require.NotZero(t, w.end(name))

		w.travel(10*time.Second + 1) // the window's name tells its end, which does not travel
		require.Equal(t, []string{name}, w.promote("scheduler|1").Unused)
		left, err := w.topic.RemoveUnused(ctx, name)
		require.NoError(t, err)
		require.Equal(t, []string(nil), left)
		require.Zero(t, w.Client.Exists(ctx, w.keys.Ready(name)).Val())
		queuetest.Check(t, w.Client, w.Prefix)

		require.Equal(t, queue.Registered{Taken: 2300}, w.join("b"), "the next one begins anew")
		require.Equal(t, all, w.takeAll("b"))
	})
}

// A removal that has begun is finished before the copy begins anew.
func TestACopyThatIsBeingRemovedIsMadeAnew(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		all := names("%05d", 0, 2800)
		w.publishNow(all...)
		w.takeAll("a")
		window := w.window()
		w.do(w.topic.JoinCall("b", windowed(time.Minute), window))
		w.do(w.topic.JoinCall("b", windowed(time.Minute), window))
		name := window + ":b"
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Idle(), redis.Z{Score: 1, Member: name}).Err())
		left, err := w.topic.RemoveUnused(ctx, name)
		require.NoError(t, err)
		require.Equal(t, []string{name}, left)
		require.Equal(t, queue.Registered{Taken: 2800}, w.join("b"))
		require.Equal(t, all, w.takeAll("b"))
		w.join("c")
		require.Equal(t, all, w.takeAll("c"))
		queuetest.Check(t, w.Client, w.Prefix)
	})
}

// half has a group in the middle of copying a window, and returns what its next step does.
func (w *world) half(all []string) (step func() error) {
	w.t.Helper()
	w.join("a")
	w.publishNow(all...)
	window := w.window()
	step = func() error {
		return queue.Do(ctx, servers.MustClient(w.Client), w.topic.JoinCall("b", windowed(time.Minute), window))
	}
	require.NoError(w.t, step())
	require.Len(w.t, w.ready(window+":b"), 1000)
	return step
}

// On a full server no step is done by half. The copy goes on when there is room.
func TestACopyOnAFullServerWaits(t *testing.T) {
	w, full := fullWorld(t)
	all := names("%05d", 0, 2300)
	step := w.half(all)
	full()
	w.unchanged(func() {
		require.ErrorIs(t, step(), refusal.ErrServerFull)
		_, err := w.topic.Join(ctx, "b", windowed(time.Minute))
		require.ErrorIs(t, err, refusal.ErrServerFull)
	})
	require.NoError(t, w.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	require.Equal(t, queue.Registered{Taken: 2300}, w.join("b"))
	require.Equal(t, all, w.takeAll("b"))
	queuetest.Check(t, w.Client, w.Prefix)
}

func TestAKeyOfAWrongTypeInTheMiddleOfACopyIsNamed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		step := w.half(names("%05d", 0, 2300))
		window := w.window()
		for _, key := range []string{w.keys.Refs(), w.keys.Ready(window), w.keys.Ready(window + ":b"), w.keys.Ready("b"), w.keys.Idle()} {
			require.NoError(t, w.Client.Do(ctx, "COPY", key, "kept", "REPLACE").Err())
			had := w.Client.Exists(ctx, key).Val()
			require.NoError(t, w.Client.Set(ctx, key, "text", 0).Err())
			w.unchanged(func() { require.ErrorContains(t, step(), key) })
			require.NoError(t, w.Client.Del(ctx, key).Err())
			if had == 1 {
				require.NoError(t, w.Client.Rename(ctx, "kept", key).Err())
			}
		}
		require.Equal(t, queue.Registered{Taken: 2300}, w.join("b"))
		queuetest.Check(t, w.Client, w.Prefix)
	})
}

func TestTheLastGroupTakesTheWindowWithIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("1", "2")
		require.Equal(t, []string{"1"}, bodies(w.sub("a").claim(1)))
		before := w.window()
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.Empty(t, w.window())
		require.Empty(t, w.Client.HGetAll(ctx, w.keys.Groups()).Val())
		w.publishNow("3")
		require.Contains(t, w.pending(), "3", "it waits for a group")

		require.Equal(t, queue.Registered{Waited: 1}, w.join("b"), "which is a first group again")
		require.NotEmpty(t, w.window())
		require.NotEqual(t, before, w.window())
		w.promoteAll()
		require.Equal(t, []string{"3"}, w.takeAll("b"))
		w.sweepUnused()
		require.Zero(t, w.Client.Exists(ctx, w.keys.Ready(before)).Val())
		require.Len(t, w.stored(), 1, "what the window of group b has")
	})
}

// A program that knows no windows may remove the last group and leave the window. What is published
// then must not end there.
func TestAWindowWithoutGroupsGetsNothing(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("1")
		window := w.window()
		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.NoError(t, w.Client.HSet(ctx, w.keys.Groups(), window, "-1 -1 -1").Err())
		require.NoError(t, w.Client.HSet(ctx, w.keys.Meta(), "groups", "OTHER").Err())
		w.publishNow("2")
		w.promote("scheduler|1")
		require.Equal(t, []string{"2"}, w.pending())
		require.NoError(t, w.topic.Register(ctx, "b", standard))
		require.Empty(t, w.window(), "else a group could take over a part of what came")
		w.promoteAll()
		require.Equal(t, []string{"2"}, w.takeAll("b"))
		w.sweepUnused()
		require.Empty(t, w.stored())
	})
}

func TestACancelledMessageDoesNotComeBack(t *testing.T) {
	type how struct{ large, byDelayID bool }
	for name, h := range map[string]how{
		"in one step": {}, "in several steps": {large: true},
		"by delay ID": {byDelayID: true}, "by delay ID, in several steps": {large: true, byDelayID: true},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.join("a")
				options := queue.Options{DelayID: "x", Window: time.Hour}
				w.publish(now("1"), now("x").with(options), now("2"))
				if h.large {
					w.publishNow(names("%d", 3, 1500)...)
				}
				s := w.sub("a")
				claimed := s.claim(3)
				s.nack(failed(&claimed.Messages[1], after(time.Hour)))
				if h.large {
					w.do(w.topic.JoinCall("b", windowed(time.Minute), w.window()))
				}
				if h.byDelayID {
					require.NoError(t, w.topic.CancelRetries(ctx, "x"))
					require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), queue.ErrNotFound)
				} else {
					require.NoError(t, w.topic.Cancel(ctx, operate.Ref{ID: w.id["x"]}))
					require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{ID: "01M8C3X7QGZV01MM3YKPVPBPTQ"}), queue.ErrNotFound)
				}
				if !h.large { // else the copy has the message, and its delay ID is taken for as long as it was to be
					w.publish(in("again", time.Hour).with(queue.Options{DelayID: "x", Mode: queue.Reject}))
				}
				s.ack(&claimed.Messages[0], &claimed.Messages[2])
				w.join("b")
				require.NotContains(t, w.takeAll("b"), "x")
				w.takeAll("a")
				queuetest.Check(t, w.Client, w.Prefix)
				require.NoError(t, w.topic.Remove(ctx, "a"))
				require.NoError(t, w.topic.Remove(ctx, "b"))
				w.sweepUnused()
				require.NotContains(t, w.stored(), "x")
				require.Len(t, w.stored(), len(w.pending()))
			})
		})
	}
}

// The window keeps the body of a message that its only group has acked.
func TestARetryThatWasAckedIsGoneThoughTheWindowHasIt(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.join("b")
		w.publish(now("x").with(queue.Options{DelayID: "x"}))
		w.retryIn("a", "x")
		s := w.sub("b")
		claimed := s.claim(1)
		require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), operate.ErrTooLate, "b has it in hand")
		s.ack(&claimed.Messages[0])
		require.NoError(t, w.topic.CancelRetries(ctx, "x"), "only a needs it")
		require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), queue.ErrNotFound)
		w.join("c")
		require.Empty(t, w.takeAll("c"))
		queuetest.Check(t, w.Client, w.Prefix)
	})
}

func TestAWindowThatEndsBeforeTheCopyIsWholeIsMissed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "a", windowed(3*time.Second)))
		w.publishNow(names("%d", 1, 1500)...)
		window := w.window()
		w.do(w.topic.JoinCall("b", windowed(time.Minute), window)) // has two thirds
		var ends int64
		_, err := fmt.Sscanf(window, "window:%d", &ends)
		require.NoError(t, err)
		w.passUntil(ends)
		got, err := w.topic.Join(ctx, "b", windowed(time.Minute))
		require.NoError(t, err)
		require.Equal(t, queue.Registered{Missed: 1499}, got)
		require.Empty(t, w.takeAll("b"))
		queuetest.Check(t, w.Client, w.Prefix)
	})
}

func TestWhoOpensAWindowAndWhoTakesItOver(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		require.NoError(t, w.topic.Register(ctx, "broadcast:1", shortLived))
		require.Empty(t, w.window(), "the setting is 0")
		w.publishNow("0")
		require.Zero(t, w.join("a"), "the first that stays opens one")
		window := w.window()
		require.NotEmpty(t, window)
		w.publishNow("1")
		require.NoError(t, w.topic.Register(ctx, "b", standard))
		require.Empty(t, w.ready("b"), "its setting is 0")
		require.NoError(t, w.topic.Register(ctx, "broadcast:2", shortLived))
		require.Empty(t, w.ready("broadcast:2"))
		single := windowed(time.Hour)
		single.SingleActive = true
		require.Equal(t, queue.Registered{Taken: 1}, must(w.topic.Join(ctx, "c", single)))
		require.Equal(t, window, w.window(), "the first one's setting counts")
		require.Equal(t, []string{"1"}, bodies(w.turns("c").claim(9)))
		require.Equal(t, []string{"0", "1"}, w.takeAll("broadcast:1"))
	})
}

// Retries and dead letters of a group are its own. A later group gets the message as it was.
func TestRetriesAndDeadLettersAreOfTheirGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("retries", "dies", "killed", "done")
		s := w.sub("a")
		claimed := s.claim(4)
		s.nack(failed(&claimed.Messages[0], after(time.Hour)), failed(&claimed.Messages[1], dead))
		s.ack(&claimed.Messages[3])
		w.join("b")
		require.Equal(t, []string{"retries", "dies", "killed", "done"}, w.takeAll("b"))
		require.Equal(t, []string{"dies"}, w.dead("a"))
		require.Equal(t, []string{"retries"}, w.retry("a"))
	})
}

// A program that knows no windows treats one as a group: it sends its keys among those of the
// others, and tells of no end.
func TestAnOlderProgramTreatsTheWindowAsAGroup(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("z")
		groups := must(w.topic.Groups(ctx))
		older := &queue.Groups{Version: groups.Version, Names: []string{groups.Window, "z"}}
		slices.Sort(older.Names)
		w.topic.Overwrite(older)
		w.publishNow("1")
		w.publish(in("2", time.Millisecond))
		w.pass(2 * time.Millisecond)
		w.promote("scheduler|1")
		require.Same(t, older, w.topic.Remembered())
		w.topic.Overwrite(nil)
		require.Equal(t, queue.Registered{Taken: 2}, w.join("a"))
		require.Equal(t, []string{"1", "2"}, w.takeAll("a"))
		require.Equal(t, []string{"1", "2"}, w.takeAll("z"))
	})
}

func TestALimitOfWaitingMessagesPassesTheWindowOver(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		limit := queue.Limit{Messages: 3}
		for i := range 5 {
			w.calls++
			require.NoError(t, w.topic.PublishWithin(ctx, "PUBLISHER", w.calls, w.make(now(fmt.Sprint(i))), limit))
			require.Len(t, w.takeAll("a"), 1)
		}
		require.Len(t, w.ready(w.window()), 5)
	})
}

// A window costs publish and promote nothing but the keys that they send, and those only while it
// is in the set.
func TestATopicWithoutAWindowSendsNoKeyMore(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		calls := w.record()
		keys := func() (n []int) {
			w.publishNow(fmt.Sprint(w.calls))
			w.promote("scheduler|1")
			for _, call := range calls.take() {
				if name := queue.ScriptName(call[1].(string)); name == "publish" || name == "promote" {
					n = append(n, len(keysOf(call)))
				}
			}
			return n
		}
		require.NoError(t, w.topic.Register(ctx, "a", windowed(200*time.Millisecond)))
		require.Equal(t, []int{16 + 2*3, 11 + 2*6}, keys())
		w.endWindow()
		w.topic.Overwrite(nil)
		calls.take()
		require.Equal(t, []int{16 + 3, 11 + 6}, keys())
	})
}

func TestNamesOfWindowsAreTold(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]bool{"window:1": true, "window:1795703095818": true, "window:1:b": true, "window:1:": true,
		"window:": false, "window": false, "window:x": false, "window:1x": false, "windows:1": false, "a:window:1": false, "": false} {
		require.Equal(t, is, queue.IsWindow(name), name)
	}
}

func TestLossOfDataOpensANewWindow(t *testing.T) {
	own(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow("1")
		require.NoError(t, w.Client.FlushAll(ctx).Err())
		w.topic.Overwrite(nil)
		w.publishNow("2")
		require.Equal(t, queue.Registered{Waited: 1}, w.join("b"))
		w.promoteAll()
		require.Equal(t, []string{"2"}, w.takeAll("b"))
		require.Equal(t, queue.Registered{Taken: 1}, w.join("a"))
		require.Equal(t, []string{"2"}, w.takeAll("a"))
	})
}

func TestDeletingATopicDeletesItsWindow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.join("a")
		w.publishNow(names("%d", 0, 1500)...)
		w.do(w.topic.JoinCall("b", windowed(time.Minute), w.window()))
		require.NoError(t, w.topic.Erase(ctx))
		for _, key := range w.allKeys() {
			require.False(t, strings.Contains(key, "{topic}") && !strings.Contains(key, ":publisher:") && !strings.Contains(key, ":claim:"), key)
		}
	})
}
