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

// between is a hook that does something after the n-th script call of a client.
type between struct {
	redis.Hook
	calls int
	do    map[int]func()
	each  func(call int)
	walks func(page int) // after each page of ready that was looked through
	pages int
	reads func(reply []any, call []any)
}

func (b *between) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b *between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (b *between) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && err == nil {
			b.calls++
			if do := b.do[b.calls]; do != nil {
				do()
			}
			if b.each != nil {
				b.each(b.calls)
			}
			if reply, ok := cmd.(*redis.Cmd).Val().([]any); ok && b.reads != nil {
				b.reads(reply, cmd.Args())
			}
			if b.walks != nil && isWalk(cmd.Args()) {
				b.pages++
				b.walks(b.pages)
			}
		}
		return err
	}
}

// isWalk tells a call of inspect that takes ids from ready.
func isWalk(call []any) bool {
	argv := call[3+call[2].(int):]
	return len(argv) >= 6 && argv[2] == 1
}

// auditing audits the topic by another client, and does something after some of its script calls.
func (w *world) auditing(do map[int]func()) operate.Audit {
	w.t.Helper()
	return w.auditingBy(&between{do: do})
}

func (w *world) auditingBy(hook *between) operate.Audit {
	w.t.Helper()
	same := w.Client.(*redis.Client).Options()
	client := redis.NewClient(&redis.Options{Addr: same.Addr, ReadTimeout: same.ReadTimeout})
	defer client.Close()
	client.AddHook(hook)
	audit, err := topicOf(client, w.Prefix, "topic").Audit(ctx)
	require.NoError(w.t, err)
	return audit
}

// These are the first calls of an audit of a small topic with one group, whose messages are ready.
const (
	readGroups  = iota + 1
	readIDs     // of bodies
	readFacts   // of those
	walkedReady // from the right to the left
	askedAgain  // about those that were not seen
)

// A message is taken from ready before the audit looks through it, and comes back behind its back.
// It is not lost, wherever it comes back.
func TestMessageThatComesBackToReadyWhileItIsLookedThroughIsNotLost(t *testing.T) {
	for name, comeBack := range map[string]func(w *world, s *sub, m *queue.Leased){
		"released": func(w *world, s *sub, m *queue.Leased) { require.Equal(w.t, 1, s.release(m)) },
		"nacked":   func(w *world, s *sub, m *queue.Leased) { require.Equal(w.t, 1, s.nack(failed(m))) },
		"expired": func(w *world, s *sub, m *queue.Leased) {
			w.travel(2 * time.Hour)
			require.False(w.t, w.expire())
		},
		"nacked and promoted": func(w *world, s *sub, m *queue.Leased) {
			require.Equal(w.t, 1, s.nack(failed(m, after(time.Minute))))
			w.travel(time.Hour)
			w.promote("s|1")
		},
		"dead and requeued": func(w *world, s *sub, m *queue.Leased) {
			require.Equal(w.t, 1, s.nack(failed(m, dead)))
			require.NoError(w.t, only(s.group.Requeue(ctx, []string{m.ID})))
			w.promote("s|1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publishNow("1", "2", "3")
				s := w.sub("a")
				var m *queue.Leased
				again := 0
				audit := w.auditing(map[int]func(){
					readFacts:   func() { m = held(s.claim(1))[0] },
					walkedReady: func() { comeBack(w, s, m) },
					askedAgain:  func() { again++ },
				})
				require.Equal(t, 1, again)
				require.Empty(t, audit.Violations)
				require.Equal(t, 3, audit.Messages)
				require.ElementsMatch(t, []string{"1", "2", "3"}, w.ready("a"))
			}, "a")
		})
	}
}

func TestMessageThatIsAckedWhileItIsLookedForIsNotLost(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		s := w.sub("a")
		audit := w.auditing(map[int]func(){readFacts: func() { require.Equal(t, 2, s.ack(held(s.claim(9))...)) }})
		require.Empty(t, audit.Violations)
		require.Zero(t, audit.Unconfirmed)
	}, "a")
}

