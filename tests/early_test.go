package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMessagesWithRandomDelaysAreNeverEarlyAndNeverLost(t *testing.T) {
	t.Parallel()
	for _, groups := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d groups", groups), func(t *testing.T) {
			t.Parallel()
			testRandomDelays(t, groups)
		})
	}
}

func testRandomDelays(t *testing.T, groups int) {
	const publishers, subscribers, messages = 4, 3, 2000
	server := redistest.Start(t) // on this machine, so that its clock is time.Now
	client := server.Client(t)
	expectDrained(t, on(t, client))

	var looked looks
	received := make([]*receipts, groups)
	for g := range groups {
		received[g] = newReceipts()
		for range subscribers {
			client := server.Client(t)
			client.AddHook(redistest.AfterEach(looked.note))
			received[g].ackAll(subscribe(t, on(t, client), func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup = fmt.Sprintf("group-%d", g)
				c.MaxInFlight = 10
			}))
		}
	}

	var (
		mu       sync.Mutex
		earliest = map[string]time.Time{} // by UUID: when Publish was called, and the delay
		wg       sync.WaitGroup
	)
	for p := range publishers {
		publisher := newPublisher(t, on(t, server.Client(t)))
		wg.Go(func() {
			for n := 0; n < messages/publishers; {
				batch := make([]*message.Message, min(1+rand.IntN(25), messages/publishers-n))
				before := time.Now()
				mu.Lock()
				for i := range batch {
					delay := time.Duration(rand.Int64N(int64(2 * time.Second)))
					batch[i] = message.NewMessage(fmt.Sprintf("%d-%d", p, n), nil)
					redisdelay.DelayFor(batch[i], delay)
					earliest[batch[i].UUID] = before.Add(delay)
					n++
				}
				mu.Unlock()
				if !assert.NoError(t, publisher.Publish(topic, batch...)) {
					return
				}
			}
		})
	}
	ended := measure(t, server.Client(t))
	wg.Wait()
	require.Len(t, earliest, messages)

	for g := range groups {
		late, overdue := make([]time.Duration, 0, messages), make([]time.Duration, 0, messages)
		all, busy := received[g].await(t, messages), ended()
		for uuid, r := range all {
			require.False(t, r.delivery.DueAt.Before(earliest[uuid]),
				"message %s is due %v before its delay is over", uuid, earliest[uuid].Sub(r.delivery.DueAt))
			require.False(t, r.at.Before(r.delivery.DueAt),
				"message %s came %v early", uuid, r.delivery.DueAt.Sub(r.at))
			late = append(late, r.at.Sub(r.delivery.DueAt))
			overdue = append(overdue, looked.after(r.delivery.DueAt)-stallsInARow*busy.at(r.delivery.DueAt))
		}
		slices.Sort(late)
		slices.Sort(overdue)
		t.Logf("group %d of %d: %d messages, late by p50 %v, p99 %v, max %v; ready late by p50 %v more than this machine is", g+1, groups,
			messages, late[messages/2], late[messages*99/100], late[messages-1], overdue[messages/2])
		// On a busy machine a message that is ready waits for its turn, and for long.
		require.Less(t, overdue[messages/2], 50*time.Millisecond, "half of them are ready late, by far more than a busy machine explains")
	}
}

// stallsInARow is how many answers a promotion waits for on a busy machine: of the call before, of
// its own, and some on the way of each.
const stallsInARow = 5

// pulse is how late calls were answered that were to be made at a time.
type pulse struct {
	due  []time.Time
	late []time.Duration
}

// measure makes calls until it is ended.
func measure(t *testing.T, client redis.UniversalClient) (end func() *pulse) {
	t.Helper()
	running, stop := context.WithCancel(t.Context())
	p := &pulse{}
	var beats sync.WaitGroup
	beats.Go(func() {
		for running.Err() == nil {
			due := time.Now().Add(2 * time.Millisecond)
			time.Sleep(time.Until(due))
			_ = client.Ping(running).Err()
			p.due, p.late = append(p.due, due), append(p.late, time.Since(due))
		}
	})
	end = sync.OnceValue(func() *pulse {
		stop()
		beats.Wait()
		return p
	})
	t.Cleanup(func() { end() })
	return end
}

// at returns how late the first call was that was due after a time, or the last one.
func (p *pulse) at(due time.Time) time.Duration {
	i, _ := slices.BinarySearchFunc(p.due, due, time.Time.Compare)
	return p.late[min(i, len(p.late)-1)]
}

// looks are the times of the answers to those who promote what is due.
type looks struct {
	mu    sync.Mutex
	times []time.Time
}

// note is for redistest.AfterEach.
func (l *looks) note(call redis.Cmder) {
	if args := call.Args(); call.Name() == "evalsha" && queue.ScriptName(args[1].(string)) == "promote" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.times = append(l.times, time.Now())
	}
}

// after returns how long after a message was due somebody had promoted it.
func (l *looks) after(due time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.times {
		if !at.Before(due) {
			return at.Sub(due)
		}
	}
	return time.Hour
}
