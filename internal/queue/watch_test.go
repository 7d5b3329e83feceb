package queue_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// watch looks once for processes that are gone.
func (w *world) watch() (look queue.Look, err error) {
	for more := true; more; {
		groups, err := w.topic.Existing(ctx)
		require.NoError(w.t, err)
		call := w.topic.WatchCall(groups, w.Prefix+"-watcher|1", &look)
		if err = queue.Do(ctx, w.topic.Client(), call); err != nil {
			return look, err
		}
		if more, err = w.topic.ReadWatch(call, groups, &look); err != nil {
			return look, err
		}
	}
	return look, nil
}

// looks looks once, and returns the subscriptions that are gone.
func (w *world) looks() (gone []string) {
	w.t.Helper()
	look, err := w.watch()
	require.NoError(w.t, err)
	for _, some := range look.Gone {
		for _, worker := range some {
			require.Equal(w.t, os.Getpid(), worker.PID)
			gone = append(gone, worker.Subscription)
		}
	}
	return gone
}

// process listens on a channel until end is called.
func (w *world) process(channel string) (end func()) {
	w.t.Helper()
	listens := w.Client.Subscribe(ctx, channel)
	_, err := listens.Receive(ctx)
	require.NoError(w.t, err)
	return func() {
		require.NoError(w.t, listens.Close())
		require.Eventually(w.t.(*testing.T), func() bool { return w.Client.PubSubNumSub(ctx, channel).Val()[channel] == 0 }, patience, time.Millisecond)
	}
}

// note changes a field of the note that a subscription has left: 3 is its history, 4 since when it
// is gone.
func (s *sub) note(field int, change func(string) string) {
	s.w.t.Helper()
	key := s.w.keys.Workers(s.group.Name)
	part := strings.Split(s.w.Client.HGet(ctx, key, s.id).Val(), " ")
	part[field] = change(part[field])
	require.NoError(s.w.t, s.w.Client.HSet(ctx, key, s.id, strings.Join(part, " ")).Err())
}

// goneFor has the subscription be gone for that long already, and have claimed before.
func (s *sub) goneFor(d time.Duration) {
	s.w.t.Helper()
	leases := s.w.keys.Leases(s.group.Name)
	for id, token := range s.w.Client.HGetAll(ctx, leases).Val() {
		part := strings.Split(token, ":")
		if strings.HasPrefix(part[0], s.id) {
			part[2] = fmt.Sprint(s.w.now() - d.Milliseconds() - 1000)
			require.NoError(s.w.t, s.w.Client.HSet(ctx, leases, id, strings.Join(part, ":")).Err())
		}
	}
	s.note(4, func(text string) string {
		require.NotEqual(s.w.t, "0", text, "it is not marked as gone")
		return fmt.Sprint(s.w.now() - d.Milliseconds())
	})
}

// gone returns a subscription that was heard, has claimed messages, and whose process is gone for
// two seconds.
func (w *world) gone(group string, messages int) *sub {
	w.t.Helper()
	channel := w.Prefix + "-process"
	end := w.process(channel)
	s := w.sub(group)
	s.claim(messages, signing(channel+"|1"))
	end()
	require.Empty(w.t, w.looks())
	s.goneFor(2 * time.Second)
	return s
}

func TestWhatAGoneProcessHadInHandIsReadyAgain(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3", "4", "5")
		channel := w.Prefix + "-process"
		end := w.process(channel)
		s, other := w.sub("g"), w.sub("g")
		s.claim(2, signing(channel+"|1"))
		second := *s
		second.id = queue.SecondLane(s.id)
		second.claim(1)
		other.claim(1, signing(channel+"|2"))
		other.note(3, func(string) string { return "-" }) // the server did not hear it

		require.Empty(t, w.looks(), "it is there")
		require.Zero(t, s.gonesince())
		end()
		require.Empty(t, w.looks())
		marked := s.gonesince()
		require.Positive(t, marked)
		require.Empty(t, w.looks(), "not for long enough")
		require.Equal(t, marked, s.gonesince())
		ended, err := w.topic.Disown(ctx, "g", s.id)
		require.NoError(t, err)
		require.Zero(t, ended, "not for long enough")
		s.goneFor(2 * time.Second)
		require.Equal(t, []string{s.id}, w.looks())
		ended, err = w.topic.Disown(ctx, "g", s.id)
		require.NoError(t, err)
		require.Equal(t, 3, ended)
		require.Empty(t, w.looks(), "it is done with")
		_, err = w.topic.Expire(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"1", "2", "3"}, bodies(w.sub("g").claim(3)), "in their order")
		stats, err := w.topic.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, 3, stats.Groups[0].Counter("expired"))
		require.Equal(t, 3, stats.Groups[0].Counter("disowned"))
	}, "g")
}

