package queue_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// retries publishes a message that is due, under the delay ID "x", and has groups nack it with a
// delay of an hour.
func (w *world) retries(name string, groups ...string) {
	w.t.Helper()
	w.publish(under(now(name), "x", queue.Replace, 0))
	for _, g := range groups {
		w.retryIn(g, name)
	}
}

// retryIn has a group nack a ready message with a delay of an hour.
func (w *world) retryIn(group, name string) {
	w.t.Helper()
	s := w.sub(group)
	claimed := held(s.claim(100))
	for _, m := range claimed {
		if w.name[m.ID] == name {
			require.Equal(w.t, 1, s.nack(failed(m, after(time.Hour))))
		} else {
			require.Equal(w.t, 1, s.release(m))
		}
	}
}

func TestAllRetriesUnderADelayIDAreCancelled(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(now("other"))
		w.retryIn("a", "other")
		w.retries("x", "a", "b")
		w.retries("again", "a", "b")
		require.ErrorIs(t, w.topic.Cancel(ctx, operate.Ref{DelayID: "x"}), queue.ErrNotFound, "the names do not know it")
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Equal(t, []string{"other"}, w.retry("a"))
		require.Empty(t, w.retry("b"))
		require.Equal(t, []string{"other"}, w.stored())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Options(), w.keys.Deliveries("b")).Val())
		w.unchanged(func() {
			require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), queue.ErrNotFound)
			require.ErrorIs(t, w.topic.CancelRetries(ctx, "y"), queue.ErrNotFound)
			require.ErrorIs(t, w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil), queue.ErrNotFound)
			require.ErrorIs(t, only(w.topic.FindRetrying(ctx, "x")), queue.ErrNotFound)
		})
	}, "a", "b")
}

// A group that is done with the message does not count.
func TestRetryIsCancelledIfTheOtherGroupIsDone(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.retries("x", "a")
		b := w.sub("b")
		require.Equal(t, 1, b.ack(held(b.claim(1))...))
		found, err := w.topic.FindRetrying(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, w.id["x"], found.ID)
		require.Len(t, found.Places, 1)
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Empty(t, w.stored())
	}, "a", "b")
}

func TestRescheduledRetryKeepsItsGroupsAndDeliveries(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.retries("x", "a")
		b := w.sub("b")
		require.Equal(t, 1, b.ack(held(b.claim(1))...))
		require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(time.Minute), nil))
		require.InDelta(t, w.now()+60_000, w.score(w.keys.Retry("a"), "x"), 20_000)
		require.EqualValues(t, w.score(w.keys.Retry("a"), "x"), w.next(), "the scheduler looks in time")
		require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil))
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.ready("a"))
		require.Empty(t, w.ready("b"))
		require.Equal(t, 1, w.sub("a").claim(1).Messages[0].Deliveries)
	}, "a", "b")
}

// elsewhere has group b have a message in a state.
var elsewhere = map[string]func(w *world){
	"ready":   func(w *world) {},
	"in hand": func(w *world) { w.sub("b").claim(1) },
	"dead":    func(w *world) { w.die("b", 1) },
}

// Nothing changes, and the error names the state in each group. Get shows the places.
func TestRetryIsLeftAloneIfAnotherGroupDoesNotWait(t *testing.T) {
	for state, prepare := range elsewhere {
		t.Run(state, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.retries("x", "a")
				prepare(w)
				want := fmt.Sprintf(`too late: message %s is retrying in group "a", %s in group "b"`, w.id["x"], state)
				w.unchanged(func() {
					for name, err := range map[string]error{
						"cancel":     w.topic.CancelRetries(ctx, "x"),
						"reschedule": w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil),
					} {
						require.ErrorIs(t, err, operate.ErrTooLate, name)
						require.ErrorContains(t, err, want, name)
						require.ErrorContains(t, err, `delay ID "x" of topic "topic"`, name)
					}
				})
				found, err := w.topic.FindRetrying(ctx, "x")
				require.NoError(t, err)
				require.Equal(t, operate.Retrying, found.Places[0].State)
				require.Equal(t, map[string]string{"ready": operate.Ready, "in hand": operate.InHand, "dead": operate.Dead}[state], found.Places[1].State)

				// One such message keeps all of them.
				w.retries("later", "a")
				later := w.sub("b")
				for _, m := range held(later.claim(9)) {
					require.Equal(t, 1, later.nack(failed(m, after(time.Hour))))
				}
				if state != "ready" {
					w.unchanged(func() {
						require.ErrorContains(t, w.topic.CancelRetries(ctx, "x"), want)
						require.ErrorContains(t, w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil), want)
					})
				} else { // the claim took it out of ready
					require.NoError(t, w.topic.CancelRetries(ctx, "x"))
					require.Empty(t, w.stored())
				}
			}, "a", "b")
		})
	}
}

