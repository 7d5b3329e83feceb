package admin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// BenchmarkFind measures searches in 200 topics with 10,000 dead letters and many waiting messages:
// 50,000, or a million with FIND_LARGE=1. It fails if a step of 500 messages takes 10 ms, by the
// median of SLOWLOG. All these steps are alike, and the longest ones waited for a busy machine.
func BenchmarkFind(b *testing.B) {
	waiting, dead := 50_000, 1000
	if os.Getenv("FIND_LARGE") != "" {
		waiting, dead = 1_000_000, 10_000
	}
	s := setupOn(b, redistest.Server{Client: redistest.Start(b, "--slowlog-log-slower-than", "200", "--slowlog-max-len", "100000").Client(b), Prefix: "bench"})
	last := s.fillFind(b, waiting, dead)
	for _, search := range []struct {
		name   string
		filter admin.Filter
		found  int
	}{
		{"by ID", admin.Filter{IDs: map[string]bool{last: true}}, 1},
		{"by delay ID", admin.Filter{DelayID: "order 17"}, 1},
		{"by UUID", admin.Filter{UUID: "no such"}, 0},
		{"by text", admin.Filter{Any: "no such"}, 0},
	} {
		b.Run(search.name, func(b *testing.B) {
			require.NoError(b, s.Client.Do(ctx, "slowlog", "reset").Err())
			looked := 0
			for b.Loop() {
				found, err := s.admin.Find(ctx, admin.Search{Filter: search.filter, Most: 10 * waiting})
				require.NoError(b, err)
				require.Len(b, found.Messages, search.found)
				looked += found.Looked
			}
			slow, err := s.Client.SlowLogGet(ctx, -1).Result()
			require.NoError(b, err)
			var scripts []time.Duration
			for _, call := range slow {
				if strings.HasPrefix(strings.ToLower(call.Args[0]), "eval") {
					scripts = append(scripts, call.Duration)
				}
			}
			if len(scripts) == 0 { // each took less than the slow log shows
				b.ReportMetric(0.2, "ms/step-max")
				return
			}
			slices.Sort(scripts)
			full := scripts[max(len(scripts)-max(looked/500, 1), 0):] // of 500 messages each
			usual := full[len(full)/2]
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(full[0]), "ms/step-min")
			b.ReportMetric(ms(usual), "ms/step-median")
			b.ReportMetric(ms(scripts[len(scripts)-1]), "ms/step-max")
			b.ReportMetric(float64(looked)/float64(b.N), "messages/op")
		})
	}
}

// fillFind makes 200 topics. The first has the waiting messages, the second the dead letters. It
// returns the ID of a message.
func (s *setup) fillFind(b *testing.B, waiting, dead int) (id string) {
	b.Helper()
	p := s.publisher(b)
	for i := range 200 {
		require.NoError(b, p.Publish(fmt.Sprint("topic ", i), delayed("x", time.Hour)))
	}
	publish := func(topic string, n int, make func(i int) *message.Message) {
		var some []*message.Message
		for i := range n {
			if some = append(some, make(i)); len(some) == 1000 || i == n-1 {
				require.NoError(b, p.Publish(topic, some...))
				some = some[:0]
			}
		}
	}
	payload := []byte(strings.Repeat("x", 100))
	publish("topic 0", waiting, func(i int) *message.Message {
		msg := message.NewMessage(fmt.Sprint("uuid ", i), payload)
		msg.Metadata = message.Metadata{"kind": "gift"}
		redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
		return testkit.Delay(msg, time.Hour+time.Duration(i)*time.Millisecond)
	})
	sub := s.subscriber(b, "a", func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 256 })
	subscribing, stop := context.WithCancel(ctx)
	messages, err := sub.Subscribe(subscribing, "topic 1")
	require.NoError(b, err)
	go func() {
		for msg := range messages {
			redisdelay.DeadOnNack(msg, errors.New("the partner is down"))
			msg.Nack()
		}
	}()
	publish("topic 1", dead, func(i int) *message.Message { return message.NewMessage(fmt.Sprint("dead ", i), payload) })
	testkit.Eventually(b, func() bool {
		stats, err := s.admin.Stats(ctx, "topic 1")
		return err == nil && stats.Groups[0].Dead == dead
	}, "dead letters")
	stop()
	found, err := s.admin.Find(ctx, admin.Search{Topics: []string{"topic 0"}, Filter: admin.Filter{DelayID: "order 3"}, Limit: 1})
	require.NoError(b, err)
	require.Len(b, found.Messages, 1)
	return found.Messages[0].ID
}
