package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
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

	received := make([]*receipts, groups)
	for g := range groups {
		received[g] = newReceipts()
		for range subscribers {
			received[g].ackAll(subscribe(t, on(t, server.Client(t)), func(c *redisdelay.SubscriberConfig) {
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
	wg.Wait()
	require.Len(t, earliest, messages)

	for g := range groups {
		late := make([]time.Duration, 0, messages)
		for uuid, r := range received[g].await(t, messages) {
			require.False(t, r.delivery.DueAt.Before(earliest[uuid]),
				"message %s is due %v before its delay is over", uuid, earliest[uuid].Sub(r.delivery.DueAt))
			require.False(t, r.at.Before(r.delivery.DueAt),
				"message %s came %v early", uuid, r.delivery.DueAt.Sub(r.at))
			late = append(late, r.at.Sub(r.delivery.DueAt))
		}
		slices.Sort(late)
		t.Logf("group %d of %d: %d messages, late by p50 %v, p99 %v, max %v", g+1, groups,
			messages, late[messages/2], late[messages*99/100], late[messages-1])
		require.Less(t, late[messages/2], 50*time.Millisecond, "half of them come late, by far more than a busy machine explains")
	}
}