// By ID the message is taken from the groups that wait. If none does, the error names the states,
// too.
func TestErrTooLateNamesTheStates(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "x", queue.Replace, time.Hour))
		w.die("a", 1)
		b := w.sub("b")
		claimed := held(b.claim(1))
		states := `is dead in group "a", in hand in group "b"`
		for _, err := range []error{w.topic.Cancel(ctx, byID(w, "x")), w.topic.Reschedule(ctx, byID(w, "x"), queue.In(0))} {
			require.ErrorIs(t, err, operate.ErrTooLate)
			require.ErrorContains(t, err, "message "+w.id["x"]+` of topic "topic": too late: it `+states)
		}
		x := operate.Ref{DelayID: "x"} // its window lasts
		for _, err := range []error{w.topic.Cancel(ctx, x), w.topic.Reschedule(ctx, x, queue.In(0))} {
			require.ErrorIs(t, err, operate.ErrTooLate)
			require.ErrorContains(t, err, `delay ID "x" of topic "topic": too late: message `+w.id["x"]+" "+states)
		}
		require.Equal(t, 1, b.ack(claimed...))
		require.ErrorContains(t, w.topic.Cancel(ctx, x), `too late: message `+w.id["x"]+` is dead in group "a"`)
	}, "a", "b")
}

// With three groups, refs does not say which of two has the message in ready.
func TestGroupsThatMayHaveItReadyAreNamed(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.retries("x", "a")
		b := w.sub("b")
		require.Equal(t, 1, b.ack(held(b.claim(1))...))
		w.unchanged(func() {
			require.ErrorContains(t, w.topic.CancelRetries(ctx, "x"),
				`is retrying in group "a", ready or already done in group "b", ready or already done in group "c"`)
		})
		w.retryIn("c", "x")
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Empty(t, w.stored())
	}, "a", "b", "c")
}

// A message of the same delay ID that waits is meant by it; the old one goes on.
func TestMessageThatWaitsIsMeantAndTheRetryStays(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.retries("old", "a")
		w.publish(under(in("new", 2*time.Hour), "x", queue.Replace, 0))
		x := operate.Ref{DelayID: "x"}
		require.NoError(t, w.topic.Reschedule(ctx, x, queue.In(3*time.Hour)))
		w.unchanged(func() {
			require.ErrorIs(t, w.topic.CancelRetries(ctx, "x"), operate.ErrNamed)
			require.ErrorIs(t, w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil), operate.ErrNamed)
		})
		require.NoError(t, w.topic.Cancel(ctx, x))
		require.Equal(t, []string{"old"}, w.retry("a"))
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Empty(t, w.stored())
	}, "a")
}

// As long as its window lasts, the names know the ID of a retry.
func TestRetryIsCancelledWithinTheWindowOfItsDelayID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "x", queue.Reject, 2*time.Hour))
		w.retryIn("a", "x")
		require.ErrorIs(t, w.tryPublish(under(now("y"), "x", queue.Reject, 0)), queue.ErrExists)
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.Names(), w.keys.Taken(), w.keys.Messages()).Val(), "the name is free")
		w.publish(under(now("y"), "x", queue.Reject, 0))
	}, "a")
}

// An older retry does not hide the message that has the delay ID: a group has that one in hand.
func TestOlderRetryStaysIfTheMessageThatHasTheDelayIDIsInHand(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.retries("old", "a")
		w.publish(under(now("x"), "x", queue.Replace, time.Hour))
		s := w.sub("a")
		claimed := held(s.claim(1))
		w.unchanged(func() {
			for _, err := range []error{w.topic.CancelRetries(ctx, "x"), w.topic.RescheduleRetries(ctx, "x", queue.In(0), nil)} {
				require.ErrorIs(t, err, operate.ErrTooLate)
				require.ErrorContains(t, err, "message "+w.id["x"]+` is in hand in group "a"`)
			}
		})
		require.Equal(t, 1, s.ack(claimed...))
		require.NoError(t, w.topic.CancelRetries(ctx, "x"), "the window lasts, and its message is gone")
		require.Empty(t, w.stored())
	}, "a")
}

// between runs do before a call of a script.
type before struct {
	script string
	do     func()
}

