package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkScripts takes messages through their life, a batch at a time, on a real server that
// nothing else uses. An op is a message; each transition reports what the server's only thread
// spent on it, as INFO commandstats has it.
func BenchmarkScripts(b *testing.B) {
	for _, size := range []int{1, 16, 100, 500} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) { benchmarkScripts(b, size, 0, 0, 128) })
	}
	b.Run("batch=100/dead=100", func(b *testing.B) { benchmarkScripts(b, 100, 100, 0, 128) })
	b.Run("batch=100/body=32/waiting=300", func(b *testing.B) { benchmarkScripts(b, 100, 0, 300, 32) })
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d/window", size), func(b *testing.B) { benchmarkScripts(b, size, 0, 0, 128, windowed(time.Hour)) })
	}
}

// BenchmarkTakeover registers groups that take over what a window has. An op is a group.
func BenchmarkTakeover(b *testing.B) {
	for _, size := range []int{100, 1000, 9900} {
		b.Run(fmt.Sprintf("messages=%d", size), func(b *testing.B) {
			s := redistest.ForBenchmark(b)
			w := newWorld(b, s, "topic")
			require.NoError(b, w.topic.Register(ctx, "first", windowed(time.Hour)))
			for part := range slices.Chunk(names("%d", 0, size), 1000) {
				w.publishNow(part...)
			}
			spent, n := 0.0, 0
			for b.Loop() {
				n++
				before := evalMicros(b, s.Client)
				got, err := w.topic.Join(ctx, fmt.Sprint(n), windowed(time.Hour))
				spent += evalMicros(b, s.Client) - before
				require.NoError(b, err)
				require.Equal(b, size, got.Taken)
				require.NoError(b, w.topic.Remove(ctx, fmt.Sprint(n)))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(spent/float64(n), "redis-us/group")
		})
	}
}

func benchmarkScripts(b *testing.B, size, dead, waiting, bytes int, options ...queue.GroupOptions) {
	s := redistest.ForBenchmark(b)
	w := newWorld(b, s, "topic")
	require.NoError(b, w.topic.Register(ctx, "group", append(options, standard)[0]))
	if dead > 0 {
		w.publishNow(names("%d", 1, dead)...)
		failed := w.sub("group")
		for _, m := range failed.claim(dead).Messages {
			failed.nack(queue.Failure{Leased: &m, Limit: 1, Reason: "nacked on the last of 25 deliveries"})
		}
	}
	group := w.topic.Group("group")
	body := []byte(strings.Repeat("x", bytes))
	publisher, subscription := queue.Token(), queue.Token()
	spent := map[string]float64{}
	measure := func(transition string, f func()) {
		before := evalMicros(b, s.Client)
		f()
		spent[transition] += evalMicros(b, s.Client) - before
	}
	number := uint64(0)
	publish := func(n int, due queue.Due) {
		number++
		messages := make([]queue.Message, n)
		for i := range messages {
			id, err := w.ids.Next(time.Now())
			require.NoError(b, err)
			messages[i] = queue.Message{ID: id, Due: due, Body: body}
		}
		require.NoError(b, w.topic.Publish(ctx, publisher, number, messages))
	}
	claim := queue.Claim{Subscription: subscription, Limit: size, Lease: time.Minute, Bytes: 4 << 20,
		Address: "mailbox|1", Patience: time.Minute, Slots: size}
	take := func() []*queue.Leased {
		claim.Number++
		call := group.ClaimCall(claim)
		require.NoError(b, do(ctx, s.Client, call))
		claimed, err := claim.ReadClaim(call.Cmd())
		require.NoError(b, err)
		require.Len(b, claimed.Messages, size)
		var leased []*queue.Leased
		for i := range claimed.Messages {
			leased = append(leased, &claimed.Messages[i])
		}
		return leased
	}

	if waiting > 0 {
		publish(waiting, queue.In(time.Hour))
	}
	done := 0
	for b.Loop() {
		done += 2 * size
		measure("publish", func() { publish(size, queue.In(0)) })
		var leased []*queue.Leased
		measure("claim", func() { leased = take() })
		measure("ack", func() { require.NoError(b, do(ctx, s.Client, group.AckCalls(leased)...)) })

		measure("publish-delayed", func() { publish(size, queue.In(time.Millisecond)) })
		time.Sleep(2 * time.Millisecond)
		for w.llen(w.keys.Ready("group")) < size {
			measure("promote", func() {
				groups, err := w.topic.Groups(ctx)
				require.NoError(b, err)
				require.NoError(b, do(ctx, s.Client, w.topic.PromoteCall(groups, "mailbox|2", time.Minute, true)))
			})
		}
		require.NoError(b, do(ctx, s.Client, group.AckCalls(take())...))
	}
	b.ReportMetric(0, "ns/op")
	for transition, us := range spent {
		b.ReportMetric(us/float64(done/2), transition+"-us/msg")
	}
}

// BenchmarkBacklog promotes messages that came due before there was a group, a thousand in the same
// millisecond, and far more than one call takes. An op is a message.
func BenchmarkBacklog(b *testing.B) {
	const calls, size = 50, 1000
	s := redistest.ForBenchmark(b)
	ids := queue.NewIDs()
	messages := make([]queue.Message, size)
	topics, spent := 0, 0.0
	for b.Loop() {
		topics++
		w := newWorld(b, s, fmt.Sprintf("topic%d", topics))
		for number := range calls {
			for i := range messages {
				id, err := ids.Next(time.Now())
				require.NoError(b, err)
				messages[i] = queue.Message{ID: id, Body: []byte(strings.Repeat("x", 128))}
			}
			require.NoError(b, w.topic.Publish(ctx, "publisher", uint64(number+1), messages))
		}
		w.register("group")
		groups, err := w.topic.Groups(ctx)
		require.NoError(b, err)
		before := evalMicros(b, s.Client)
		for w.llen(w.keys.Ready("group")) < calls*size {
			require.NoError(b, do(ctx, s.Client, w.topic.PromoteCall(groups, "mailbox|2", time.Minute, true)))
		}
		spent += evalMicros(b, s.Client) - before
		require.NoError(b, s.Client.Unlink(ctx, w.keys.Messages(), w.keys.Ready("group")).Err())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(spent/float64(topics*calls*size), "promote-us/msg")
}

// BenchmarkUnusedGroups removes a thousand groups whose end has come, as after as many processes
// that had one each. An op is a group.
func BenchmarkUnusedGroups(b *testing.B) {
	const groups = 1000
	s := redistest.ForBenchmark(b)
	topics, spent := 0, 0.0
	for b.Loop() {
		topics++
		w := newWorld(b, s, fmt.Sprintf("topic%d", topics))
		for i := range groups {
			w.registerFor(fmt.Sprint(i), queue.GroupOptions{Expiry: time.Minute})
		}
		before := evalMicros(b, s.Client)
		for range 4 { // three times, each is put off
			w.travel(time.Hour)
			for unused := w.promote("scheduler|1").Unused; len(unused) > 0; unused = w.promote("scheduler|1").Unused {
				require.Empty(b, must(w.topic.RemoveUnused(ctx, unused...)))
			}
		}
		spent += evalMicros(b, s.Client) - before
		require.Empty(b, w.registered())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(spent/float64(topics*groups), "redis-us/group")
}

func (w *world) llen(key string) int {
	n, err := w.Client.LLen(ctx, key).Result()
	require.NoError(w.t, err)
	return int(n)
}

// evalMicros is what the server has spent on scripts since it started.
func evalMicros(b *testing.B, client redis.UniversalClient) float64 {
	b.Helper()
	info, err := client.Info(ctx, "commandstats").Result()
	require.NoError(b, err)
	_, after, _ := strings.Cut(info, "cmdstat_evalsha:")
	var calls, us float64
	_, _ = fmt.Sscanf(after, "calls=%f,usec=%f", &calls, &us)
	return us
}
