package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkProblems is what operators ask of a Redis that is almost full, with 200 topics, 10,000
// dead letters and 200,000 waiting messages. It reports the longest call of Redis in the quietest
// round, because others may have the processor.
func BenchmarkProblems(b *testing.B) {
	s := setupOn(b, redistest.Server{Client: redistest.Start(b, "--slowlog-log-slower-than", "200", "--maxmemory", "200mb", "--maxmemory-policy", "noeviction").Client(b), Prefix: "own"})
	now := float64(time.Now().UnixMilli())
	for i := range 200 {
		name := fmt.Sprintf("topic %03d", i)
		k := queue.NewKeys(s.Prefix, name)
		p := s.Client.Pipeline()
		p.SAdd(ctx, queue.Registry(s.Prefix), name)
		p.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x")
		p.HSet(ctx, k.Groups(), "g", "25 -1 -1")
		waiting, dead := 100, 0
		if i == 7 {
			waiting, dead = 180_000, 10_000
		}
		for n := range waiting + dead {
			id := fmt.Sprintf("%026d", n)
			p.HSet(ctx, k.Messages(), id, strings.Repeat("x", 200))
			if n < waiting {
				p.ZAdd(ctx, k.Pending(), redis.Z{Score: now + 3_600_000, Member: id})
			} else {
				p.ZAdd(ctx, k.Dead("g"), redis.Z{Score: now - float64(n), Member: id})
				p.HSet(ctx, k.Deliveries("g"), id, fmt.Sprintf("1 - - deliver order %d: the partner answered %d", n, []int{500, 429}[n%2]))
			}
			if n%1000 == 999 || n == waiting+dead-1 { // so that a busy server takes each part in time
				_, err := p.Exec(ctx)
				require.NoError(b, err)
			}
		}
	}
	require.NoError(b, s.Client.ConfigSet(ctx, "maxmemory", "120mb").Err())
	for _, ask := range []struct {
		name string
		do   func(b *testing.B)
	}{
		{"Memory", func(b *testing.B) {
			use, err := s.admin.Memory(ctx, admin.MemoryOptions{})
			require.NoError(b, err)
			require.Equal(b, "topic 007", use.Topics[0].Topic)
			require.Equal(b, 200, use.Looked)
		}},
		{"Diagnose", func(b *testing.B) {
			d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
			require.NoError(b, err)
			require.Greater(b, len(d.Problems), 200)
		}},
		{"DeadReasons", func(b *testing.B) {
			reasons, err := s.admin.DeadReasons(ctx, "topic 007", admin.Bulk{Group: "g"})
			require.NoError(b, err)
			require.Len(b, reasons.Reasons, 2)
		}},
	} {
		b.Run(ask.name, func(b *testing.B) {
			var quietest time.Duration
			for b.Loop() {
				b.StopTimer()
				require.NoError(b, s.Client.Do(ctx, "slowlog", "reset").Err())
				b.StartTimer()
				ask.do(b)
				b.StopTimer()
				calls, err := s.Client.SlowLogGet(ctx, -1).Result()
				require.NoError(b, err)
				longest := 200 * time.Microsecond // shorter calls are not in the log
				for _, call := range calls {
					longest = max(longest, call.Duration)
				}
				if quietest == 0 || longest < quietest {
					quietest = longest
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(quietest.Microseconds())/1000, "ms/longest-call")
		})
	}
}
