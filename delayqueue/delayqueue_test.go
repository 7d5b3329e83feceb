package delayqueue_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// result is the result of a Dequeue in another goroutine, and its time.
type result struct {
	value int
	err   error
	at    time.Time
}

// dequeueAsync starts a Dequeue that sends its result to the returned channel.
func dequeueAsync(ctx context.Context, q *delayqueue.Queue[int]) <-chan result {
	results := make(chan result, 1)
	go func() {
		value, err := q.Dequeue(ctx)
		results <- result{value, err, time.Now()}
	}()
	return results
}

// enqueueAsync starts an Enqueue that sends its error to the returned channel.
func enqueueAsync(ctx context.Context, q *delayqueue.Queue[int], value int, due time.Time) <-chan error {
	errs := make(chan error, 1)
	go func() { errs <- q.Enqueue(ctx, value, due) }()
	return errs
}

// requireWaiting checks that nothing can be received from any of the channels
// before the clock of the bubble moves on.
func requireWaiting[T any](t *testing.T, channels ...<-chan T) {
	t.Helper()
	synctest.Wait()
	for i, c := range channels {
		select {
		case v := <-c:
			require.Failf(t, "does not wait", "call %d returned %v", i, v)
		default:
		}
	}
}

func TestEarliestComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](0)
		start := time.Now()
		for _, i := range rand.Perm(100) {
			require.NoError(t, q.Enqueue(t.Context(), i, start.Add(time.Duration(i)*time.Second)))
		}
		require.Equal(t, 100, q.Len())
		for i := range 100 {
			got, err := q.Dequeue(t.Context())
			require.NoError(t, err)
			require.Equal(t, i, got)
			require.Equal(t, time.Duration(i)*time.Second, time.Since(start))
		}
		require.Zero(t, q.Len())
	})
}

func TestEqualDueTimesKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](0)
		start := time.Now()
		// Three due times, each given to every third value.
		for i := range 99 {
			require.NoError(t, q.Enqueue(t.Context(), i, start.Add(time.Duration(i%3)*time.Second)))
		}
		for i := range 99 {
			got, err := q.Dequeue(t.Context())
			require.NoError(t, err)
			require.Equal(t, i%33*3+i/33, got)
		}
	})
}

func TestNeverEarly(t *testing.T) {
	for name, due := range map[string]func(time.Duration) time.Time{
		"monotonic reading": func(d time.Duration) time.Time { return time.Now().Add(d) },
		"wall clock only":   func(d time.Duration) time.Time { return time.Now().Add(d).Round(0) },
		"another time zone": func(d time.Duration) time.Time { return time.Now().Add(d).In(time.FixedZone("", 3600)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := delayqueue.New[int](0)
				require.NoError(t, q.Enqueue(t.Context(), 1, due(time.Second)))

				time.Sleep(time.Second - time.Nanosecond)
				_, ok := q.TryDequeue()
				require.False(t, ok)
				waiting := dequeueAsync(t.Context(), q)
				requireWaiting(t, waiting)

				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, result{1, nil, time.Now()}, <-waiting)
			})
		})
	}
}

// The same with the real clock, whose timers are not exact.
func TestNeverEarlyByTheRealClock(t *testing.T) {
	q := delayqueue.New[time.Time](0)
	for range 200 {
		due := time.Now().Add(rand.N(2 * time.Millisecond))
		require.NoError(t, q.Enqueue(t.Context(), due, due))
	}
	for range 200 {
		due, err := q.Dequeue(t.Context())
		require.NoError(t, err)
		require.False(t, time.Now().Before(due))
	}
}

func TestPastAndZeroTimesAreDueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](0)
		start := time.Now()
		require.NoError(t, q.Enqueue(t.Context(), 3, start))
		require.NoError(t, q.Enqueue(t.Context(), 2, start.Add(-time.Hour)))
		require.NoError(t, q.Enqueue(t.Context(), 1, time.Time{}))
		for want := 1; want <= 3; want++ {
			got, ok := q.TryDequeue()
			require.True(t, ok)
			require.Equal(t, want, got)
		}
		_, ok := q.TryDequeue()
		require.False(t, ok)
		require.Equal(t, start, time.Now())
	})
}

func TestFarFutureDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](math.MaxInt)
		require.NoError(t, q.Enqueue(t.Context(), 1, time.Unix(math.MaxInt32*1000, 0)))
		ctx, cancel := context.WithTimeout(t.Context(), 100*365*24*time.Hour)
		defer cancel()
		_, err := q.Dequeue(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, q.Len())
	})
}

func TestEarlierHeadShortensTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](0)
		start := time.Now()
		waiting := dequeueAsync(t.Context(), q)
		requireWaiting(t, waiting) // on an empty queue

		require.NoError(t, q.Enqueue(t.Context(), 3, start.Add(time.Hour)))
		requireWaiting(t, waiting)
		require.NoError(t, q.Enqueue(t.Context(), 1, start.Add(time.Minute)))
		requireWaiting(t, waiting)
		require.NoError(t, q.Enqueue(t.Context(), 2, start.Add(30*time.Minute)))
		requireWaiting(t, waiting)

		require.Equal(t, result{1, nil, start.Add(time.Minute)}, <-waiting)
		require.Equal(t, result{2, nil, start.Add(30 * time.Minute)}, <-dequeueAsync(t.Context(), q))
		require.Equal(t, result{3, nil, start.Add(time.Hour)}, <-dequeueAsync(t.Context(), q))
	})
}

// The head is taken while another Dequeue waits for it. The other must then
// wait for the next item, not forever and not on the old timer.
func TestTryDequeueLeavesTheTimerToTheNextItem(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			q := delayqueue.New[int](0)
			start := time.Now()
			require.NoError(t, q.Enqueue(t.Context(), 1, start.Add(time.Second)))
			require.NoError(t, q.Enqueue(t.Context(), 2, start.Add(2*time.Second)))
			waiting := dequeueAsync(t.Context(), q)
			synctest.Wait()

			time.Sleep(time.Second) // Both are at it now, either may win.
			if got, ok := q.TryDequeue(); ok {
				require.Equal(t, 1, got)
				require.Equal(t, result{2, nil, start.Add(2 * time.Second)}, <-waiting)
			} else {
				require.Equal(t, result{1, nil, start.Add(time.Second)}, <-waiting)
			}
		})
	}
}

func TestManyWaitersTakeEachItemOnceWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const items, waiters = 500, 20
		q := delayqueue.New[int](0)
		start := time.Now()
		due := func(i int) time.Time { return start.Add(time.Duration(i/7) * time.Second) }

		results := make(chan result, items)
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				for {
					value, err := q.Dequeue(t.Context())
					if err != nil {
						return
					}
					results <- result{value, err, time.Now()}
				}
			})
		}
		synctest.Wait()
		for _, i := range rand.Perm(items) {
			require.NoError(t, q.Enqueue(t.Context(), i, due(i)))
		}

		taken := make(map[int]bool)
		for range items {
			r := <-results
			require.Falsef(t, taken[r.value], "item %d was taken twice", r.value)
			taken[r.value] = true
			require.Equal(t, due(r.value), r.at)
		}
		q.Close()
		wg.Wait()
		require.Empty(t, results)
	})
}

// sleepCounter is a context that counts how often Dequeue goes to sleep with
// it: each time it waits, it asks for Done.
type sleepCounter struct {
	context.Context
	sleeps *atomic.Int64
}

func (c sleepCounter) Done() <-chan struct{} {
	c.sleeps.Add(1)
	return c.Context.Done()
}

func TestNewHeadWakesOneWaiterOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 50
		q := delayqueue.New[int](0)
		start := time.Now()
		var sleeps atomic.Int64
		ctx := sleepCounter{t.Context(), &sleeps}

		var returned, closed atomic.Int64
		for range waiters {
			go func() {
				switch _, err := q.Dequeue(ctx); {
				case err == nil:
					returned.Add(1)
				case errors.Is(err, delayqueue.ErrClosed):
					closed.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.EqualValues(t, waiters, sleeps.Load())

		// Each new head is earlier than the last: only the timer moves.
		for i := 10; i >= 1; i-- {
			require.NoError(t, q.Enqueue(t.Context(), i, start.Add(time.Duration(i)*time.Minute)))
			synctest.Wait()
			require.EqualValues(t, waiters, sleeps.Load(), "a head that is not due woke a waiter")
		}
		// Each due head wakes only the waiter that takes it.
		for i := 1; i <= 10; i++ {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.EqualValues(t, i, returned.Load())
			require.EqualValues(t, waiters, sleeps.Load(), "a waiter woke in vain")
		}
		// An item that is due on arrival wakes one waiter too.
		require.NoError(t, q.Enqueue(t.Context(), 0, start))
		synctest.Wait()
		require.EqualValues(t, 11, returned.Load())
		require.EqualValues(t, waiters, sleeps.Load())

		q.Close()
		synctest.Wait()
		require.EqualValues(t, waiters-11, closed.Load())
	})
}

func TestTakenItemLeavesNoTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](0)
		require.NoError(t, q.Enqueue(t.Context(), 1, time.Now()))
		_, ok := q.TryDequeue()
		require.True(t, ok)

		var sleeps atomic.Int64
		waiting := dequeueAsync(sleepCounter{t.Context(), &sleeps}, q)
		requireWaiting(t, waiting)
		require.EqualValues(t, 1, sleeps.Load(), "a waiter woke in vain")
		q.Close()
		require.ErrorIs(t, (<-waiting).err, delayqueue.ErrClosed)
	})
}

func TestEndedContextTakesNothing(t *testing.T) {
	q := delayqueue.New[int](0)
	require.NoError(t, q.Enqueue(t.Context(), 1, time.Now()))

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the cause"))
	for range 100 {
		_, err := q.Dequeue(ctx)
		require.Equal(t, context.Canceled, err)
		require.Equal(t, context.Canceled, q.Enqueue(ctx, 2, time.Now()))
	}
	require.Equal(t, 1, q.Len())
}

func TestCancelledWaiterHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 5
		start := time.Now()
		// Cancelling any of the waiters must not affect the others.
		for survivor := range waiters {
			q := delayqueue.New[int](0)
			due := start.Add(time.Duration(survivor+1) * time.Hour)
			require.NoError(t, q.Enqueue(t.Context(), survivor, due))

			var results [waiters]<-chan result
			var cancels [waiters]context.CancelFunc
			for i := range waiters {
				var ctx context.Context
				ctx, cancels[i] = context.WithCancel(t.Context())
				defer cancels[i]()
				results[i] = dequeueAsync(ctx, q)
				synctest.Wait()
			}
			for i := range waiters {
				if i != survivor {
					cancels[i]()
					require.Equal(t, result{0, context.Canceled, time.Now()}, <-results[i])
				}
			}
			require.Equal(t, result{survivor, nil, due}, <-results[survivor])
		}
	})
}

// The item becomes due at the very instant at which most waiters are cancelled.
// It must be delivered at that instant, not later and not never.
func TestCancelAtTheDueInstantLosesNothing(t *testing.T) {
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			q := delayqueue.New[int](0)
			due := time.Now().Add(time.Second)
			ctx, cancel := context.WithDeadline(t.Context(), due)
			defer cancel()

			results := []<-chan result{
				dequeueAsync(ctx, q), dequeueAsync(ctx, q), dequeueAsync(t.Context(), q), dequeueAsync(ctx, q),
			}
			require.NoError(t, q.Enqueue(t.Context(), 1, due))
			time.Sleep(time.Second)
			synctest.Wait()
			q.Close() // for the one that waits on, if it was not chosen

			delivered := 0
			for _, c := range results {
				r := <-c
				require.Equal(t, due, r.at)
				if r.err == nil {
					delivered++
				}
			}
			require.Equal(t, 1, delivered)
		})
	}
}

// The same in real time, without the order that a bubble imposes.
func TestCancelledWaitersNeverSwallowAWakeUp(t *testing.T) {
	q := delayqueue.New[int](0)
	for round := range 1000 {
		due := time.Now().Add(rand.N(50 * time.Microsecond))
		ctx, cancel := context.WithDeadline(t.Context(), due.Add(rand.N(20*time.Microsecond)))

		cancelled := []<-chan result{dequeueAsync(ctx, q), dequeueAsync(ctx, q), dequeueAsync(ctx, q)}
		lasting, stop := context.WithCancel(t.Context())
		patient := dequeueAsync(lasting, q)
		require.NoError(t, q.Enqueue(t.Context(), round, due))

		delivered := 0
		for _, c := range cancelled {
			if r := <-c; r.err == nil {
				require.Equal(t, round, r.value)
				delivered++
			}
		}
		if delivered == 0 {
			r := <-patient // hangs if the wake-up went to a cancelled one
			require.NoError(t, r.err)
			require.Equal(t, round, r.value)
			delivered++
		} else {
			stop()
			require.Equal(t, context.Canceled, (<-patient).err)
		}
		require.Equal(t, 1, delivered)
		require.Zero(t, q.Len())
		stop()
		cancel()
	}
}

func TestFullQueueBlocksUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](2)
		start := time.Now()
		require.NoError(t, q.Enqueue(t.Context(), 1, start.Add(time.Second)))
		require.NoError(t, q.Enqueue(t.Context(), 2, start.Add(time.Minute)))

		third := enqueueAsync(t.Context(), q, 3, start)
		requireWaiting(t, third)
		fourth := enqueueAsync(t.Context(), q, 4, start)
		requireWaiting(t, third, fourth)
		require.Equal(t, 2, q.Len())

		// The third was first to ask for room.
		require.Equal(t, result{1, nil, start.Add(time.Second)}, <-dequeueAsync(t.Context(), q))
		synctest.Wait()
		require.NoError(t, <-third)
		requireWaiting(t, fourth)
		require.Equal(t, 2, q.Len())

		got, ok := q.TryDequeue()
		require.True(t, ok)
		require.Equal(t, 3, got)
		require.NoError(t, <-fourth)
	})
}

func TestCancelledProducerLeavesTheRoomToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](1)
		start := time.Now()
		require.NoError(t, q.Enqueue(t.Context(), 1, start))

		ctx, cancel := context.WithCancel(t.Context())
		second := enqueueAsync(ctx, q, 2, start)
		synctest.Wait()
		third := enqueueAsync(t.Context(), q, 3, start)
		requireWaiting(t, second, third)
		cancel()
		require.Equal(t, context.Canceled, <-second)
		requireWaiting(t, third)

		got, ok := q.TryDequeue()
		require.True(t, ok)
		require.Equal(t, 1, got)
		require.NoError(t, <-third)
		got, ok = q.TryDequeue()
		require.True(t, ok)
		require.Equal(t, 3, got)
		require.Zero(t, q.Len())
	})
}

// Room appears at the very instant at which the first producer is cancelled.
func TestProducerCancelledAsRoomAppears(t *testing.T) {
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			q := delayqueue.New[int](1)
			start := time.Now()
			deadline := start.Add(time.Second)
			require.NoError(t, q.Enqueue(t.Context(), 1, start))

			ctx, cancel := context.WithDeadline(t.Context(), deadline)
			defer cancel()
			second := enqueueAsync(ctx, q, 2, start.Add(1))
			synctest.Wait()
			third := enqueueAsync(t.Context(), q, 3, start.Add(2))
			synctest.Wait()

			time.Sleep(time.Second)
			want := []int{1, 3}
			got, ok := q.TryDequeue()
			require.True(t, ok)
			values := []int{got}
			if err := <-second; err == nil {
				want = []int{1, 2, 3}
			} else {
				require.Equal(t, context.DeadlineExceeded, err)
			}
			for range len(want) - 1 {
				value, err := q.Dequeue(t.Context())
				require.NoError(t, err)
				values = append(values, value)
			}
			require.NoError(t, <-third)
			require.Equal(t, want, values)
		})
	}
}

func TestCloseWakesEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqueue.New[int](1)
		due := time.Now().Add(time.Hour)
		require.NoError(t, q.Enqueue(t.Context(), 1, due))
		consumers := []<-chan result{dequeueAsync(t.Context(), q), dequeueAsync(t.Context(), q)}
		producers := []<-chan error{enqueueAsync(t.Context(), q, 2, due), enqueueAsync(t.Context(), q, 3, due)}
		requireWaiting(t, consumers...)
		requireWaiting(t, producers...)

		closedAt := time.Now()
		q.Close()
		q.Close()
		for _, c := range consumers {
			require.Equal(t, result{0, delayqueue.ErrClosed, closedAt}, <-c)
		}
		for _, p := range producers {
			require.ErrorIs(t, <-p, delayqueue.ErrClosed)
		}
		require.Equal(t, closedAt, time.Now())
	})
}

func TestClosedQueueGivesAndTakesNothing(t *testing.T) {
	for _, capacity := range []int{0, 2, 10} {
		q := delayqueue.New[int](capacity)
		require.NoError(t, q.Enqueue(t.Context(), 1, time.Now()))
		require.NoError(t, q.Enqueue(t.Context(), 2, time.Now().Add(time.Hour)))
		q.Close()

		for range 50 { // because select chooses at random
			_, err := q.Dequeue(t.Context())
			require.ErrorIs(t, err, delayqueue.ErrClosed)
			require.ErrorIs(t, q.Enqueue(t.Context(), 3, time.Now()), delayqueue.ErrClosed)
		}
		_, ok := q.TryDequeue()
		require.False(t, ok)
		require.Zero(t, q.Len())
	}
}

