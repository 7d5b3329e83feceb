package redisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// usual is a message of 100 bytes with one pair of metadata.
func usual() *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(strings.Repeat("x", 100)))
	msg.Metadata.Set("kind", "order")
	return msg
}

// BenchmarkPublish publishes on a real server, that at REDIS_ADDR, without which it is skipped;
// make microbench starts one. An op is a message. With concurrent callers their number is 16 times
// that of -cpu.
func BenchmarkPublish(b *testing.B) {
	for _, delay := range []string{"", "1h"} {
		name := "now"
		if delay != "" {
			name = "delayed"
		}
		b.Run(name+"/callers", func(b *testing.B) {
			p, client := benchPublisher(b)
			b.ReportAllocs()
			defer reportServer(b, client)()
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					msg := usual()
					if delay != "" {
						msg.Metadata.Set(redisdelay.DelayKey, delay)
					}
					if err := p.Publish("topic", msg); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
		for _, size := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, size), func(b *testing.B) {
				p, client := benchPublisher(b)
				b.ReportAllocs()
				defer reportServer(b, client)()
				b.ResetTimer()
				for left := b.N; left > 0; left -= size {
					messages := make([]*message.Message, min(size, left))
					for i := range messages {
						messages[i] = usual()
						if delay != "" {
							messages[i].Metadata.Set(redisdelay.DelayKey, delay)
						}
					}
					require.NoError(b, p.Publish("topic", messages...))
				}
			})
		}
	}
}

// BenchmarkPublishDelayIDs publishes messages with delay IDs, of which each is used again after
// 10,000 others, so that the message takes the place of the one that waits. An op is a message.
func BenchmarkPublishDelayIDs(b *testing.B) {
	for _, size := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			p, client := benchPublisher(b)
			defer reportServer(b, client)()
			number := 0
			b.ResetTimer()
			for left := b.N; left > 0; left -= size {
				messages := make([]*message.Message, min(size, left))
				for i := range messages {
					messages[i] = usual()
					redisdelay.DelayFor(messages[i], time.Hour)
					redisdelay.SetDelayID(messages[i], fmt.Sprintf("order %05d", number%10_000), redisdelay.DelayIDReplace)
					number++
				}
				require.NoError(b, p.Publish("topic", messages...))
			}
		})
	}
}

// BenchmarkPublishRefused publishes with 200 callers of whom some are refused, 100 times as many as
// -cpu says. An op is a message.
func BenchmarkPublishRefused(b *testing.B) {
	for _, c := range []struct {
		name  string
		limit int
		id    func(n int64) string // of the n-th message; "": none
	}{
		{"nobody", 0, func(int64) string { return "" }},
		{"delay_id=1%", 0, func(n int64) string {
			if n%100 == 0 {
				return "taken"
			}
			return ""
		}},
		{"delay_id=all", 0, func(int64) string { return "taken" }},
		{"delay_id=pairs", 0, func(n int64) string { return strconv.FormatInt(n/2, 10) }},
		{"full", 1, func(int64) string { return "" }},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, client := benchPublisher(b, func(config *redisdelay.PublisherConfig) { config.MaxWaiting = c.limit })
			require.NoError(b, p.Publish("topic", named("taken", "taken", redisdelay.DelayIDReject, never)))
			defer reportServer(b, client)()
			var number atomic.Int64
			b.SetParallelism(100)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					msg := usual()
					if id := c.id(number.Add(1)); id != "" {
						redisdelay.DelayFor(msg, never)
						redisdelay.SetDelayID(msg, id, redisdelay.DelayIDReject)
					}
					if err := p.Publish("topic", msg); err != nil && !errors.Is(err, redisdelay.ErrExists) && !errors.Is(err, redisdelay.ErrTopicFull) {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkPublishClient is what publishing takes the client alone: calls to Redis are answered
// before they are written. With -cpu 1 it varies less than any other. An op is a message.
func BenchmarkPublishClient(b *testing.B) {
	p, client := benchPublisher(b)
	require.NoError(b, p.Publish("topic", usual())) // so that it knows server and topic
	scripts := &answered{}
	client.AddHook(scripts)
	scripts.atOnce.Store(true)
	defer scripts.atOnce.Store(false)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := p.Publish("topic", usual()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// answered is a hook that answers scripts in place of the server, as long as it is to.
type answered struct{ atOnce atomic.Bool }

func (a *answered) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		script, ok := cmd.(*redis.Cmd)
		if !ok || !a.atOnce.Load() {
			return next(ctx, cmd)
		}
		script.SetVal("ok")
		return nil
	}
}

func (a *answered) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answered) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// BenchmarkConsume has a consumer ack what is ready on a real server. An op is a message.
func BenchmarkConsume(b *testing.B) {
	for _, inFlight := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			s := redistest.ForBenchmark(b)
			sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
				Client: s.Client, KeyPrefix: s.Prefix, MaxInFlight: inFlight, TakeoverWindow: -1, // most topics are older than that
			}, nil)
			require.NoError(b, err)
			defer func() { require.NoError(b, sub.Close()) }()
			require.NoError(b, sub.SubscribeInitialize("topic"))
			p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, nil)
			require.NoError(b, err)
			for left := b.N; left > 0; left -= 1000 {
				messages := make([]*message.Message, min(1000, left))
				for i := range messages {
					messages[i] = usual()
				}
				require.NoError(b, p.Publish("topic", messages...))
			}

			b.ReportAllocs()
			defer reportServer(b, s.Client)()
			b.ResetTimer()
			out, err := sub.Subscribe(ctx, "topic")
			require.NoError(b, err)
			for range b.N {
				(<-out).Ack()
			}
			b.StopTimer()
		})
	}
}

