package publish

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// fakeRedis answers each call after a second, as answer says, and notes what it was sent.
type fakeRedis struct {
	calls    [][]string // bodies of each
	patience []time.Duration
	answer   func(call int) error
}

func (r *fakeRedis) send(messages []queue.Message, _ []*Batch, patience time.Duration) error {
	var bodies []string
	for _, m := range messages {
		bodies = append(bodies, string(m.Body))
	}
	r.calls, r.patience = append(r.calls, bodies), append(r.patience, patience)
	time.Sleep(time.Second)
	if r.answer != nil {
		return r.answer(len(r.calls))
	}
	return nil
}

// world is a line to a fake Redis, in a bubble.
type world struct {
	*testing.T
	redis    fakeRedis
	line     line
	batches  batches
	underWay sync.WaitGroup
}

func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		w.line = line{send: w.redis.send, patience: time.Minute, underWay: &w.underWay}
		test(w)
		w.underWay.Wait()
		require.False(t, w.line.joining.busy)
		require.Empty(t, w.line.joining.waiting)
	})
}

// publish begins a Publish call, and returns where its error comes.
func (w *world) publish(ctx context.Context, body string) <-chan error {
	result := make(chan error, 1)
	go func() {
		b := w.batches.get(1)
		b.Messages[0].Body = []byte(body)
		result <- w.line.publish(ctx, b)
	}()
	synctest.Wait()
	return result
}

func TestALoneCallMakesNoGoroutine(t *testing.T) {
	var w world
	before := runtime.NumGoroutine()
	w.line = line{underWay: &w.underWay, send: func([]queue.Message, []*Batch, time.Duration) error {
		require.Equal(t, before, runtime.NumGoroutine())
		return nil
	}}
	b := w.batches.get(1)
	require.NoError(t, w.line.publish(t.Context(), b))
	require.Equal(t, before, runtime.NumGoroutine())
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = w.line.publish(t.Context(), b) }), 1.0)
}

func TestCallsThatComeMeanwhileGoTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		var results []<-chan error
		for i := range 5 {
			results = append(results, w.publish(w.Context(), fmt.Sprint(i)))
		}
		for _, result := range results {
			require.NoError(w, <-result)
		}
		require.Equal(w, [][]string{{"0"}, {"1", "2", "3", "4"}}, w.redis.calls)
	})
}

func TestAWaitingCallIsTakenBackWhenItsContextEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithTimeout(w.Context(), time.Second/2)
		defer cancel()
		first, second, third := w.publish(ctx, "first"), w.publish(ctx, "second"), w.publish(w.Context(), "third")
		require.ErrorIs(w, <-second, context.DeadlineExceeded)
		require.NoError(w, <-first, "it was under way")
		require.NoError(w, <-third)
		require.Equal(w, [][]string{{"first"}, {"third"}}, w.redis.calls)
	})
}

func TestACallUnderWayIsTakenBackIfItIsRefusedForAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			if call == 2 {
				return &queue.Refusal{Room: 1}
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second/2) // during the second call
		defer cancel()
		alone := w.publish(w.Context(), "alone")
		limited, other := w.publish(ctx, "limited"), w.publish(w.Context(), "other")
		require.NoError(w, <-alone)
		require.ErrorIs(w, <-limited, context.DeadlineExceeded)
		require.NoError(w, <-other)
		require.Equal(w, [][]string{{"alone"}, {"limited", "other"}, {"other"}}, w.redis.calls)
	})
}

// A context may have ended before its caller has noticed that. The line asks it without the mutex,
// because it may be a user's.
func TestContextsAreAskedWithoutTheMutex(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			if call == 2 {
				return &queue.Refusal{Room: 1}
			}
			return nil
		}
		ctx := &endedContext{Context: w.Context(), line: &w.line}
		alone, other := w.publish(w.Context(), "alone"), w.publish(w.Context(), "other")
		ended := w.publish(ctx, "ended")
		require.NoError(w, <-alone)
		require.Equal(w, errEnded, <-ended)
		require.NoError(w, <-other)
		require.False(w, ctx.locked)
		require.Equal(w, [][]string{{"alone"}, {"other", "ended"}, {"other"}}, w.redis.calls)
	})
}

var errEnded = errors.New("ended")

// endedContext is a user's context that has ended, and notes whether the line was locked when it
// was asked.
type endedContext struct {
	context.Context
	line   *line
	locked bool
}

func (c *endedContext) Done() <-chan struct{} { return nil }

func (c *endedContext) Err() error {
	if c.line.mu.TryLock() {
		c.line.mu.Unlock()
	} else {
		c.locked = true
	}
	return errEnded
}

// A hook of the client may call t.FailNow.
func TestAnExitInAJoinedCallIsAnErrorForEachCaller(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			if call == 2 {
				runtime.Goexit()
			}
			return nil
		}
		first := w.publish(w.Context(), "first")
		second, third := w.publish(w.Context(), "second"), w.publish(w.Context(), "third")
		require.NoError(w, <-first)
		err := <-second
		require.ErrorContains(w, err, "a call to Redis called runtime.Goexit")
		require.ErrorIs(w, err, queue.ErrMaybePublished)
		require.ErrorContains(w, <-third, "runtime.Goexit")
		require.NoError(w, <-w.publish(w.Context(), "fourth"))
	})
}