// gonesince is the ms since when a subscription is noted as gone, "" or 0 if it is not.
func (s *sub) gonesince() int64 {
	var at int64
	s.note(4, func(text string) string {
		_, err := fmt.Sscan(text, &at)
		require.NoError(s.w.t, err)
		return text
	})
	return at
}

func TestLeasesThatAreToBeWholeLast(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.registerFor("g", queue.GroupOptions{MaxDeliveries: 5, WholeLeases: true})
		w.publishNow("1")
		channel := w.Prefix + "-process"
		end := w.process(channel)
		s := w.sub("g")
		s.claim(1, signing(channel+"|1"))
		end()
		require.Empty(t, w.looks())
		require.Zero(t, s.gonesince())
		w.registerFor("g", queue.GroupOptions{MaxDeliveries: 5})
		require.Empty(t, w.looks())
		require.NotZero(t, s.gonesince(), "the last subscriber's setting counts")
	})
}

func TestAProcessThatComesBackIsNotGone(t *testing.T) {
	for name, back := range map[string]func(w *world, s *sub, channel string){
		"it listens again": func(w *world, _ *sub, channel string) { w.process(channel) },
		"it shows itself": func(w *world, s *sub, channel string) {
			w.publishNow("9")
			s.claim(1, signing(channel+"|1"))
		},
		"it extends": func(w *world, s *sub, channel string) {
			held := []*queue.Leased{}
			for id, token := range w.Client.HGetAll(ctx, w.keys.Leases("g")).Val() {
				held = append(held, &queue.Leased{ID: id, Token: token})
			}
			calls := s.group.ExtendCalls(held, time.Hour)
			s.group.Attend(calls[0], s.id, queue.Sign(channel+"|1", time.Minute))
			w.do(calls...)
		},
		"the server has another history": func(_ *world, s *sub, _ string) { s.note(3, func(string) string { return "another" }) },
	} {
		t.Run(name, func(t *testing.T) {
			onReal(t, func(t *testing.T, w *world) {
				w.publishNow("1", "2")
				s := w.gone("g", 2)
				back(w, s, w.Prefix+"-process")
				ended, err := w.topic.Disown(ctx, "g", s.id)
				require.NoError(t, err)
				require.Zero(t, ended)
				require.Empty(t, w.looks())
				require.Zero(t, s.gonesince())
			}, "g")
		})
	}
}

// A standby takes the place of a holder that the server does not hear, soon after a missed event.
// For one that it hears, the standby waits a second.
func TestAHolderThatNobodyHearsIsReplacedSoon(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		channel := w.Prefix + "-holder"
		end := w.process(channel)
		w.publish(in("x", time.Hour))
		w.promote(channel + "|1")
		missed := func(ago time.Duration) {
			t.Helper()
			require.NoError(t, w.Client.HSet(ctx, w.keys.Scheduler(), "next", w.now()-ago.Milliseconds()).Err())
		}
		missed(500 * time.Millisecond)
		turn := w.promote("standby|1")
		require.Equal(t, queue.Standby, turn.Role)
		require.InDelta(t, 500*time.Millisecond, turn.Wait, float64(200*time.Millisecond))
		end()
		missed(500 * time.Millisecond)
		require.Equal(t, queue.Holder, w.promote("standby|1").Role)
	}, "g")
}

// Fresh messages wait behind overdue ones, so whoever publishes them calls the standby if need be.
func TestAPublishCallsTheStandbyOfAHolderThatNobodyHears(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		w.publish(in("x", time.Hour))
		gone := w.Prefix + "-holder"
		end := w.process(gone)
		w.promote(gone + "|1")
		w.promote(inbox.address("standby"))
		w.travel(time.Hour + 30*time.Millisecond)
		w.publishNow("y")
		w.travel(30 * time.Millisecond)
		w.publishNow("z")
		require.Empty(t, inbox.received(), "the holder is told")
		end()
		w.publishNow("z2")
		require.Len(t, inbox.received(), 1)
		require.Equal(t, queue.Holder, w.promote(inbox.address("standby")).Role)
		require.Equal(t, []string{"x", "y", "z", "z2"}, w.ready("g"))
	}, "g")
}

