package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// How many of kind=card fall due tomorrow from 9 to 10?
func TestTheToolCountsWhatFallsDueByMetadata(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	parts, err := partition.Topics("split", 2)
	require.NoError(t, err)
	now := time.Now()
	nine := time.Date(now.Year(), now.Month(), now.Day()+1, 9, 0, 0, 0, time.Local)
	for _, topics := range [][]string{{"orders"}, parts} {
		for i, at := range []time.Duration{-time.Millisecond, 0, 30 * time.Minute, time.Hour - time.Millisecond, time.Hour} {
			for _, kind := range []string{"card", "gift"} {
				msg := message.NewMessage(fmt.Sprint(kind, i), nil)
				msg.Metadata.Set("kind", kind)
				redisdelay.DelayUntil(msg, nine.Add(at))
				require.NoError(t, w.publisher.Publish(topics[i%len(topics)], msg))
			}
		}
	}
	for _, topic := range []string{"orders", "split"} {
		for from, want := range map[string]string{"tomorrow 9:00": `"waiting":3`, nine.Format("2006-01-02 15:04"): `"waiting":3`, nine.Add(-time.Hour).Format(time.RFC3339): `"waiting":1`} {
			status, out, said := w.run("", "upcoming", topic, "--metadata", "kind=card", "--from", from, "--width", "1h", "--buckets", "1", "--json")
			require.Zero(t, status, said)
			require.Contains(t, out, want, "%s from %s", topic, from)
		}
		_, out, _ := w.run("", "upcoming", topic, "--from", "tomorrow 9:00", "--width", "1h", "--buckets", "1", "--json")
		require.Contains(t, out, `"waiting":6`, "all kinds")
		status, out, said := w.run("", "upcoming", topic, "--metadata", "kind=card", "--from", "tomorrow 8:00", "--width", "20m", "--buckets", "20", "--most", "3", "--json")
		require.Equal(t, 1, status)
		require.Contains(t, said, "Not all was counted: 3 messages were read")
		require.NotContains(t, out, `"from":"`+nine.Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	status, _, said := w.run("", "upcoming", "orders", "--from", "soon")
	require.Equal(t, 2, status)
	require.Contains(t, said, `--from: "soon" is no time; write it like`)
}