// A list that is empty before and after may have had messages meanwhile.
func TestMessageThatPassesThroughAnEmptyListIsCountedOnce(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1")
		s := w.sub("a")
		m := held(s.claim(1))[0]
		acked := 0
		audit := w.auditing(map[int]func(){
			readFacts: func() {
				require.Equal(t, 1, s.nack(failed(m, after(time.Minute))))
				w.travel(time.Hour)
				w.promote("s|1")
				require.Equal(t, []string{"1"}, w.ready("a"))
			},
			walkedReady: func() { acked = s.ack(held(s.claim(1))...) },
		})
		require.Equal(t, 1, acked)
		require.Equal(t, []string{"1"}, w.ready("b"))
		require.Empty(t, audit.Violations)
		require.Zero(t, audit.Unconfirmed)
	}, "a", "b")
}

// A message that came into a list after its mark is found, whatever else happened to the list.
func TestMissingCountOfAMessageThatComesBackToReadyIsFound(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		require.NoError(t, w.Client.HDel(ctx, w.keys.Refs(), w.id["1"]).Err())
		s := w.sub("a")
		audit := w.auditing(map[int]func(){readFacts: func() { require.Equal(t, 1, s.release(held(s.claim(1))...)) }})
		require.Len(t, audit.Violations, 1)
		require.Equal(t, operate.FaultRefs, audit.Violations[0].Fault)
		require.Equal(t, w.id["1"], audit.Violations[0].ID)
		require.NotEmpty(t, first(w.topic.Mend(ctx, audit.Violations[0])))
		require.Equal(t, "2", w.field(w.keys.Refs(), "1"))
		require.Empty(t, w.auditing(nil).Violations)
	}, "a", "b")
}

// More groups certainly have the message than are counted, whatever happened in a group whose list
// has changed.
func TestMissingCountIsFoundWhileAListChanges(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%d", 0, 100)...)
		w.publishNow("last")
		require.NoError(t, w.Client.HDel(ctx, w.keys.Refs(), w.id["last"]).Err())
		s := w.sub("c")
		audit := w.auditingBy(&between{each: func(int) { require.Equal(t, 1, s.release(held(s.claim(1))...)) }})
		require.Zero(t, audit.Unconfirmed)
		require.Len(t, audit.Violations, 1)
		require.Equal(t, w.id["last"], audit.Violations[0].ID)
		require.Equal(t, "refs says that 1 groups need it, and 3 have it", audit.Violations[0].Detail)
		require.NotEmpty(t, first(w.topic.Mend(ctx, audit.Violations[0])))
		require.Equal(t, "2", w.field(w.keys.Refs(), "last"))
		w.mendAll()
		require.Equal(t, "3", w.field(w.keys.Refs(), "last"))
	}, "a", "b", "c")
}

// A group that is done with a message after it was counted does not need it, which a look shows.
func TestMessageThatAGroupIsDoneWithMeanwhileIsNotWrong(t *testing.T) {
	for call := readFacts; call < readFacts+9; call++ {
		t.Run(fmt.Sprint("after call ", call), func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publishNow("1", "2", "3")
				s := w.sub("b")
				audit := w.auditing(map[int]func(){call: func() { require.Equal(t, 2, s.ack(held(s.claim(2))...)) }})
				require.Empty(t, audit.Violations)
				require.Zero(t, audit.Unconfirmed)
			}, "a", "b")
		})
	}
}

// While refs changes, nobody knows how many groups have a message. The next look decides, and
// if it goes on like that, nothing is said.
func TestCountThatChangesMeanwhileIsLookedAtAgain(t *testing.T) {
	for name, c := range map[string]struct {
		changes       int
		found, unsaid int
	}{
		"once":     {changes: 1, found: 1},
		"for ever": {changes: 1000, unsaid: 1},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publishNow("1", "2", "3")
				require.NoError(t, w.Client.HSet(ctx, w.keys.Refs(), w.id["3"], 5).Err())
				changed := 0
				audit := w.auditingBy(&between{each: func(call int) {
					if call > askedAgain && changed < c.changes {
						changed++
						require.NoError(t, w.Client.HIncrBy(ctx, w.keys.Refs(), w.id["3"], 1).Err())
					}
				}})
				require.Positive(t, changed)
				require.Len(t, audit.Violations, c.found)
				require.Equal(t, c.unsaid, audit.Unconfirmed)
				require.NoError(t, w.Client.HSet(ctx, w.keys.Refs(), w.id["3"], 2).Err())
			}, "a", "b")
		})
	}
}

