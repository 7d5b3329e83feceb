package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkLate is how late messages come on an idle system, in the middle and at the 99th
// percentile: through networks that take that long each way, for what is called is late by its way.
// An op is a message.
func BenchmarkLate(b *testing.B) {
	for _, way := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		b.Run(fmt.Sprint("way=", way), func(b *testing.B) {
			proxy := faulttest.NewProxy(b, redistest.Start(b).Addr()) // on this machine, so that its clock is time.Now
			proxy.Delay(way)
			client := proxy.Place().Client()
			defer client.Close()
			p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
			require.NoError(b, err)
			defer p.Close()
			s, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
			require.NoError(b, err)
			defer s.Close()
			messages, err := s.Subscribe(b.Context(), "topic")
			require.NoError(b, err)

			var late []time.Duration
			for b.Loop() {
				due := time.Now().Add(30*time.Millisecond + rand.N(20*time.Millisecond)).Truncate(time.Millisecond)
				msg := message.NewMessage("", nil)
				redisdelay.DelayUntil(msg, due)
				require.NoError(b, p.Publish("topic", msg))
				received := <-messages
				late = append(late, time.Since(due))
				received.Ack()
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Microseconds()), "late-p50-us")
			b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "late-p99-us")
			require.Positive(b, late[0])
		})
	}
}