func TestQueueKeepsNoReferenceToTakenValues(t *testing.T) {
	for name, empty := range map[string]func(*delayqueue.Queue[*[64]byte]){
		"taken": func(q *delayqueue.Queue[*[64]byte]) {
			for q.Len() > 0 {
				_, ok := q.TryDequeue()
				require.True(t, ok)
			}
		},
		"closed": func(q *delayqueue.Queue[*[64]byte]) { q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			q := delayqueue.New[*[64]byte](0)
			var pointers []weak.Pointer[[64]byte]
			for range 5 {
				value := new([64]byte)
				pointers = append(pointers, weak.Make(value))
				require.NoError(t, q.Enqueue(t.Context(), value, time.Now()))
			}
			runtime.GC()
			for _, p := range pointers {
				require.NotNil(t, p.Value())
			}
			empty(q)
			runtime.GC()
			for i, p := range pointers {
				require.Nilf(t, p.Value(), "value %d is still referred to", i)
			}
			runtime.KeepAlive(q)
		})
	}
}

// Producers and consumers give up at random moments. Accepted values are
// delivered once, refused values never.
func TestEachItemOnceUnderRandomCancellation(t *testing.T) {
	for _, capacity := range []int{0, 1, 8} {
		const producers, consumers, perProducer = 8, 8, 400
		q := delayqueue.New[int](capacity)

		var accepted, delivered sync.Map
		var missing sync.WaitGroup // accepted and not yet delivered
		impatient := func() (context.Context, context.CancelFunc) {
			if rand.N(4) == 0 {
				return context.WithCancel(t.Context())
			}
			return context.WithTimeout(t.Context(), rand.N(200*time.Microsecond))
		}

		var producing, consuming sync.WaitGroup
		for p := range producers {
			producing.Go(func() {
				for i := range perProducer {
					ctx, cancel := impatient()
					value := p*perProducer + i
					due := time.Now().Add(rand.N(300*time.Microsecond) - 100*time.Microsecond)
					missing.Add(1)
					if q.Enqueue(ctx, value, due) == nil {
						accepted.Store(value, true)
					} else {
						missing.Done()
					}
					cancel()
				}
			})
		}
		for range consumers {
			consuming.Go(func() {
				for {
					ctx, cancel := impatient()
					value, err := q.Dequeue(ctx)
					cancel()
					switch {
					case errors.Is(err, delayqueue.ErrClosed):
						return
					case err == nil:
						if _, twice := delivered.LoadOrStore(value, true); twice {
							t.Errorf("item %d was delivered twice", value)
							continue
						}
						missing.Done()
					}
				}
			})
		}
		producing.Wait()
		missing.Wait() // hangs if an item is lost
		require.Zero(t, q.Len())
		q.Close()
		consuming.Wait()

		count := func(m *sync.Map) (n int) {
			m.Range(func(key, _ any) bool {
				n++
				_, ok := accepted.Load(key)
				require.Truef(t, ok, "item %v was refused and yet delivered", key)
				return true
			})
			return n
		}
		require.Equal(t, count(&accepted), count(&delivered))
		require.NotZero(t, count(&accepted))
	}
}

// With one item at a time and contexts that never end, a single lost wake-up
// or a single lost place would stop this test for good.
func TestNoLostWakeUps(t *testing.T) {
	const goroutines, each = 8, 500
	q := delayqueue.New[int](1)
	var got [goroutines][]int
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				if err := q.Enqueue(t.Context(), g*each+i, time.Now().Add(rand.N(20*time.Microsecond))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range each {
				value, err := q.Dequeue(t.Context())
				if err != nil {
					t.Error(err)
				}
				got[g] = append(got[g], value)
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(got[:]...)))
	require.Len(t, all, goroutines*each)
	for i, value := range all {
		require.Equal(t, i, value)
	}
}

func TestCloseDuringUse(t *testing.T) {
	for range 500 {
		q := delayqueue.New[int](2)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for q.Enqueue(t.Context(), 0, time.Now()) == nil {
				}
			})
			wg.Go(func() {
				for {
					if _, err := q.Dequeue(t.Context()); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				defer q.Close()
				for range rand.N(50) {
					if _, err := q.Dequeue(t.Context()); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		require.Zero(t, q.Len())
	}
}

func TestOperationsDoNotAllocate(t *testing.T) {
	q := delayqueue.New[int](16)
	ctx, now := t.Context(), time.Now()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range 16 {
			_ = q.Enqueue(ctx, i, now)
		}
		for range 8 {
			_, _ = q.Dequeue(ctx)
			_, _ = q.TryDequeue()
		}
	}))
}