// mendAll mends a topic in which nothing else happens.
func (w *world) mendAll() {
	w.t.Helper()
	for _, v := range w.auditing(nil).Violations {
		require.NotEmpty(w.t, first(w.topic.Mend(ctx, v)))
	}
	require.Empty(w.t, w.auditing(nil).Violations)
}

// Pushes and pops during the scan of a list hide no message that stays in it.
func TestNothingIsPassedOverWhileReadyIsUsedAtBothEnds(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%d", 0, 1500)...)
		s := w.sub("a")
		pages := 0
		audit := w.auditingBy(&between{walks: func(page int) {
			pages = page
			w.publishNow(names(fmt.Sprint("behind ", page, ":%d"), 0, 30)...)
			if page > 3 {
				return
			}
			claimed := held(s.claim(100))
			require.Equal(t, 60, s.ack(claimed[:60]...))
			require.Equal(t, 40, s.release(claimed[60:]...))
		}})
		require.Greater(t, pages, 4)
		require.Empty(t, audit.Violations)
		require.Zero(t, audit.Unconfirmed)
	}, "a")
}

// More comes back than one step may look at. Then another look decides, and if it goes on like
// that, nothing is said.
func TestUncertainViolationsAreNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		moves         int
		found, unsaid int
	}{
		"once":     {moves: 1, found: 1},
		"for ever": {moves: 1000, unsaid: 1},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publishNow("lost")
				w.publishNow(names("%d", 0, 1100)...)
				require.NoError(t, w.Client.LPop(ctx, w.keys.Ready("a")).Err())
				s := w.sub("a")
				moved := 0
				audit := w.auditingBy(&between{each: func(call int) {
					if call < readFacts || moved == c.moves {
						return
					}
					moved++
					for range 2 {
						w.do(s.group.ReleaseCalls(held(s.claim(1000)), false)...)
					}
				}})
				require.Positive(t, moved)
				require.Len(t, audit.Violations, c.found)
				require.Equal(t, c.unsaid, audit.Unconfirmed)
				audit = w.auditing(nil)
				require.Len(t, audit.Violations, 1, "when it is quiet")
				require.NoError(t, only(w.topic.Mend(ctx, audit.Violations[0])))
			}, "a")
		})
	}
}

// Mend looks again: the message that an audit found lost has come back.
func TestMessageThatIsBackIsNotMended(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2")
		entry := w.Client.LPop(ctx, w.keys.Ready("a")).Val() // by hand, so that it is lost
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		require.Equal(t, operate.FaultLost, audit.Violations[0].Fault)
		require.NoError(t, w.Client.RPush(ctx, w.keys.Ready("a"), entry).Err())
		w.unchanged(func() {
			did, err := w.topic.Mend(ctx, audit.Violations[0])
			require.NoError(t, err)
			require.Empty(t, did)
		})

		// In front, as a release would have put it.
		require.NoError(t, w.Client.LRem(ctx, w.keys.Ready("a"), 1, entry).Err())
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		require.NoError(t, w.Client.LPush(ctx, w.keys.Ready("a"), entry).Err())
		require.NoError(t, w.Client.HIncrBy(ctx, w.keys.Stats("a"), "returned", 1).Err())
		w.unchanged(func() {
			did, err := w.topic.Mend(ctx, audit.Violations[0])
			require.NoError(t, err)
			require.Empty(t, did)
		})

		// The set of groups has changed: what was looked through is not all of it.
		require.NoError(t, w.Client.LRem(ctx, w.keys.Ready("a"), 1, entry).Err())
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		w.register("b")
		did, err := w.topic.Mend(ctx, audit.Violations[0])
		require.NoError(t, err)
		require.Empty(t, did)
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		did, err = w.topic.Mend(ctx, audit.Violations[0])
		require.NoError(t, err)
		require.Len(t, did, 2)
		require.Equal(t, []string{"1"}, w.retry("b"))
	}, "a")
}