func (b *before) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b *before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && b.do != nil && queue.ScriptName(fmt.Sprint(args[1])) == b.script {
			do := b.do
			b.do = nil
			do()
		}
		return next(ctx, cmd)
	}
}

// hooked returns the topic by a client that has a hook.
func (w *world) hooked(hook redis.Hook) *operate.Topic {
	same := w.Client.(*redis.Client).Options()
	client := redis.NewClient(&redis.Options{Addr: same.Addr, ReadTimeout: same.ReadTimeout})
	w.t.Cleanup(func() { _ = client.Close() })
	client.AddHook(hook)
	return topicOf(client, w.Prefix, w.topic.Name)
}

// The step that acts looks at all states again.
func TestWhatHappensAfterTheSearchCounts(t *testing.T) {
	for what, test := range map[string]struct {
		do   func(w *world)
		want error
	}{
		"acked": {func(w *world) {
			w.travel(2 * time.Hour)
			w.promoteAll()
			s := w.sub("a")
			s.ack(held(s.claim(1))...)
		}, queue.ErrNotFound},
		"in hand": {func(w *world) {
			w.travel(2 * time.Hour)
			w.promoteAll()
			w.sub("a").claim(1)
		}, operate.ErrTooLate},
		"published anew": {func(w *world) { w.publish(under(in("new", time.Hour), "x", queue.Replace, 0)) }, operate.ErrNamed},
		"a new group":    {func(w *world) { w.register("c") }, nil},
	} {
		t.Run(what, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.retries("x", "a")
				topic := w.hooked(&before{"recall", func() { test.do(w) }})
				require.ErrorIs(t, topic.CancelRetries(ctx, "x"), test.want)
			}, "a")
		})
	}
}

// A message that is nacked during the search has a later due time, which the search comes to.
func TestSearchOfRetriesFindsThoseThatAreNackedMeanwhile(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "x", queue.Replace, 0))
		s := w.sub("a")
		claimed := held(s.claim(1))
		var pairs []redis.Z
		for i := range 2500 {
			pairs = append(pairs, redis.Z{Score: float64(w.now() + 7_200_000), Member: fmt.Sprintf("01ARZ3NDEKTSV4RRFFQ69G%04d", i)})
		}
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Retry("a"), pairs...).Err())
		defer w.Client.ZRem(ctx, w.keys.Retry("a"), members(pairs)...)
		hook := &before{script: "seek"}
		hook.do = func() { // before the first step
			hook.do = func() { // before the second
				require.Equal(t, 1, s.nack(failed(claimed[0], after(3*time.Hour))))
			}
		}
		ids, err := w.hooked(hook).Retrying(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, []string{w.id["x"]}, ids)
	}, "a")
}

func members(pairs []redis.Z) (all []any) {
	for _, z := range pairs {
		all = append(all, z.Member)
	}
	return all
}

// Equal due times, several groups, and delay IDs that begin alike.
func TestSearchOfRetriesFindsAllAndOnlyThose(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := min(w.many(), 3200)
		for from := 0; from < n; from += 100 {
			var messages []message
			for i := from; i < from+100; i++ {
				messages = append(messages, under(now(strconv.Itoa(i)), fmt.Sprint("order:", i%50), queue.Replace, 0))
			}
			w.publish(messages...)
			for _, g := range []string{"a", "b"} {
				s := w.sub(g)
				var failures []queue.Failure
				for _, m := range held(s.claim(100)) {
					failures = append(failures, failed(m, func(f *queue.Failure) { f.Retry = queue.At(time.UnixMilli(w.start).Add(time.Hour)) }))
				}
				require.Equal(t, 100, s.nack(failures...))
			}
		}
		for _, id := range []int{3, 37} {
			ids, err := w.topic.Retrying(ctx, fmt.Sprint("order:", id))
			require.NoError(t, err)
			var want []string
			for i := id; i < n; i += 50 {
				want = append(want, w.id[strconv.Itoa(i)])
			}
			require.Equal(t, want, ids)
		}
		require.NoError(t, w.topic.CancelRetries(ctx, "order:3"))
		require.Len(t, w.stored(), n-n/50)
		require.ErrorIs(t, only(w.topic.FindRetrying(ctx, "order:3")), queue.ErrNotFound)
		found, err := w.topic.FindRetrying(ctx, "order:4")
		require.NoError(t, err)
		require.Equal(t, w.id[strconv.Itoa(n-46)], found.ID, "the last that was published")
	}, "a", "b")
}

