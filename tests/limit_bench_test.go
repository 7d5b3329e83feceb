package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkLimit has five subscribers at work on a backlog, in a group with a limit. It reports how
// much of the limit they use, the shares of the one that got least and most, and the calls of
// scripts for each message, without those of the publisher. An iteration is a message.
func BenchmarkLimit(b *testing.B) {
	for _, limit := range []redisdelay.SubscriberConfig{
		{Limit: 5, Burst: 1}, {Limit: 50, Burst: 2}, {Limit: 200, Burst: 4}, {Limit: 1000, Burst: 20}, {Limit: 10_000, Burst: 200},
		{Limit: 50, Burst: 1}, {Limit: 200, Burst: 1}, {Limit: 1000, Burst: 1}, {AtOnce: 5}, {AtOnce: 50},
	} {
		name := fmt.Sprintf("rate=%v,burst=%d", limit.Limit, limit.Burst)
		if limit.AtOnce > 0 {
			name = fmt.Sprintf("atonce=%d", limit.AtOnce)
		}
		b.Run(name, func(b *testing.B) { limited(b, limit) })
	}
}

func limited(b *testing.B, limit redisdelay.SubscriberConfig) {
	in := redistest.Start(b)
	s := on(b, in.Client(b))
	const processes = 5
	got := make([]int, processes)
	done := make(chan struct{}, b.N+1000)
	var mu sync.Mutex
	for i := range processes {
		own := on(b, in.Client(b))
		messages := subscribe(b, own, func(c *redisdelay.SubscriberConfig) {
			c.Limit, c.Burst, c.AtOnce, c.MaxInFlight = limit.Limit, limit.Burst, limit.AtOnce, 20
		})
		go func() {
			for msg := range messages {
				go func() {
					if limit.AtOnce > 0 {
						time.Sleep(2 * time.Millisecond) // the partner's answer
					}
					mu.Lock()
					got[i]++
					mu.Unlock()
					msg.Ack()
					done <- struct{}{}
				}()
			}
		}()
	}
	publisher := newPublisher(b, s)
	batch := make([]*message.Message, 0, 1000)
	for i := range b.N + limit.Burst {
		batch = append(batch, message.NewMessage(watermill.NewUUID(), nil))
		if len(batch) == cap(batch) || i == b.N+limit.Burst-1 {
			for _, msg := range batch {
				redisdelay.DelayFor(msg, time.Second)
			}
			require.NoError(b, publisher.Publish(topic, batch...))
			batch = batch[:0]
		}
	}
	for range limit.Burst { // the burst does not count
		<-done
	}
	calls := scriptCalls(b, s.Client)
	b.ResetTimer()
	for range b.N {
		<-done
	}
	b.StopTimer()
	calls = scriptCalls(b, s.Client) - calls
	mu.Lock()
	defer mu.Unlock()
	if limit.Limit > 0 {
		b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds()/float64(limit.Limit), "%used")
	}
	all := float64(b.N + limit.Burst)
	b.ReportMetric(100*float64(slices.Min(got))/all, "%least")
	b.ReportMetric(100*float64(slices.Max(got))/all, "%most")
	b.ReportMetric(float64(calls)/float64(b.N), "calls/msg")
}

// scriptCalls returns how many scripts the server has run.
func scriptCalls(b *testing.B, client redis.UniversalClient) (n int) {
	b.Helper()
	stats, err := client.Info(b.Context(), "commandstats").Result()
	require.NoError(b, err)
	_, after, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	_, err = fmt.Sscan(strings.SplitN(after, ",", 2)[0], &n)
	require.NoError(b, err)
	return n
}