// A topic with many messages is read in pages, and ready is looked through for all of them.
func TestManyMessagesAreAudited(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		n := w.many()
		w.publishNow(names("%d", 0, n)...)
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Empty(t, audit.Violations)
		require.Equal(t, n, audit.Messages)
		require.NoError(t, w.Client.LTrim(ctx, w.keys.Ready("a"), 5, -6).Err())
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 10)
		for _, v := range audit.Violations {
			require.Equal(t, operate.FaultRefs, v.Fault, "group b has it")
		}
		require.NoError(t, w.Client.LTrim(ctx, w.keys.Ready("b"), 5, -6).Err())
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 10)
		for _, v := range audit.Violations {
			require.Equal(t, operate.FaultLost, v.Fault)
			did, err := w.topic.Mend(ctx, v)
			require.NoError(t, err)
			require.Len(t, did, 2)
		}
	}, "a", "b")
}

// The removal of a group was cut short: what the group still has is not lost to others.
func TestAuditFinishesARemovalFirst(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%04d", 0, 1500)...)
		s := w.sub("b")
		require.Equal(t, 1000, s.ack(held(s.claim(1000))...))
		require.True(t, w.removeSome("a"))
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Empty(t, audit.Violations)
		require.Equal(t, 500, audit.Messages)
		w.empty("a")
		require.Len(t, w.ready("b"), 500)
	}, "a", "b")
}

// Nobody can tell which groups need a body while one of them is being removed.
func TestMendDoesNotTakeAMessageForLostWhileAGroupIsBeingRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("lost", "few")
		require.NoError(t, w.Client.LTrim(ctx, w.keys.Ready("a"), 1, -1).Err())
		require.NoError(t, w.Client.LTrim(ctx, w.keys.Ready("b"), 1, -1).Err())
		require.NoError(t, w.Client.HDel(ctx, w.keys.Refs(), w.id["few"]).Err())
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 2)
		require.NoError(t, w.Client.ZAdd(ctx, w.keys.Idle(), redis.Z{Score: 0, Member: "c"}).Err())
		w.unchanged(func() {
			for _, v := range audit.Violations {
				did, err := w.topic.Mend(ctx, v)
				require.NoError(t, err)
				require.Empty(t, did)
			}
		})
		require.NoError(t, w.Client.ZRem(ctx, w.keys.Idle(), "c").Err())
		for _, v := range audit.Violations {
			did, err := w.topic.Mend(ctx, v)
			require.NoError(t, err)
			require.NotEmpty(t, did)
		}
	}, "a", "b")
}

// The group that is left does not count with those that were there.
func TestLostMessageOfARemovedGroupIsForgottenWithItsAck(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("lost")
		require.NoError(t, w.Client.Del(ctx, w.keys.Ready("a"), w.keys.Ready("b")).Err()) // by hand
		require.NoError(t, w.topic.Remove(ctx, "b"))
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		require.Equal(t, operate.FaultLost, audit.Violations[0].Fault)
		require.NotEmpty(t, first(w.topic.Mend(ctx, audit.Violations[0])))
		w.promoteAll()
		s := w.sub("a")
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
		queuetest.CheckDrained(t, w.Client, w.Prefix, queuetest.Live())
	}, "a", "b")
}

// Without a count, the first ack would forget the body that the other groups need.
func TestMissingCountsAreRestored(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world)
		want    string
	}{
		"ready in all": {func(*world) {}, "3"},
		"retried in all": {func(w *world) {
			for _, g := range []string{"a", "b", "c"} {
				s := w.sub(g)
				s.nack(failed(held(s.claim(1))[0], after(time.Hour)))
			}
		}, "3"},
		"in hand and ready": {func(w *world) { w.sub("a").claim(1) }, "3"},
		"in hand, done with, ready": {func(w *world) {
			s := w.sub("b")
			s.ack(held(s.claim(1))...)
			w.sub("a").claim(1)
		}, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, w *world) {
				w.publishNow("x", "y")
				c.prepare(w)
				require.NoError(t, w.Client.HDel(ctx, w.keys.Refs(), w.id["x"]).Err())
				audit, err := w.topic.Audit(ctx)
				require.NoError(t, err)
				require.Len(t, audit.Violations, 1)
				require.Equal(t, operate.FaultRefs, audit.Violations[0].Fault)
				did, err := w.topic.Mend(ctx, audit.Violations[0])
				require.NoError(t, err)
				require.Equal(t, []string{"set refs to the " + c.want + " groups that have it"}, did)
				require.Equal(t, c.want, w.field(w.keys.Refs(), "x"))
				audit, err = w.topic.Audit(ctx)
				require.NoError(t, err)
				require.Empty(t, audit.Violations)
			}, "a", "b", "c")
		})
	}
}

