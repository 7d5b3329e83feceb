package periodic

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkSchedules prints what part of a Redis server's processor 10,000 schedules of 5 programs
// take, in an hour of the server's clock: 100 each minute, 900 each quarter of an hour, 3,000 each
// hour, and 6,000 each day. Deliveries are not part of it. The programs look each five seconds.
func BenchmarkSchedules(b *testing.B) {
	const programs, poll = 5, 5 * time.Second
	count, lasts := 10_000, time.Hour
	if testing.Short() {
		count, lasts = 200, time.Minute
	}
	in := redistest.StartWithClock(b)
	client := in.Client(b).(*redis.Client)
	var schedules []Schedule
	for i := range count {
		spec := fmt.Sprintf("%d %d * * *", i%60, i/60%24)
		switch {
		case i < 100:
			spec = "* * * * *"
		case i < 1000:
			spec = "*/15 * * * *"
		case i < 4000:
			spec = fmt.Sprintf("%d * * * *", i%60)
		}
		schedules = append(schedules, Schedule{Name: fmt.Sprint("schedule ", i), Topic: "t", Spec: spec, Message: hello})
	}
	var all []*Periodic
	for range programs {
		pub, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, pub.Close()) })
		p, err := New(Config{Publisher: pub}, nil)
		require.NoError(b, err)
		require.NoError(b, p.Add(schedules...))
		all = append(all, p)
	}
	look := func(p *Periodic) {
		for again := true; again; {
			var err error
			again, err = p.topics["t"].look(context.Background())
			require.NoError(b, err)
			p.making.Wait()
		}
	}
	for range 3 { // all have begun, and know that
		for _, p := range all {
			look(p)
		}
	}
	published := func() (n int64) {
		return client.ZCard(context.Background(), redisdelay.DefaultKeyPrefix+":{t}:pending").Val()
	}
	used := func() (total float64) {
		info, err := client.InfoMap(context.Background(), "cpu").Result()
		require.NoError(b, err)
		for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
			var s float64
			_, err := fmt.Sscan(info["CPU"][name], &s)
			require.NoError(b, err)
			total += s
		}
		return total
	}
	for b.Loop() {
		before, messages := used(), published()
		for offset := time.Duration(0); offset < lasts; offset += poll {
			in.SetClock(offset)
			for _, p := range all {
				look(p)
			}
		}
		b.ReportMetric(100*(used()-before)/lasts.Seconds(), "%Redis")
		b.ReportMetric(float64(published()-messages), "occurrences")
	}
}
