package admin_test

import (
	"fmt"
	"slices"
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
// two groups. It fails if the fiftieth of the longest scripts takes 10 ms by SLOWLOG: the longest
// ones wait for a busy machine.
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
			redisdelay.DelayFor(messages[j], time.Hour+time.Duration(i+j)*time.Millisecond)
			if j%2 == 0 {
				redisdelay.SetDelayID(messages[j], fmt.Sprint("order ", i+j), redisdelay.DelayIDReplace)
			}
		}
		require.NoError(b, p.Publish("old", messages...))
	}
	require.NoError(b, s.Client.Do(ctx, "slowlog", "reset").Err())
	round := 0
	for b.Loop() {
		moved, err := s.admin.Move(ctx, topics[round%2], admin.Moving{To: topics[1-round%2]})
		require.NoError(b, err)
		require.Equal(b, n, moved.Messages)
		round++
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	slow, err := s.Client.SlowLogGet(ctx, -1).Result()
	require.NoError(b, err)
	var scripts []time.Duration
	for _, call := range slow {
		if strings.HasPrefix(strings.ToLower(call.Args[0]), "eval") {
			scripts = append(scripts, call.Duration)
		}
	}
	require.NotEmpty(b, scripts)
	slices.Sort(scripts)
	b.ReportMetric(float64(scripts[len(scripts)-1].Microseconds())/1000, "ms-longest-script")
	b.ReportMetric(float64(scripts[len(scripts)/2].Microseconds())/1000, "ms-median-script")
	require.Less(b, scripts[max(0, len(scripts)-50)], 10*time.Millisecond, "the fiftieth of the longest")
}