// BenchmarkLife has a consumer ack on a real server what a publisher delays meanwhile, 100 messages
// a call, by 100 to 600 ms. An op is a message.
func BenchmarkLife(b *testing.B) {
	s := redistest.ForBenchmark(b)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client: s.Client, KeyPrefix: s.Prefix, MaxInFlight: 256, TakeoverWindow: -1,
	}, nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, sub.Close()) }()
	out, err := sub.Subscribe(ctx, "topic")
	require.NoError(b, err)
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, nil)
	require.NoError(b, err)

	b.ReportAllocs()
	defer reportServer(b, s.Client)()
	b.ResetTimer()
	go func() {
		for left := b.N; left > 0; left -= 100 {
			messages := make([]*message.Message, min(100, left))
			for i := range messages {
				messages[i] = usual()
				redisdelay.DelayFor(messages[i], time.Duration(100+rand.IntN(500))*time.Millisecond)
			}
			if err := p.Publish("topic", messages...); err != nil {
				b.Error(err)
				_ = sub.Close() // nothing more is to come
				return
			}
		}
	}()
	for range b.N {
		msg, open := <-out
		if !open {
			b.FailNow()
		}
		msg.Ack()
	}
	b.StopTimer()
}

// BenchmarkCall is what a call costs the server before its script does anything. An op is a call.
func BenchmarkCall(b *testing.B) {
	keys := make([]string, 12)
	for i := range keys {
		keys[i] = fmt.Sprintf("redisdelay:{topic}:of-a-script:%d", i)
	}
	arguments := make([]any, 2*27)
	for i := range arguments {
		arguments[i] = strings.Repeat("x", 26+i%2*174) // an ID, a body
	}
	for _, call := range []struct {
		name      string
		keys      []string
		arguments []any
	}{{name: "ping"}, {name: "script"}, {"keys", keys, nil}, {"messages=27", keys, arguments}} {
		b.Run(call.name, func(b *testing.B) {
			s := redistest.ForBenchmark(b)
			sha, err := s.Client.ScriptLoad(ctx, "return 'ok'").Result()
			require.NoError(b, err)
			defer reportServer(b, s.Client)()
			for b.Loop() {
				if call.name == "ping" {
					err = s.Client.Ping(ctx).Err()
				} else {
					err = s.Client.EvalSha(ctx, sha, call.keys, call.arguments...).Err()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// reportServer reports what the server's process has spent from now until the returned function is
// called. Nothing else may use the server meanwhile.
func reportServer(b *testing.B, client redis.UniversalClient) func() {
	before, calls := serverCPU(b, client), serverCalls(b, client)
	return func() {
		b.ReportMetric((serverCPU(b, client)-before)*1e6/float64(b.N), "redis-us/op")
		b.ReportMetric((serverCalls(b, client)-calls)/float64(b.N), "redis-commands/op")
	}
}

// serverCalls is how many commands the server has run, with those of scripts.
func serverCalls(b *testing.B, client redis.UniversalClient) (calls float64) {
	b.Helper()
	info, err := client.Info(ctx, "commandstats").Result()
	require.NoError(b, err)
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_\S+:calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		require.NoError(b, err)
		calls += n
	}
	return calls
}

// serverCPU is the seconds that the server's process has run.
func serverCPU(b *testing.B, client redis.UniversalClient) float64 {
	b.Helper()
	info, err := client.Info(ctx, "cpu").Result()
	require.NoError(b, err)
	seconds := 0.0
	for _, m := range regexp.MustCompile(`(?m)^used_cpu_(?:sys|user):(\S+)`).FindAllStringSubmatch(info, -1) {
		s, err := strconv.ParseFloat(m[1], 64)
		require.NoError(b, err)
		seconds += s
	}
	return seconds
}

func benchPublisher(b *testing.B, options ...func(*redisdelay.PublisherConfig)) (*redisdelay.Publisher, redis.UniversalClient) {
	b.Helper()
	s := redistest.ForBenchmark(b)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, TakeoverWindow: -1}, nil)
	require.NoError(b, err)
	require.NoError(b, sub.SubscribeInitialize("topic"))
	require.NoError(b, sub.Close())
	config := redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}
	for _, option := range options {
		option(&config)
	}
	p, err := redisdelay.NewPublisher(config, nil)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p, s.Client
}

// BenchmarkSize is how many bytes of the server a message holds while it is there, as redis-B/op.
// An op is a message; with -benchtime 100000x, what the topic itself takes does not count.
func BenchmarkSize(b *testing.B) {
	waits := func(_ int, msg *message.Message) { redisdelay.DelayFor(msg, time.Hour) }
	for _, c := range []struct {
		name    string
		payload int
		groups  int
		make    func(i int, msg *message.Message)
	}{
		{"waiting/payload=100", 100, 0, waits},
		{"waiting/payload=500", 500, 0, waits},
		{"waiting/payload=1000", 1000, 0, waits},
		{"waiting/payload=2000", 2000, 0, waits},
		{"waiting/payload=4000", 4000, 0, waits},
		{"waiting/delay_id", 100, 0, func(i int, msg *message.Message) {
			redisdelay.DelayFor(msg, time.Hour)
			redisdelay.SetDelayID(msg, fmt.Sprintf("order %06d", i), redisdelay.DelayIDReplace)
		}},
		{"waiting/max_deliveries", 100, 0, func(_ int, msg *message.Message) {
			redisdelay.DelayFor(msg, time.Hour)
			redisdelay.SetMaxDeliveries(msg, 5)
		}},
		{"ready/groups=1", 100, 1, func(int, *message.Message) {}},
		{"ready/groups=3", 100, 3, func(int, *message.Message) {}},
	} {
		b.Run(c.name, func(b *testing.B) {
			client := redistest.Start(b).Client(b) // where nothing else comes and goes
			p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
			require.NoError(b, err)
			defer p.Close()
			for i := range c.groups {
				sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
					Client: client, ConsumerGroup: strconv.Itoa(i), TakeoverWindow: -1, // most topics are older than that
				}, nil)
				require.NoError(b, err)
				require.NoError(b, sub.SubscribeInitialize("size"))
				require.NoError(b, sub.Close())
			}
			require.NoError(b, p.Publish("before", usual()))
			before := usedMemory(b, client)
			for i := 0; i < b.N; {
				messages := make([]*message.Message, min(1000, b.N-i))
				for j := range messages {
					msg := usual()
					msg.Payload = make(message.Payload, c.payload)
					c.make(i, msg)
					messages[j], i = msg, i+1
				}
				require.NoError(b, p.Publish("size", messages...))
			}
			b.ReportMetric(float64(usedMemory(b, client)-before)/float64(b.N), "redis-B/op")
			for _, key := range []string{":messages", ":pending", ":options", ":names"} {
				if held, err := client.MemoryUsage(b.Context(), "redisdelay:{size}"+key, 0).Result(); err == nil {
					b.ReportMetric(float64(held)/float64(b.N), key[1:]+"-B/op")
				}
			}
		})
	}
}

func usedMemory(b *testing.B, client redis.UniversalClient) int {
	b.Helper()
	info, err := client.Info(context.Background(), "memory").Result()
	require.NoError(b, err)
	found := regexp.MustCompile(`used_memory:(\d+)`).FindStringSubmatch(info)
	require.NotNil(b, found)
	used, err := strconv.Atoi(found[1])
	require.NoError(b, err)
	return used
}