// A dead letter that was requeued retries.
func TestRequeuedMessageIsReachedByItsDelayID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "x", queue.Replace, 0))
		w.die("a", 1)
		require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})))
		require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(time.Hour), nil))
		w.promote("s|1")
		require.Equal(t, []string{"x"}, w.retry("a"))
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Empty(t, w.stored())
	}, "a")
}

func TestRetriesOfAStreamAreReachedByTheirDelayID(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w = w.streaming(queue.StreamOptions{})
		w.publish(under(in("x", time.Minute), "x", queue.Replace, 0))
		require.NoError(t, only(w.topic.Kill(ctx, queue.StreamGroup, w.id["x"], "killed")))
		require.NoError(t, only(w.topic.Group(queue.StreamGroup).Requeue(ctx, []string{w.id["x"]}, queue.In(time.Hour))))
		require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(2*time.Hour), nil))
		require.NoError(t, only(w.topic.FindRetrying(ctx, "x")))
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Empty(t, w.stored())
		require.Empty(t, w.entries())
	})
}

func TestRetryOfAGroupWithSingleActiveIsCancelled(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.takeTurnsIn("c")
		w.publish(under(now("x"), "x", queue.Replace, 0), now("y"))
		s := w.turns("c")
		claimed := held(s.claim(2))
		require.Equal(t, 1, s.nack(failed(claimed[0], after(time.Hour))))
		require.NoError(t, w.topic.CancelRetries(ctx, "x"))
		require.Equal(t, 1, s.ack(claimed[1]))
		require.Empty(t, w.stored())
	})
}

// until is an expiry of all messages.
func until(at time.Time) operate.Expires {
	return func(queue.Options, []byte) time.Time { return at }
}

func TestRescheduleBeyondTheExpiryIsRefused(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("pending", time.Hour), "pending", queue.Replace, 0))
		w.retries("x", "a")
		ends := time.UnixMilli(w.now()).Add(2 * time.Hour)
		for due, want := range map[queue.Due]error{
			queue.At(ends.Add(-time.Millisecond)): nil,
			queue.At(ends):                        queue.ErrPastExpiry,
			queue.In(3 * time.Hour):               queue.ErrPastExpiry,
		} {
			for name, call := range map[string]func() error{
				"pending by ID": func() error { return w.topic.RescheduleWithin(ctx, byID(w, "pending"), due, until(ends)) },
				"pending by delay ID": func() error {
					return w.topic.RescheduleWithin(ctx, operate.Ref{DelayID: "pending"}, due, until(ends))
				},
				"retry by ID":       func() error { return w.topic.RescheduleWithin(ctx, byID(w, "x"), due, until(ends)) },
				"retry by delay ID": func() error { return w.topic.RescheduleRetries(ctx, "x", due, until(ends)) },
			} {
				if want == nil {
					require.NoError(t, call(), name)
					continue
				}
				w.unchanged(func() {
					err := call()
					require.ErrorIs(t, err, want, name)
					require.ErrorContains(t, err, "due at or after expires_at, which is "+ends.UTC().Format(time.RFC3339Nano), name)
				})
			}
		}
	}, "a")
}

// It is delivered however late it is.
func TestRequeuedMessageMayBeRescheduledBeyondItsExpiry(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(now("x"), "x", queue.Replace, 0))
		w.die("a", 1)
		require.NoError(t, only(w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})))
		gone := until(time.UnixMilli(w.now()).Add(-time.Hour))
		require.NoError(t, w.topic.RescheduleWithin(ctx, byID(w, "x"), queue.In(time.Hour), gone))
		w.retryIn("b", "x") // here its expiry counts
		w.unchanged(func() {
			require.ErrorIs(t, w.topic.RescheduleWithin(ctx, byID(w, "x"), queue.In(time.Hour), gone), queue.ErrPastExpiry)
			require.ErrorIs(t, w.topic.RescheduleRetries(ctx, "x", queue.In(time.Hour), gone), queue.ErrPastExpiry)
		})
		require.NoError(t, w.topic.Remove(ctx, "b"))
		require.NoError(t, w.topic.RescheduleRetries(ctx, "x", queue.In(2*time.Hour), gone))
	}, "a", "b")
}

