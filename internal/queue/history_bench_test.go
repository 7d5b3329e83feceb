package queue_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkHistory acks messages, without and with a history. It reports for each message the time
// of the server in the script, its commands, and the memory of a line. An iteration is a message.
func BenchmarkHistory(b *testing.B) {
	for _, size := range []int{1, 100} {
		for _, kept := range []queue.History{{}, {For: time.Hour, Max: 10_000}} {
			b.Run(fmt.Sprintf("batch=%d,history=%v", size, kept.For > 0), func(b *testing.B) { settled(b, size, kept) })
		}
	}
}

func settled(b *testing.B, size int, kept queue.History) {
	w := newWorld(b, redistest.On(b, redistest.Start(b).Client(b), "history"), "topic")
	w.keepIn("a", kept)
	s := w.sub("a")
	var us, commands float64
	acked := 0
	for b.Loop() {
		if acked++; acked%size != 0 {
			continue
		}
		publish := make([]queue.Message, size)
		for i := range publish {
			publish[i] = queue.Message{ID: must(w.ids.Next(time.Now())), Body: make([]byte, 100)}
		}
		w.calls++
		require.NoError(b, w.topic.Publish(ctx, "P", w.calls, publish))
		leased := s.keeping(size)
		for _, l := range leased {
			l.UUID = "0b5d5ad5-4b4b-4c1c-9d4a-0123456789ab"
		}
		before, ran := evalMicros(b, w.Client), ranCommands(b, w)
		w.do(s.group.AckCalls(leased)...)
		us, commands = us+evalMicros(b, w.Client)-before, commands+ranCommands(b, w)-ran
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(us/float64(acked), "ack-us/msg")
	b.ReportMetric(commands/float64(acked), "commands/msg")
	if lines := w.Client.XLen(ctx, w.keys.History("a")).Val(); lines > 0 {
		bytes := w.Client.Do(ctx, "MEMORY", "USAGE", w.keys.History("a"), "SAMPLES", 0).Val().(int64)
		b.ReportMetric(float64(bytes)/float64(lines), "bytes/line")
	}
}

// ranCommands returns how many commands the server has run, without those that measure.
func ranCommands(b *testing.B, w *world) (n float64) {
	b.Helper()
	info, err := w.Client.Info(ctx, "commandstats").Result()
	require.NoError(b, err)
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		if m[1] != "info" {
			n += float64(must(strconv.Atoi(m[2])))
		}
	}
	return n
}
