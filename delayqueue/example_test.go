package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
)

func Example() {
	ctx := context.Background()
	q := delayqueue.New[string](0)
	defer q.Close()

	now := time.Now()
	for value, delay := range map[string]time.Duration{
		"third":  30 * time.Millisecond,
		"first":  10 * time.Millisecond,
		"second": 20 * time.Millisecond,
	} {
		if err := q.Enqueue(ctx, value, now.Add(delay)); err != nil {
			fmt.Println(err)
			return
		}
	}

	for q.Len() > 0 {
		value, err := q.Dequeue(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(value)
	}

	// Output:
	// first
	// second
	// third
}

// A full queue makes Enqueue wait. A context limits the wait.
func ExampleQueue_Enqueue_full() {
	q := delayqueue.New[string](1)
	defer q.Close()

	now := time.Now()
	fmt.Println(q.Enqueue(context.Background(), "fits", now))

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err := q.Enqueue(ctx, "does not fit", now)
	fmt.Println(errors.Is(err, context.DeadlineExceeded), q.Len())

	// Output:
	// <nil>
	// true 1
}

// A scheduler goroutine ends with its context, or when the queue is closed.
func ExampleQueue_Close() {
	q := delayqueue.New[func()](0)
	ctx := context.Background()

	ended := make(chan error)
	go func() {
		for {
			job, err := q.Dequeue(ctx)
			if err != nil {
				ended <- err
				return
			}
			job()
		}
	}()

	ran := make(chan struct{})
	err := q.Enqueue(ctx, func() { close(ran) }, time.Now().Add(time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	<-ran
	q.Close()
	fmt.Println(<-ended)

	// Output: delayqueue: queue is closed
}
