package faulttest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// stallsOf is how many stalls in a row a message may meet on its way: of its publisher, the server,
// the scheduler, the consumer, and the process that looks.
const stallsOf = 5

// Stalls measures how late this machine and its Redis are at most, from now on: a goroutine sleeps
// for a millisecond and asks the server, again and again. end returns what a message may be late
// for that. It is nothing in the long form, which is for a machine that does nothing else.
func Stalls(t testing.TB, client redis.UniversalClient) (end func() time.Duration) {
	running, stop := context.WithCancel(context.Background())
	var measured sync.WaitGroup
	longest := time.Duration(0)
	measured.Go(func() {
		for running.Err() == nil {
			began := time.Now()
			time.Sleep(time.Millisecond)
			_ = client.Ping(running).Err()
			longest = max(longest, time.Since(began)-time.Millisecond)
		}
	})
	end = sync.OnceValue(func() time.Duration {
		stop()
		measured.Wait()
		return Pick(stallsOf*longest, 0)
	})
	t.Cleanup(func() { end() })
	return end
}