// A ready message may have been acked since. To count it would keep the body for nobody.
func TestReadyMessageIsNotCountedIfTheListHasChangedSince(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("w", "x", "y")
		require.NoError(t, w.Client.HDel(ctx, w.keys.Refs(), w.id["x"]).Err())
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		s := w.sub("b")
		require.Equal(t, 1, s.ack(held(s.claim(1))...))
		w.unchanged(func() {
			did, err := w.topic.Mend(ctx, audit.Violations[0])
			require.NoError(t, err)
			require.Empty(t, did)
		})
		audit, err = w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		require.NotEmpty(t, first(w.topic.Mend(ctx, audit.Violations[0])))
	}, "a", "b")
}

// first is the result of a call.
func first[T any](result T, _ error) T { return result }

// However large bodies are, a step goes through about a megabyte of them.
func TestAuditStopsTheServerForNoMoreThanSomeBytes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		if w.Mini != nil {
			t.Skip("its HSCAN returns all at once")
		}
		const size, n = 64 << 10, 200
		for i := range n {
			w.publishNow(fmt.Sprintf("%0*d", size, i))
		}
		scanned, steps := 0, 0
		audit := w.auditingBy(&between{reads: func(reply, call []any) {
			if argv := call[3+call[2].(int):]; len(argv) == 0 || argv[0] != "HSCAN" || call[3] != w.keys.Messages() {
				return
			}
			steps++
			scanned += len(reply) - 1
			// HSCAN ends with a bucket, in which there may be several, or, while the table grows,
			// with two smaller ones.
			require.LessOrEqual(t, (len(reply)-1)*size, 1<<20+20*size, "bytes that one step goes through")
		}})
		require.Empty(t, audit.Violations)
		require.Equal(t, n, audit.Messages)
		require.GreaterOrEqual(t, scanned, n)
		require.Greater(t, steps, 5)
	}, "a")
}

// Small ones go by hundreds.
func TestAuditReadsManySmallMessagesAtATime(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%d", 0, 2000)...)
		steps := 0
		w.auditingBy(&between{reads: func(reply, call []any) {
			if call[3] == w.keys.Messages() {
				steps++
			}
		}})
		require.LessOrEqual(t, steps, 5)
	}, "a")
}

// A hash that had many messages and has few is mostly room, which is looked through as well.
// Whether the server gives it back differs from version to version, so here a step asks for more
// than it may look for.
func TestAStepOfAScanLooksAHundredTimesAtMost(t *testing.T) {
	client := redistest.Start(t).Client(t)
	const n = 5000
	for _, kind := range []string{"HSCAN", "ZSCAN"} {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range n {
				if kind == "HSCAN" {
					p.HSet(ctx, kind, fmt.Sprint(i), "")
				} else {
					p.ZAdd(ctx, kind, redis.Z{Score: float64(i), Member: fmt.Sprint(i)})
				}
			}
			return nil
		})
		require.NoError(t, err)
		found, steps := map[string]bool{}, 0
		for cursor := "0"; steps == 0 || cursor != "0"; steps++ {
			require.NoError(t, client.ConfigResetStat(ctx).Err())
			reply, err := client.Eval(ctx, queue.Scripts()["scan"], []string{kind}, kind, cursor, 2*n, 1<<20).StringSlice()
			require.NoError(t, err)
			cursor = reply[0]
			for _, id := range reply[1:] {
				found[id] = true
			}
			stats, err := client.Info(ctx, "commandstats").Result()
			require.NoError(t, err)
			_, after, _ := strings.Cut(stats, "cmdstat_"+strings.ToLower(kind)+":")
			var calls int
			_, err = fmt.Sscanf(after, "calls=%d,", &calls)
			require.NoError(t, err)
			require.LessOrEqual(t, calls, 100)
		}
		require.Greater(t, steps, 1)
		require.Len(t, found, n)
	}
}