// While messages are leased, the holder looks each 0.8 seconds. A claim has it begin.
func TestTheHolderLooksWhileMessagesAreLeased(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		box := w.Prefix + "-box"
		w.process(box)
		holder := box + "|1"
		look := func() int64 { return w.scheduled("look") }
		soon := func(full bool) queue.Turn {
			require.NoError(t, w.Client.HIncrBy(ctx, w.keys.Scheduler(), "look", -900).Err())
			return w.promotes(holder, full)
		}
		require.False(t, w.promote(holder).Watch, "nothing is leased")
		require.Zero(t, look())
		w.publishNow("1", "2")
		s := w.sub("g")
		began := w.now()
		c := s.claim(1, lease(time.Hour))
		require.InDelta(t, began+800, look(), 200)
		require.InDelta(t, began+3600_000, w.next(), 200)
		require.False(t, w.promote(holder).Watch, "it is not time")
		first := look()
		s.claim(1, lease(time.Hour))
		require.Equal(t, first, look(), "it looks anyway")
		for _, full := range []bool{false, true} {
			turn := soon(full)
			require.True(t, turn.Watch)
			require.Equal(t, !full, turn.Partial)
			require.InDelta(t, 800*time.Millisecond, turn.Wait, float64(200*time.Millisecond))
			require.False(t, w.promotes(holder, full).Watch, "it has just looked")
			require.False(t, w.promote(box+"|2").Watch, "it is the standby")
		}
		require.NoError(t, w.Client.HSet(ctx, w.keys.Scheduler(), "look", w.now()+10*60_000).Err())
		require.True(t, w.promotes(holder, false).Watch, "the server's clock has gone back")

		w.registerFor("g", queue.GroupOptions{MaxDeliveries: 5, WholeLeases: true})
		w.promote(holder)
		require.Zero(t, look(), "leases are whole")
		w.registerFor("g", queue.GroupOptions{MaxDeliveries: 5})
		require.True(t, w.promote(holder).Watch)
		s.ack(held(c)...)
		s.ack(held(s.claim(0))...)
		for id, token := range w.Client.HGetAll(ctx, w.keys.Leases("g")).Val() {
			s.ack(&queue.Leased{ID: id, Token: token})
		}
		turn := soon(false)
		require.False(t, turn.Watch)
		require.Zero(t, look(), "nothing is leased")
	}, "g")
}

// A due message is not kept waiting by looks.
func TestALookDoesNotReplaceAPromotion(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.publishNow("1")
		w.sub("g").claim(1)
		w.promote("s|1")
		w.publish(in("2", 20*time.Millisecond))
		w.pass(30 * time.Millisecond)
		require.NoError(t, w.Client.HIncrBy(ctx, w.keys.Scheduler(), "look", -900).Err())
		turn := w.promotes("s|1", false)
		require.False(t, turn.Partial)
		require.True(t, turn.Watch)
		require.Equal(t, []string{"2"}, w.ready("g"))
	}, "g")
}

// A claim after a process was taken for gone shows that it lives.
func TestALeaseThatIsYoungerThanTheMarkStays(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		s := w.gone("g", 1)
		s.note(4, func(string) string { return fmt.Sprint(w.now() - 2000) })
		s.claim(1)
		require.NoError(t, w.Client.HSet(ctx, w.keys.Leases("g"), w.id["1"], fmt.Sprintf("%s:1:%d:1", s.id, w.now()-5000)).Err())
		ended, err := w.topic.Disown(ctx, "g", s.id)
		require.NoError(t, err)
		require.Equal(t, 1, ended)
		_, err = w.topic.Expire(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"2"}, w.unack("g"))
	}, "g")
}

// If nobody stands by, the holder calls another process.
func TestALookCallsAStandby(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		inbox := w.inbox()
		other := inbox.address("7")
		w.publishNow("1", "2")
		w.sub("g").claim(1, signing(other))
		w.promote("s|1")
		require.Empty(t, inbox.received())
		w.looks()
		require.Len(t, inbox.received(), 1)
		w.promote(other)
		w.looks()
		require.Empty(t, inbox.received(), "it stands by")
		require.Equal(t, queue.Other, w.promote("s|3").Role)
	}, "g")
}