func TestAnExitInALoneCallIsItsCallersAndOthersGoOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			if call == 1 {
				runtime.Goexit()
			}
			return nil
		}
		exited := make(chan struct{})
		go func() {
			defer close(exited)
			_ = w.line.publish(w.Context(), w.batches.get(1))
		}()
		synctest.Wait()
		other := w.publish(w.Context(), "other")
		<-exited
		require.NoError(w, <-other)
	})
}

func TestBatchesThatWerePutBackWaitForReplicasOnlyOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			switch call {
			case 2:
				return &queue.Refusal{Twice: []int{1}, Room: 9}
			case 3:
				return queue.ErrNotReplicated
			}
			return nil
		}
		first, second, third := w.publish(w.Context(), "first"), w.publish(w.Context(), "second"), w.publish(w.Context(), "third")
		require.NoError(w, <-first)
		require.ErrorIs(w, <-second, queue.ErrNotReplicated)
		require.NoError(w, <-third)
		require.NoError(w, <-w.publish(w.Context(), "fourth"))
		require.Equal(w, []time.Duration{time.Minute, time.Minute, time.Minute, 0, time.Minute}, w.redis.patience)
	})
}

// The next call may be long after, so the memory in which calls are joined must not keep bodies
// until then.
func TestMemoryForJoinedCallsKeepsNothing(t *testing.T) {
	failure := errors.New("network")
	l := line{send: func([]queue.Message, []*Batch, time.Duration) error { return failure }}
	room := make([]queue.Message, 0, 3)
	body := queue.Message{ID: "id", Body: []byte("body")}
	together := []*Batch{{Messages: []queue.Message{body, body}}, {Messages: []queue.Message{body}}}

	done, got := l.call(together, room)

	require.Equal(t, together, done)
	require.Empty(t, got)
	require.Same(t, &room[:1][0], &got[:1][0], "the next call uses it again")
	require.Equal(t, make([]queue.Message, 3), got[:3])
	for _, b := range together {
		require.Equal(t, failure, b.err)
		require.Equal(t, body, b.Messages[0], "which is the caller's")
	}
}

// Answered callers come back late if other goroutines keep the processors busy.
func TestTheLineDoesNotWaitWhereCallersComeBackLate(t *testing.T) {
	var c comeback
	for _, wait := range []time.Duration{time.Second, time.Second, time.Millisecond, 1100 * time.Microsecond, time.Second} {
		c.took(10, wait)
		require.Zero(t, c.skip)
	}
	c.took(10, 1100*time.Microsecond)
	require.Equal(t, 1000, c.skip)

	synctest.Test(t, func(t *testing.T) {
		l := line{comeback: c}
		done := []*Batch{{done: make(chan struct{}, 1)}, {done: make(chan struct{}, 1)}}
		l.answer(done, nil) // to wait would be a deadlock
		require.Equal(t, 999, l.comeback.skip)
		for _, b := range done {
			require.Len(t, b.done, 1)
		}
	})
}

func TestTheLineDoesNotWaitForCallersWhileBatchesWerePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := line{joining: joining{waiting: []*Batch{{turn: putBack}}}}
		done := []*Batch{{done: make(chan struct{}, 1)}, {done: make(chan struct{}, 1)}}
		l.answer(done, nil) // to wait would be a deadlock
		for _, b := range done {
			require.Len(t, b.done, 1)
		}
	})
}

// Callers who publish again soon after they are answered go together in each call, not in two
// groups by turns.
func TestCallersThatComeBackStayTogether(t *testing.T) {
	const callers, rounds = 8, 20
	inBubble(t, func(w *world) {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range rounds {
					if err := w.line.publish(w.Context(), w.batches.get(1)); err != nil {
						w.Error(err)
					}
					for range 20 { // it prepares its next message
						runtime.Gosched()
					}
				}
			})
		}
		all.Wait()
		messages := 0
		for _, call := range w.redis.calls {
			messages += len(call)
		}
		require.Equal(w, callers*rounds, messages)
		// Two groups by turns would take two calls a round. A busy machine splits a few rounds.
		require.Less(w, len(w.redis.calls), rounds+rounds*3/4)
	})
}

// panickingContext is a context whose Err panics.
type panickingContext struct{ context.Context }

func (panickingContext) Err() error { panic("odd") }

func TestAContextThatPanicsHasEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.redis.answer = func(call int) error {
			if call == 2 {
				return &queue.Refusal{Room: 1}
			}
			return nil
		}
		alone, other := w.publish(w.Context(), "alone"), w.publish(w.Context(), "other")
		odd := w.publish(panickingContext{w.Context()}, "odd")
		require.NoError(w, <-alone)
		require.EqualError(w, <-odd, "the context panicked: odd")
		require.NoError(w, <-other)
	})
}
