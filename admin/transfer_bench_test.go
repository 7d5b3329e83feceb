package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkMove moves 100,000 waiting messages, half of them with delay IDs, between two topics of
// two groups. Meanwhile subscribers consume another topic, and both of these, with a message due
// each five milliseconds. It reports the 99th percentile of the lateness of each, and the fiftieth
// of the longest scripts by SLOWLOG, which fails it at 10 ms. All are of the quietest round: others
// may have the processor. "nothing" tells how late they are without.
func BenchmarkMove(b *testing.B) {
	const n = 100_000
	s := setupOn(b, redistest.Server{Client: redistest.Start(b, "--slowlog-log-slower-than", "200", "--slowlog-max-len", "100000").Client(b), Prefix: "bench"})
	topics := []string{"old", "new"}
	for _, name := range topics {
		for _, group := range []string{"a", "b"} {
			require.NoError(b, s.subscriber(b, group).SubscribeInitialize(name))
		}
	}
	p := s.publisher(b)
	for i := 0; i < n; i += 1000 {
		messages := make([]*message.Message, 1000)
		for j := range messages {
			messages[j] = text(strings.Repeat("x", 200))
			redisdelay.DelayFor(messages[j], 10*time.Hour+time.Duration(i+j)*time.Millisecond)
			if j%2 == 0 {
				redisdelay.SetDelayID(messages[j], fmt.Sprint("order ", i+j), redisdelay.DelayIDReplace)
			}
		}
		require.NoError(b, p.Publish("old", messages...))
	}
	round := 0
	for _, name := range []string{"nothing", "move"} {
		b.Run(name, func(b *testing.B) {
			var others, same, script, median, took time.Duration
			done := 0
			for b.Loop() {
				b.StopTimer()
				require.NoError(b, s.Client.Do(ctx, "slowlog", "reset").Err())
				from, to := topics[round%2], topics[1-round%2]
				stopOthers, stopSame := s.meanwhile(b, "other"), s.meanwhile(b, from, to)
				b.StartTimer()
				began := time.Now()
				if name == "nothing" {
					time.Sleep(5 * time.Second)
				} else {
					moved, err := s.admin.Move(ctx, from, admin.Moving{To: to})
					require.NoError(b, err)
					require.GreaterOrEqual(b, moved.Messages, n) // some of those that are due soon move, too
					round, done = round+1, done+moved.Messages
				}
				took += time.Since(began)
				b.StopTimer()
				others, same = least(others, stopOthers()), least(same, stopSame())
				if scripts := s.scripts(b); len(scripts) > 0 { // else each took less than is logged
					script, median = least(script, scripts[max(0, len(scripts)-50)]), least(median, scripts[len(scripts)/2])
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(done)/took.Seconds(), "messages/s")
			b.ReportMetric(float64(others.Microseconds())/1000, "ms/others-late-p99")
			b.ReportMetric(float64(same.Microseconds())/1000, "ms/same-topic-late-p99")
			b.ReportMetric(float64(script.Microseconds())/1000, "ms/fiftieth-script")
			b.ReportMetric(float64(median.Microseconds())/1000, "ms/script-median")
		})
	}
}