// If the server does not say who listens, nobody looks for a minute.
func TestAServerThatDoesNotTellIsAskedSeldom(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-info").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	w := newWorld(t, redistest.Server{Client: user, Prefix: "own"}, "topic", "g")
	w.publishNow("1", "2")
	w.sub("g").claim(1, lease(time.Hour))
	w.promote("s|1")
	look, err := w.watch()
	require.NoError(t, err)
	require.True(t, look.Mute)
	turn := w.promote("s|1")
	require.False(t, turn.Watch)
	require.Greater(t, turn.Wait, 50*time.Second)
	next := w.scheduled("look")
	w.sub("g").claim(1, lease(time.Hour))
	require.Equal(t, next, w.scheduled("look"), "a claim does not bring it forward")
}

// A subscription that has ended stays off the list, whatever was under way.
func TestALateSignLeavesNoNote(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1")
		s := w.sub("g")
		s.claim(1, signing("channel|1"))
		sign := func() { require.NoError(t, s.group.Sign(ctx, s.id, queue.Sign("channel|1", time.Minute))) }
		before := w.Client.HGet(ctx, w.keys.Workers("g"), s.id).Val()
		w.pass(5 * time.Millisecond)
		sign()
		require.NotEqual(t, before, w.Client.HGet(ctx, w.keys.Workers("g"), s.id).Val())
		require.NoError(t, s.group.SignOff(ctx, s.id))
		sign()
		require.Zero(t, w.Client.Exists(ctx, w.keys.Workers("g")).Val())
	}, "g")
}

// A look takes a bounded number of subscriptions a call, and leaves none out.
func TestALookAtManySubscriptionsTakesSteps(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		channel := w.Prefix + "-process"
		end := w.process(channel)
		const groups, workers = 3, 1500
		var settle []func()
		for i := range groups {
			w.registerFor(fmt.Sprint("g", i), queue.GroupOptions{MaxDeliveries: 5})
		}
		w.publishNow("1")
		for i := range groups {
			s := w.sub(fmt.Sprint("g", i))
			claimed := held(s.claim(1, signing(channel+"|1")))
			settle = append(settle, func() { s.ack(claimed...) })
			key := w.keys.Workers(s.group.Name)
			note := w.Client.HGet(ctx, key, s.id).Val()
			var more []any
			for k := range workers - 1 {
				more = append(more, fmt.Sprint("ANOTHER", k), note)
			}
			require.NoError(t, w.Client.HSet(ctx, key, more...).Err())
		}
		end()
		require.Empty(t, w.looks())
		for i := range groups {
			key := w.keys.Workers(fmt.Sprint("g", i))
			for name, note := range w.Client.HGetAll(ctx, key).Val() {
				part := strings.Split(note, " ")
				require.NotEqual(t, "0", part[4], name)
				part[4] = fmt.Sprint(w.now() - 2000)
				require.NoError(t, w.Client.HSet(ctx, key, name, strings.Join(part, " ")).Err())
			}
		}
		all, err := w.topic.Existing(ctx)
		require.NoError(t, err)
		look, calls := queue.Look{}, 0
		for more := true; more; calls++ {
			before := len(slices.Concat(slices.Collect(maps.Values(look.Gone))...))
			call := w.topic.WatchCall(all, w.Prefix+"-watcher|1", &look)
			w.do(call)
			more, err = w.topic.ReadWatch(call, all, &look)
			require.NoError(t, err)
			require.LessOrEqual(t, len(slices.Concat(slices.Collect(maps.Values(look.Gone))...))-before, 2*1000)
		}
		require.Greater(t, calls, 3)
		require.Len(t, look.Gone, groups)
		for _, gone := range look.Gone {
			names := map[string]bool{}
			for _, worker := range gone {
				names[worker.Subscription] = true
			}
			require.Len(t, names, workers)
		}

		// The messages of the group are settled between two calls.
		look = queue.Look{}
		call := w.topic.WatchCall(all, w.Prefix+"-watcher|1", &look)
		w.do(call)
		more, err := w.topic.ReadWatch(call, all, &look)
		require.NoError(t, err)
		require.True(t, more)
		for _, ack := range settle {
			ack()
		}
		call = w.topic.WatchCall(all, w.Prefix+"-watcher|1", &look)
		w.do(call)
		more, err = w.topic.ReadWatch(call, all, &look)
		require.NoError(t, err)
		require.False(t, more)
	})
}
