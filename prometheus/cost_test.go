//go:build unix

package promredisdelay_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
)

const (
	costRate    = 10_000           // messages a second
	costScrapes = 15 * time.Second // from one scrape to the next
)

// costTime returns how long a measurement publishes.
func costTime() time.Duration {
	if testing.Short() {
		return 20 * time.Millisecond
	}
	return 3 * time.Second
}

// BenchmarkCost tells how much CPU a Prometheus adds that scrapes each 15 seconds, to Redis and to
// the client, in percent of what 10,000 messages a second use without it. The topic of the messages
// is one of as many as the benchmark's name says. An op is a pair of measurements, without scrapes
// and with one a second, whose difference counts for a fifteenth. So the client's figure has the
// exporter in it, which runs in the same process here. The figures are medians over the ops. The
// command is make bench-prometheus.
func BenchmarkCost(b *testing.B) {
	for _, topics := range []int{1, 100} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr()})
			b.Cleanup(func() { _ = client.Close() })
			sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
			require.NoError(b, err)
			for i := range topics {
				require.NoError(b, sub.SubscribeInitialize(fmt.Sprintf("topic-%d", i)))
			}
			require.NoError(b, sub.Close())
			measureCost(b, client, false) // warm up
			var more [2][]float64
			for n := 0; b.Loop(); n++ {
				var took [2][2]float64 // without and with
				for i := range took {
					with := (n + i) % 2 // each is the first one as often
					took[with] = measureCost(b, client, with == 1)
				}
				for side := range more {
					more[side] = append(more[side], 100*(took[1][side]/took[0][side]-1)/costScrapes.Seconds())
				}
			}
			b.ReportMetric(0, "ns/op")
			for side, where := range []string{"redis", "client"} {
				slices.Sort(more[side])
				b.ReportMetric(more[side][len(more[side])/2], "%-"+where)
			}
		})
	}
}

// measureCost publishes and handles messages, and returns the CPU time of Redis and of the client
// in seconds.
func measureCost(b *testing.B, client *redis.Client, scraped bool) (used [2]float64) {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(b, err)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
	require.NoError(b, err)
	router := testkit.NewRouter(b)
	var handled atomic.Int64
	all := make(chan struct{})
	messages := int64(costRate * costTime() / time.Second)
	router.AddConsumerHandler("work", "topic-0", sub, func(*message.Message) error {
		if handled.Add(1) == messages {
			close(all)
		}
		return nil
	})
	ran := testkit.Begin(func() error { return router.Run(ctx) })
	<-router.Running()
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(b, err)
	collector, err := promredisdelay.New(promredisdelay.Config{Admin: a, Client: client})
	require.NoError(b, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	_, err = registry.Gather() // the first scrape reads what later ones remember
	require.NoError(b, err)
	runtime.GC()

	redisBefore, clientBefore := cpu(b, client).Seconds(), clientCPU()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range int(costTime() / (10 * time.Millisecond)) {
		<-tick.C
		batch := make([]*message.Message, costRate/100)
		for j := range batch {
			batch[j] = message.NewMessage(watermill.NewUUID(), message.Payload(strings.Repeat("x", 100)))
		}
		require.NoError(b, publisher.Publish("topic-0", batch...))
		if scraped && i%100 == 50 {
			_, err := registry.Gather()
			require.NoError(b, err)
		}
	}
	testkit.Wait(b, all, "all messages")
	used = [2]float64{cpu(b, client).Seconds() - redisBefore, clientCPU() - clientBefore}
	require.NoError(b, router.Close())
	require.NoError(b, <-ran)
	require.NoError(b, publisher.Close())
	return used
}

func clientCPU() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}