// The expiry that was read is of the message that is rescheduled.
func TestExpiryIsReadAgainIfTheDelayIDWasReplaced(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publish(under(in("old", time.Hour), "x", queue.Replace, 0))
		topic := w.hooked(&before{"reschedule", func() { w.publish(under(in("new", time.Hour), "x", queue.Replace, 0)) }})
		expires := func(_ queue.Options, body []byte) time.Time {
			if string(body) == "new" {
				return time.UnixMilli(w.now()).Add(2 * time.Hour)
			}
			return time.Time{}
		}
		require.ErrorIs(t, topic.RescheduleWithin(ctx, operate.Ref{DelayID: "x"}, queue.In(3*time.Hour), expires), queue.ErrPastExpiry)
	}, "a")
}

// A step of the search looks at a thousand retries at most, by one read of their options. The step
// that acts runs as many commands as it has messages, whatever else retries.
func TestStepsOfTheSearchAreShort(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newWorld(t, redistest.Server{Client: in.Client(t), Prefix: "own"}, "topic", "a")
	const n = 4000
	w.retryMany(n, 1)
	commands := func() (all map[string]int, sum int) {
		t.Helper()
		info, err := w.Client.Info(ctx, "commandstats").Result()
		require.NoError(t, err)
		all = map[string]int{}
		for _, m := range regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
			calls, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			all[m[1]] = calls
			sum += calls
		}
		return all, sum
	}
	r := w.record()
	require.NoError(t, w.Client.ConfigResetStat(ctx).Err())
	ids, err := w.topic.Retrying(ctx, "order 3999")
	require.NoError(t, err)
	require.Equal(t, []string{w.id["3999"]}, ids)
	ran, _ := commands()
	steps, rank := 0, int64(-1)
	for _, args := range r.take() {
		if len(args) < 2 || queue.ScriptName(fmt.Sprint(args[1])) != "seek" {
			continue
		}
		if id := fmt.Sprint(args[len(args)-1]); id != "" {
			at, err := w.Client.ZRank(ctx, w.keys.Retry("a"), id).Result()
			require.NoError(t, err)
			require.LessOrEqual(t, at-rank, int64(1000), "retries that a step looks at")
			rank = at
		}
		steps++
	}
	require.GreaterOrEqual(t, steps, n/1000)
	require.GreaterOrEqual(t, rank, int64(n-1001), "the last step looks at the rest")
	require.LessOrEqual(t, ran["hmget"], steps)
	require.LessOrEqual(t, ran["zrange"], 16*steps, "halving finds the place")

	topic := w.hooked(&before{"recall", func() { require.NoError(t, w.Client.ConfigResetStat(ctx).Err()) }})
	require.NoError(t, topic.RescheduleRetries(ctx, "order 3999", queue.In(3*time.Hour), nil))
	_, sum := commands()
	require.LessOrEqual(t, sum, 40)
}

// retryMany has each of many messages retry in all groups, and one of every named have a delay ID.
func (w *world) retryMany(n, named int) {
	w.t.Helper()
	groups := w.registered()
	for from := 0; from < n; from += 1000 {
		var messages []message
		for i := from; i < from+1000; i++ {
			m := now(strconv.Itoa(i))
			if i%named == 0 {
				m = under(m, fmt.Sprint("order ", i), queue.Replace, 0)
			}
			messages = append(messages, m)
		}
		w.publish(messages...)
		for _, g := range groups {
			s := w.sub(g)
			for {
				claimed := held(s.claim(256))
				if len(claimed) == 0 {
					break
				}
				var failures []queue.Failure
				for _, m := range claimed {
					failures = append(failures, failed(m, after(time.Hour)))
				}
				require.Equal(w.t, len(claimed), s.nack(failures...))
			}
		}
	}
}

// BenchmarkSearchOfRetries measures the search for a delay ID among messages that retry, and how
// long the longest step keeps the server's only thread.
func BenchmarkSearchOfRetries(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		for _, named := range []int{1, 1000} { // one message of so many has a delay ID
			b.Run(fmt.Sprintf("retrying=%d/named=1 of %d", n, named), func(b *testing.B) {
				w := newWorld(b, redistest.ForBenchmark(b), "topic", "a")
				w.retryMany(n, named)
				require.NoError(b, w.Client.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err())
				longest := time.Duration(0)
				for b.Loop() {
					require.NoError(b, w.Client.SlowLogReset(ctx).Err())
					ids, err := w.topic.Retrying(ctx, "order 0")
					require.NoError(b, err)
					require.Len(b, ids, 1)
					slow, err := w.Client.SlowLogGet(ctx, 1000).Result()
					require.NoError(b, err)
					for _, s := range slow {
						longest = max(longest, s.Duration)
					}
				}
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-step")
			})
		}
	}
}
