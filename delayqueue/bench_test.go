package delayqueue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
)

// BenchmarkThroughput measures one Enqueue and one Dequeue of an item that is
// due at once, with as many goroutines at each end.
func BenchmarkThroughput(b *testing.B) {
	for _, goroutines := range []int{1, 8, 64} {
		for _, capacity := range []int{0, 1024} {
			b.Run(fmt.Sprintf("goroutines=%d/capacity=%d", goroutines, capacity), func(b *testing.B) {
				b.ReportAllocs()
				ctx := b.Context()
				q := delayqueue.New[int](capacity)
				due := time.Now()

				var wg sync.WaitGroup
				for g := range goroutines {
					share := b.N / goroutines
					if g < b.N%goroutines {
						share++
					}
					wg.Go(func() {
						for i := range share {
							if err := q.Enqueue(ctx, i, due); err != nil {
								b.Error(err)
								return
							}
						}
					})
					wg.Go(func() {
						for range share {
							if _, err := q.Dequeue(ctx); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// BenchmarkFilled measures one Enqueue and one TryDequeue in a queue that
// holds many items, so that the cost of the heap shows.
func BenchmarkFilled(b *testing.B) {
	for _, size := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("items=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			ctx := context.Background()
			q := delayqueue.New[int](0)
			past := time.Now().Add(-time.Hour)
			enqueue := func() {
				due := past.Add(time.Duration(rand.Int64N(int64(time.Minute))))
				if err := q.Enqueue(ctx, 0, due); err != nil {
					b.Fatal(err)
				}
			}
			for range size {
				enqueue()
			}
			for b.Loop() {
				enqueue()
				if _, ok := q.TryDequeue(); !ok {
					b.Fatal("nothing due in a queue of due items")
				}
			}
		})
	}
}

// BenchmarkRoundTrip measures the wake-up of a waiting Dequeue: two goroutines
// pass one item to and fro over two queues.
func BenchmarkRoundTrip(b *testing.B) {
	b.ReportAllocs()
	ctx := b.Context()
	there, back := delayqueue.New[int](0), delayqueue.New[int](0)
	defer there.Close()
	defer back.Close()
	past := time.Now()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer there.Close()
	wg.Go(func() {
		for {
			v, err := there.Dequeue(ctx)
			if err != nil {
				return
			}
			if back.Enqueue(ctx, v, past) != nil {
				return
			}
		}
	})
	for b.Loop() {
		if err := there.Enqueue(ctx, 0, past); err != nil {
			b.Fatal(err)
		}
		if _, err := back.Dequeue(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
