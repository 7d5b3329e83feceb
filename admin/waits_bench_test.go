package admin_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkBulk changes 100,000 messages that wait, while a subscriber consumes another topic, with
// a message due each five milliseconds. It reports the longest step, a page of 1,000 messages, by
// the median of SLOWLOG, and the 99th percentile of the other topic's lateness. Both are of the
// quietest round, because others may have the processor. "nothing" tells how late they are without.
func BenchmarkBulk(b *testing.B) {
	const n = 100_000
	s := setupOn(b, redistest.Server{Client: redistest.Start(b, "--slowlog-log-slower-than", "200", "--slowlog-max-len", "100000").Client(b), Prefix: "bench"})
	s.register(b, "a")
	fill := func() {
		if stats := s.stats(b); stats.Waiting < n {
			some := make([]*message.Message, 1000)
			for range n / len(some) {
				for i := range some {
					some[i] = delayed(strings.Repeat("x", 100), 10*time.Hour+time.Duration(i)*time.Second)
					some[i].Metadata.Set("kind", "gift")
				}
				require.NoError(b, s.publisher(b).Publish(topic, some...))
			}
		}
	}
	for _, c := range []struct {
		name string
		do   func(context.Context, string, admin.Bulk) (int, error)
		bulk admin.Bulk
	}{
		{"nothing", func(context.Context, string, admin.Bulk) (int, error) { time.Sleep(5 * time.Second); return n, nil }, admin.Bulk{}},
		{"by", s.admin.RescheduleAll, admin.Bulk{By: time.Hour}},
		{"to", s.admin.RescheduleAll, admin.Bulk{When: admin.At(time.Now().Add(100 * time.Hour)), Spread: time.Hour}},
		{"cancel", s.admin.CancelAll, admin.Bulk{}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var longest, late time.Duration
			began, changed := time.Duration(0), 0
			for b.Loop() {
				b.StopTimer()
				fill()
				require.NoError(b, s.Client.Do(ctx, "slowlog", "reset").Err())
				stop := s.meanwhile(b, "other")
				b.StartTimer()
				start := time.Now()
				bulk := c.bulk
				bulk.Filter = gifts
				done, err := c.do(ctx, topic, bulk)
				began += time.Since(start)
				b.StopTimer()
				require.NoError(b, err)
				require.Equal(b, n, done)
				changed += done
				late = least(late, stop())
				_, err = s.admin.DeleteTopic(ctx, "other", admin.DeleteOptions{})
				require.NoError(b, err)
				scripts := s.scripts(b)
				if pages := scripts[max(len(scripts)-n/1000, 0):]; len(pages) > 0 { // else each took less than is logged
					longest = least(longest, pages[len(pages)/2])
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms/step-median")
			b.ReportMetric(float64(late.Microseconds())/1000, "ms/others-late-p99")
			b.ReportMetric(float64(changed)/began.Seconds(), "messages/s")
		})
	}
}

// scripts returns how long the scripts took that SLOWLOG has, the longest last.
func (s *setup) scripts(b *testing.B) (scripts []time.Duration) {
	b.Helper()
	calls, err := s.Client.SlowLogGet(ctx, -1).Result()
	require.NoError(b, err)
	for _, call := range calls {
		if strings.HasPrefix(strings.ToLower(call.Args[0]), "eval") {
			scripts = append(scripts, call.Duration)
		}
	}
	slices.Sort(scripts)
	return scripts
}

// least returns the lesser of two durations, of which 0 is none.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// meanwhile publishes messages to a topic, one due each five milliseconds, and consumes it, and
// other topics to which they may move. It does so until stop, which returns the 99th percentile of
// their lateness.
func (s *setup) meanwhile(b *testing.B, topic string, others ...string) (stop func() time.Duration) {
	running, cancel := context.WithCancel(ctx)
	sub := s.subscriber(b, "a")
	var both sync.WaitGroup
	var mu sync.Mutex
	var lates []time.Duration
	for _, name := range append(others, topic) {
		messages, err := sub.Subscribe(running, name)
		require.NoError(b, err)
		both.Go(func() {
			for msg := range messages {
				if d, ok := redisdelay.DeliveryFromContext(msg.Context()); ok && running.Err() == nil {
					mu.Lock()
					lates = append(lates, time.Since(d.DueAt))
					mu.Unlock()
				}
				msg.Ack()
			}
		})
	}
	p := s.publisher(b)
	both.Go(func() {
		for running.Err() == nil {
			var some []*message.Message
			for i := range 100 {
				some = append(some, delayed("x", 100*time.Millisecond+time.Duration(i)*5*time.Millisecond))
			}
			_ = p.Publish(topic, some...)
			select {
			case <-running.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return func() time.Duration {
		cancel()
		both.Wait()
		require.NoError(b, sub.Close())
		require.Greater(b, len(lates), 50)
		slices.Sort(lates)
		return lates[len(lates)*99/100]
	}
}
